// Pending ranges, and the protection of pages that follows from them. All under the spin lock.
#pragma once

#include "guard.hpp"

#include <atomic>
#include <sched.h>

namespace check::host {

constexpr u64 kPage = 4096;
inline u64 page_of(u64 address) { return address & ~(kPage - 1); }
inline u64 next_page(u64 address) { return page_of(address + kPage - 1); }

struct Window {
    u64 begin, end;
    bool holds(u64 address) const { return begin <= address && address < end; }
};

struct Pending {
    // An access opens a window of 1, 4, 16 … pages; the last one is larger than any memory.
    static constexpr u32 kWindows = 10;
    u64 begin, end;  // bytes
    Window pages;    // what is protected for it
    Time time;
    bool closed;     // it may be written: the program may not read either
    u32 windows;     // of which so many are open again
    Window open[kWindows];
    u32 steps;       // accesses beside it, which were let through
    u64 noted;       // the place whose access was noted last, or its instruction
    bool has_noted;

    bool protects(u64 page) const {
        if (!pages.holds(page)) return false;
        for (u32 i = 0; i < windows; i++)
            if (open[i].holds(page)) return false;
        return true;
    }
    bool is_hit_by(u64 address, bool write) const { return begin <= address && address < end && (write || closed); }
};

// A number for the calling thread, which a handler of a signal can have. Thread-local variables cannot be had there: the
// first use may allocate, and the memory that needs no allocation is small, and for all libraries together.
inline u64 this_thread() { return reinterpret_cast<u64>(__builtin_thread_pointer()); }

// The handlers of signals take it: nothing under it allocates, faults or calls out.
class Spin {
  public:
    Spin();
    ~Spin();
    Spin(const Spin&) = delete;
    Spin& operator=(const Spin&) = delete;
    // A fault under the lock is an error of our own, and a call there one of a handler of another signal.
    static bool inside();
    static void take_at_fork();
    static void release_after_fork();
};

// Room for all that is pending. More is counted, and not guarded.
constexpr int kMostPending = 4096;
// System calls, and the driver's own accesses, that are in progress: their pages are open meanwhile.
constexpr int kMostOpen = 64;

class Pages {
  public:
    Pending* begin() { return pending_; }
    Pending* end() { return pending_ + count_; }
    bool empty() const { return count_.load(std::memory_order_relaxed) == 0; }
    bool add(const Pending& one);
    void remove(Pending* one);
    void remove_all();
    // Opens a part of the range's pages for good.
    void open(Pending& one, u64 page);
    void open_all(Pending& one);
    // Opens pages of all ranges until close(); false: there is no room, or nothing of it was protected.
    bool open_for_now(Window pages);
    void close(Window pages);

    int mode_of(u64 page) const;
    // Two addresses, which other threads read as they are: outside of them no page is protected.
    const u64* bounds() const { return bounds_; }
    // Gives pages that some range has the protection that follows from all ranges.
    void apply(Window pages);

  private:
    Pending pending_[kMostPending];
    std::atomic<int> count_{0};
    Window open_[kMostOpen];
    int open_count_ = 0;
    u64 bounds_[2] = {~u64(0), 0};

    void set_bounds(u64 begin, u64 end);

    void protect(Window pages);
};

Pages& pages();

}  // namespace check::host
