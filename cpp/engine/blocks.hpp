// The map from addresses to blocks.
//
// Blocks are the driver's allocations, and the pieces that a pool above the driver cuts out of an allocation; and
// page-locked memory of the host, until it is freed or unregistered. The map keeps a freed block of the device until its
// addresses are handed out again, so that a use after the free is recognised. Each life of an address has a generation
// of its own.
#pragma once

#include "pools.hpp"
#include "shadow.hpp"

#include <map>
#include <memory>
#include <vector>

namespace check {

// Who has the memory of a block.
enum class Place : u8 { Device, Host };

struct Block {
    Place place = Place::Device;
    u64 begin = 0, end = 0;
    u64 generation = 0;
    u64 context = 0;  // whose device has the memory; 0: the front end does not know
    bool live = true;
    bool piece = false;
    bool cut = false;  // pieces were cut out of it: an address in none of them says little
    bool released = false;  // freed into a pool, which orders the next owner only
    bool captured = false;  // a piece that a graph has for itself
    bool managed = false;  // the host reaches it, too
    Pool pool = Pool::Driver;
    bool tracked = false;  // xlogmem's
    bool shared = false;  // a launch on another stream than its own has named it
    u32 tag = 0;  // the name that the program gave it
    Access allocated, freed;
    Clock recorded;  // what its pool waits for, besides the home stream, before the next owner
    EarlierOwners owners;
    Shadow shadow;

    bool holds(u64 at) const { return at - begin < end - begin; }
};

class Blocks {
  public:
    // The block that holds the address, live or freed, a piece before the whole; nullptr for words that are not
    // addresses of the device. The hottest function of the engine: it is called for each word of each launch.
    Block* find(u64 at) {
        if (!device_.holds(at) && !host_.holds(at)) return nullptr;
        Block*& known = recent_[(at * 0x9E3779B97F4A7C15ull) >> 52];
        if (known && known->holds(at) && !known->cut) return known;
        Block* found = search(at);
        if (found) known = found;
        return found;
    }

    // The block that begins at this address, at the driver's level or as a piece; nullptr if there is none.
    Block* at(u64 begin, bool piece);
    Block* whole(u64 at);  // the driver's block that the address is in
    Block* add(u64 begin, u64 end, bool piece, Place place = Place::Device);
    // Forgets the blocks of one level at these addresses, which are handed out anew. The part of a piece outside of
    // them remains a freed piece.
    void forget(u64 begin, u64 end, bool piece);
    void clear();

    template <class Visit>
    void each(u64 begin, u64 end, bool piece, Visit&& visit) {
        Level& level = piece ? pieces_ : wholes_;
        for (auto place = first(level, begin); place != level.end() && place->first < end; ++place)
            visit(*place->second);
    }

  private:
    using Level = std::map<u64, Block*>;
    // All blocks of one place are in it.
    struct Window {
        u64 low = ~u64(0), high = 0;
        bool holds(u64 at) const { return at - low < high - low; }
        void include(u64 begin, u64 end) {
            low = std::min(low, begin);
            high = std::max(high, end);
        }
    };
    static constexpr std::size_t kRecent = 4096;  // the shift in find() gives as many

    Level wholes_, pieces_;  // by their first addresses
    std::vector<Block*> recent_ = std::vector<Block*>(kRecent);
    std::vector<std::unique_ptr<Block>> all_;  // kept, because `recent_` points at them: used again
    std::vector<Block*> spare_;
    Window device_, host_;
    u64 generation_ = 0;

    Block* search(u64 at);
    Block* make();
    void retire(Block* block);
    void keep_rest(const Block& old, u64 begin, u64 end);
    static Block* in(Level& level, u64 at);
    static Level::iterator first(Level& level, u64 at);
};

}  // namespace check
