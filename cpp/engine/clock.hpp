// Vector clocks: which operations come before which.
//
// Every stream has a slot and numbers its operations 1, 2, 3 … A clock holds, for each slot, the newest operation that
// the clock's owner comes after. Operation n of slot s comes before a stream's next operation exactly if the stream's
// clock covers (s, n). Streams, recorded events and the host have clocks; a wait joins one clock into another.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace check {

using u8 = std::uint8_t;
using u32 = std::uint32_t;
using u64 = std::uint64_t;

// One operation of one stream. Number 0 belongs to no stream: the host's work is before everything that it queues
// later.
struct Time {
    u32 slot = 0;
    u64 number = 0;
    bool operator==(const Time& other) const { return slot == other.slot && number == other.number; }
};

class Clock {
  public:
    bool covers(Time time) const { return at(time.slot) >= time.number; }
    bool covers(const Clock& other) const {
        for (std::size_t slot = 0; slot < other.newest_.size(); slot++)
            if (!covers(Time{u32(slot), other.newest_[slot]})) return false;
        return true;
    }
    u64 at(u32 slot) const { return slot < newest_.size() ? newest_[slot] : 0; }

    u32 slots() const { return u32(newest_.size()); }
    bool is_empty() const { return newest_.empty(); }

    void set(Time time) {
        if (time.slot >= newest_.size()) newest_.resize(time.slot + std::size_t(1));
        newest_[time.slot] = time.number;
    }

    void join(const Clock& other) {
        if (other.newest_.size() > newest_.size()) newest_.resize(other.newest_.size());
        for (std::size_t slot = 0; slot < other.newest_.size(); slot++)
            if (other.newest_[slot] > newest_[slot]) newest_[slot] = other.newest_[slot];
        unseen_ |= other.unseen_;
    }

    // The owner also comes after work that cannot be seen: perhaps after everything.
    void add_unseen() { unseen_ = true; }
    void forget_unseen() { unseen_ = false; }
    bool has_unseen() const { return unseen_; }

  private:
    std::vector<u64> newest_;
    bool unseen_ = false;
};

}  // namespace check
