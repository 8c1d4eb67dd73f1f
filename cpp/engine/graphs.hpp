// Captured work and graphs.
//
// A capture queues nothing: its operations are ordered among themselves, and will come after everything that is before
// the launch. So each capturing stream gets a lane, with a clock of the capture's own, and the engine judges captured
// work against the other work of the capture at once. At a launch all of the work is one operation of the stream.
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

// The accesses of a launch. Memory that the graph allocates and frees again is its own: accesses to it were judged
// during the capture, and no other work has the memory.
struct Graph {
    bool has_work = false;  // or it has no nodes: its launch is nothing, and is ordered with no other
    std::vector<CapturedAccess> allocations;  // which a launch makes anew, if the program has freed the memory
    std::vector<CapturedAccess> accesses;
};

class Capture {
  public:
    u32 add_lane(const Clock& after);
    Time tick(u32 lane);
    Clock& clock(u32 lane) { return lanes_[lane].clock; }
    // True if all captured work comes before the lane's next captured operation.
    bool is_joined(u32 lane) const;

    // Compares the access with the captured accesses of the block, and remembers it.
    u64 touch(const Block& block, const Access& access, u32 lane, std::vector<Access>& found);
    // A caching pool has made a piece on this lane. The new piece remembers the accesses of the capture's earlier
    // pieces in its place that the lane does not come after: the new owner's accesses have to come after these.
    void hand_over(const Block& piece, u32 lane);
    // Memory of the graph's own: the capture's accesses come between these two.
    void allocate(const Block& block, const Access& access);
    const Access* freed(const Block& block) const;
    void free(const Block& block, const Access& access, u32 lane, std::vector<Access>& found);
    void keep(const Block& block);  // the driver has refused the free
    template <class Test>
    void forget_if(Test&& test) {
        check::remove_if(graph_.accesses, [&](const CapturedAccess& one) { return test(one.access); });
        for (auto& life : lives_) life.second.shadow.forget_if(test);
    }

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
