// Captured work and graphs.
//
// A capture queues nothing: its operations are ordered among themselves, and will come after whatever is before the
// launch. So each stream that captures gets a lane, with a clock of the capture's own, and the work is judged against
// the other work of the capture while it is captured. At a launch all of it is one operation of the stream.
#pragma once

#include "blocks.hpp"
#include "order.hpp"

#include <unordered_map>

namespace check {

struct CapturedAccess {
    Access access;
    // Of the block: a later owner of the same addresses is not meant.
    u64 begin = 0, generation = 0;
    bool piece = false;
};

// What a launch does. Memory that the graph allocates and frees again is its own: what it does there was judged while it
// was captured, and no other work has the memory.
struct Graph {
    std::vector<CapturedAccess> allocations;  // which a launch makes anew, if the program has freed the memory
    std::vector<CapturedAccess> accesses;
};

class Capture {
  public:
    u32 add_lane(const Clock& after);
    Time tick(u32 lane);
    Clock& clock(u32 lane) { return lanes_[lane].clock; }
    // Does all that was captured come before what the lane captures next?
    bool is_joined(u32 lane) const;

    // Compares the access with the captured ones of the block, and remembers it.
    u64 touch(const Block& block, const Access& access, u32 lane, std::vector<Access>& found);
    // A caching pool has made a piece on this lane. Accesses of the capture's earlier pieces in its place, which the lane
    // does not come after, are remembered of the new one: what its owner does has to come after them.
    void hand_over(const Block& piece, u32 lane);
    // Memory of the graph's own: what the capture does with it comes between these two.
    void allocate(const Block& block, const Access& access);
    const Access* freed(const Block& block) const;
    void free(const Block& block, const Access& access, u32 lane, std::vector<Access>& found);

    std::shared_ptr<const Graph> finish();
    // Calls visit(address, generation, free) for the memory that is the graph's own.
    template <class Visit>
    void each_own(Visit&& visit) const {
        for (const CapturedAccess& made : graph_.allocations)
            if (is_own(made.generation)) visit(made.begin, made.generation, lives_.at(made.generation).free);
    }

  private:
    struct Lane {
        Clock clock;
        u64 newest = 0;
    };
    struct Life {
        u64 begin = 0, end = 0;
        Shadow shadow;
        bool allocated = false, freed = false;
        Access free;
    };
    std::vector<Lane> lanes_;
    std::unordered_map<u64, Life> lives_;  // by generation
    std::unordered_map<u64, std::vector<u64>> lives_at_;  // generations, by the pages that their memory is in
    Graph graph_;

    Life& life(const Block& block);
    bool is_own(u64 generation) const {
        auto known = lives_.find(generation);
        return known != lives_.end() && known->second.allocated && known->second.freed;
    }
};

}  // namespace check
