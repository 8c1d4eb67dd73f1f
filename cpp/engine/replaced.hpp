// The accesses that the newest operations have replaced in the shadows: they come back if the driver refuses the
// operation.
#pragma once

#include "blocks.hpp"

#include <array>

namespace check {

class Replaced {
  public:
    static constexpr std::size_t kMost = 8;  // operations

    void begin(Time time) {
        newest_ = (newest_ + 1) % kMost;
        all_[newest_].time = time;
        all_[newest_].lost.clear();
    }
    // By the operation that began last, in this block.
    void add(Block& block, const Access& lost) { all_[newest_].lost.push_back({&block, block.generation, lost}); }
    // Those of an operation that is not one of the newest do not come back.
    void bring_back(Time time) {
        for (const Newest& one : all_)
            if (one.time == time)
                for (const Lost& lost : one.lost)
                    if (lost.block->generation == lost.generation && lost.block->live && !(lost.access.time == time))
                        lost.block->shadow.add(lost.access);
    }

  private:
    struct Lost {
        Block* block;
        u64 generation;
        Access access;
    };
    struct Newest {
        Time time;
        std::vector<Lost> lost;
    };
    std::array<Newest, kMost> all_;
    std::size_t newest_ = 0;
};

}  // namespace check
