// Vector clocks: which operations a stream is ordered after.
//
// Every stream has a slot and numbers its operations 1, 2, 3 … A clock holds, for each slot, the newest
// operation that its owner is ordered after. Operation n of slot s happens before an operation of another
// stream exactly if that stream's clock covers (s, n). Streams, recorded events and the host have clocks; a
// wait, a synchronize or a successful query joins one into another.
//
// Whether two operations are ordered is a property of the calls made, not of the order in which the scheduler
// happened to run them: one run of a program finds every race of that sequence of calls.
#pragma once

#include "base.hpp"

#include <vector>

namespace sim {

class Clock {
  public:
    bool covers(std::size_t slot, u64 sequence) const { return at(slot) >= sequence; }
    u64 at(std::size_t slot) const { return slot < times_.size() ? times_[slot] : 0; }

    void set(std::size_t slot, u64 sequence) {
        if (slot >= times_.size()) times_.resize(slot + 1);
        times_[slot] = sequence;
    }

    void join(const Clock& other) {
        if (other.times_.size() > times_.size()) times_.resize(other.times_.size());
        for (std::size_t i = 0; i < other.times_.size(); i++)
            if (other.times_[i] > times_[i]) times_[i] = other.times_[i];
    }

  private:
    std::vector<u64> times_;
};

}  // namespace sim
