// Notes of accesses, from the handlers to the front end. All under the spin lock.
#pragma once

#include "pages.hpp"

namespace check::host {

class Notes {
  public:
    bool empty() const { return written_.load(std::memory_order_acquire) == read_.load(std::memory_order_relaxed); }
    void add(const Note& note) {
        if (written_ - read_ == kMost) return;  // they are judged at each wait: a program does not get here
        notes_[written_ % kMost] = note;
        written_++;
    }
    bool take(Note& note) {
        if (empty()) return false;
        note = notes_[read_ % kMost];
        read_++;
        return true;
    }

  private:
    static constexpr u64 kMost = 4096;
    Note notes_[kMost];
    std::atomic<u64> written_{0}, read_{0};
};

Notes& notes();

// Notes that the thread reads or writes these bytes of the range, unless the same place was the last one to do so: a
// loop, or a long copy, makes one note for each time that the range is queued. Then the program may go on there.
void note_hit(Pending& one, Note note);

}  // namespace check::host
