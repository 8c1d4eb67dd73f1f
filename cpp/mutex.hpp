// The lock of xlogmem's tables: a futex, a heavy fence, and a name for the calling thread.
#pragma once

#include <linux/futex.h>
#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <new>

// Sleeps while the word has this value, or until it is woken or the limit is over; or wakes so many sleepers.
static inline void xlogmem_futex(std::atomic<std::uint32_t>& word, int operation, std::uint32_t value,
                                 const std::timespec* limit = nullptr) {
    const int error = errno;                                // a thread's errno must not change under it
    syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&word), operation | FUTEX_PRIVATE_FLAG, value, limit, nullptr,
            0);
    errno = error;
}

// A pause between two looks at a word that another thread is about to change.
static inline void xlogmem_pause() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("isb");
#endif
}

// A heavy fence for a light one of all other threads: everything that each of them did before the call is seen after
// it, and everything that each does after the call sees what came before it.  In the other threads a compiler barrier
// is enough.
static inline bool xlogmem_fence_all() {
    const int error = errno;
    const bool done = !syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0);
    errno = error;
    return done;
}
static inline bool xlogmem_can_fence_all() {
    const int error = errno;
    const bool can = !syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0) && xlogmem_fence_all();
    errno = error;
    return can;
}

// True if locks prefer threads. A filter of system calls that a program installs later, perhaps for one thread, may
// refuse the fence. From then on no lock prefers any thread; and a thread that takes a lock from its favourite now
// waits for longer than a processor keeps stored values to itself, which is microseconds.
static inline std::atomic<bool>& xlogmem_may_prefer() {
    static std::atomic<bool> may{xlogmem_can_fence_all()};
    return may;
}
static inline void xlogmem_fence_all_or_wait() {
    if (xlogmem_fence_all()) return;
    xlogmem_may_prefer() = false;
    const int error = errno;
    usleep(50000);
    errno = error;
}

static inline std::uintptr_t xlogmem_self() {
#if defined(__x86_64__)
    std::uintptr_t self;
    asm("mov %%fs:0, %0" : "=r"(self));                     // the thread's control block, as the ABI has it
    return self;
#else
    return reinterpret_cast<std::uintptr_t>(__builtin_thread_pointer());
#endif
}

// The mutex with three states of Drepper, "Futexes are tricky", with a short spin that backs off, and in front of it a
// short way for a thread that takes the lock again and again.
//
// The mutex.  SLEEPERS says that threads may sleep.  A thread sleeps only after it has set that, and while that
// stands.  The holder gives the lock back with an exchange, so that no thread can set SLEEPERS unseen, and wakes one.
// A thread that was woken takes the lock as SLEEPERS, because it does not know whether more sleep.  A thread that
// comes may take a free lock before one that was woken for it: the sections are shorter than a wake-up.
//
// The short way (biased locking by asymmetric Dekker synchronization; see membarrier(2)).  A thread that has taken the
// mutex STREAK times in a row becomes the lock's *favourite*, and from then on takes the lock by two plain stores.  Any
// other thread takes the mutex first, and then ends the preference.  In short, with `|` for a compiler barrier:
//
//     the favourite                      another thread, with the mutex
//     (1) inside = true                  (4) favourite = none
//      |                                 (5) a heavy fence
//     (2) still the favourite?           (6) sleep while `inside`
//         no: (3), and take the mutex
//         the section
//     (3) inside = false
//      |
//         still the favourite?  no: wake
//
// Each step of a thread falls before (5) or after it.  If (2) is before (5), so is (1), and (6) sees the section.  If
// (2) is after (5), (2) sees (4), and there is no section.  So two threads are never inside.  No thread sleeps for
// ever: read the last line in place of (2), and (3) in place of (1); then (6) sees (3), or is woken.
//
// `inside` is the favourite's own: each has a Favourite, which lives as long as the lock.  A thread that was
// interrupted before (1) may go on with it at any time.  A thread that ends is not inside, and one that begins where
// it was, with the same control block, may as well be it.  Those that ended keep their places, so that a lock has no more
// favourites after MOST_FAVOURITES threads.  A lock outlives the calls of it: `unlock` looks at it last.
//
// To take a lock from its favourite costs a heavy fence, a system call that interrupts other cores: less than STREAK
// times the short way saves.
//
// Builds with checks record the holder (`held`): functions that need the lock check that, as SQLite's do.
#define XLOGMEM_INLINE inline __attribute__((always_inline))

class xlogmem_mutex {
    enum : std::uint32_t { FREE, HELD, SLEEPERS };
    enum { MOST_PAUSES = 64, SPINS = 100, STREAK = 2000, MOST_FAVOURITES = 256 };
    struct alignas(128) Favourite {                         // two lines: processors fetch them in pairs
        std::uintptr_t thread;
        std::atomic<std::uint32_t> inside;
        Favourite* next;
    };
    std::atomic<Favourite*> favourite{nullptr};             // changes with the mutex held
    Favourite* entered = nullptr;                           // the holder took the short way; the holder's own
    std::atomic<std::uint32_t> state{FREE};
    std::uint32_t streak = 0;                               // these three are the holder's own, too
    std::uintptr_t last = 0;
    Favourite* favourites = nullptr;
#ifdef XLOGMEM_CHECKS
    std::atomic<std::uintptr_t> holder{0};
    void own() { holder.store(xlogmem_self(), std::memory_order_relaxed); }
    void disown() { holder.store(0, std::memory_order_relaxed); }
    // A favourite would get in again.
    void refuse_holder() {
        if (holder.load(std::memory_order_relaxed) != xlogmem_self()) return;
        std::fputs("xlogmem: broken invariant: a thread takes a lock that it holds\n", stderr);
        std::abort();
    }
#else
    void own() {}
    void disown() {}
    void refuse_holder() {}
#endif

    // ---- the mutex
    bool take() {
        std::uint32_t expected = FREE;
        return state.compare_exchange_strong(expected, HELD, std::memory_order_acquire, std::memory_order_relaxed);
    }
    __attribute__((noinline)) void release() {
        if (__builtin_expect(state.exchange(FREE, std::memory_order_release) == SLEEPERS, 0))
            xlogmem_futex(state, FUTEX_WAKE, 1);
    }
    // Looks less and less often: a thread that takes the lock again and again finds it in its own cache meanwhile.
    bool take_soon() {
        for (int pauses = 1; pauses <= MOST_PAUSES; pauses *= 2) {
            if (state.load(std::memory_order_relaxed) == FREE && take()) return true;
            for (int i = 0; i < pauses; ++i) xlogmem_pause();
        }
        return false;
    }
    void wait() {
        if (take_soon()) return;
        while (state.exchange(SLEEPERS, std::memory_order_acquire) != FREE) xlogmem_futex(state, FUTEX_WAIT, SLEEPERS);
    }

    // ---- the short way
    XLOGMEM_INLINE bool enter_shortly() {
        Favourite* mine = favourite.load(std::memory_order_acquire);
        if (mine == nullptr || mine->thread != xlogmem_self()) return false;
        mine->inside.store(1, std::memory_order_relaxed);
        std::atomic_signal_fence(std::memory_order_seq_cst);
        if (__builtin_expect(favourite.load(std::memory_order_relaxed) != mine, 0)) {
            leave_shortly(mine);
            return false;
        }
        entered = mine;
        return true;
    }
    XLOGMEM_INLINE void leave_shortly(Favourite* mine) {
        mine->inside.store(0, std::memory_order_release);
        std::atomic_signal_fence(std::memory_order_seq_cst);
        if (__builtin_expect(favourite.load(std::memory_order_relaxed) != mine, 0)) wake_revoker(mine);
    }
    __attribute__((cold, noinline)) void wake_revoker(Favourite* mine) { xlogmem_futex(mine->inside, FUTEX_WAKE, 1); }
    void revoke(Favourite* other) {
        favourite.store(nullptr, std::memory_order_relaxed);
        xlogmem_fence_all_or_wait();
        for (int i = 0; i < SPINS && other->inside.load(std::memory_order_acquire); ++i) xlogmem_pause();
        while (other->inside.load(std::memory_order_acquire)) xlogmem_futex(other->inside, FUTEX_WAIT, 1);
    }
    // With the mutex: the same thread as the last time?
    void count() {
        const std::uintptr_t self = xlogmem_self();
        if (self == last) {
            if (__builtin_expect(++streak == STREAK, 0)) prefer(self);
        } else {
            last = self;
            streak = 0;
        }
    }
    __attribute__((cold, noinline)) void prefer(std::uintptr_t self) {
        if (!xlogmem_may_prefer()) return;
        Favourite* mine = favourites;
        int passed = 0;
        for (; mine != nullptr && mine->thread != self; mine = mine->next) ++passed;
        if (mine == nullptr) {
            if (passed == MOST_FAVOURITES) return;              // threads come and go
            mine = new (std::nothrow) Favourite{self, {0}, favourites};
            if (mine == nullptr) return;
            favourites = mine;
        }
        // In a forked child it may be set: another thread was between (1) and (3), and has no successor but this one.
        mine->inside.store(0, std::memory_order_relaxed);
        streak = 0;
        favourite.store(mine, std::memory_order_release);
    }
    __attribute__((noinline)) void lock_mutex() {
        if (!take()) wait();
        Favourite* other = favourite.load(std::memory_order_relaxed);
        if (other != nullptr) revoke(other);
        count();
    }

    __attribute__((noinline)) bool try_mutex() {
        if (favourite.load(std::memory_order_relaxed) != nullptr || !take()) return false;
        if (favourite.load(std::memory_order_relaxed) != nullptr) {
            release();
            return false;
        }
        count();
        return true;
    }

  public:
    xlogmem_mutex() = default;
    xlogmem_mutex(const xlogmem_mutex&) = delete;
    xlogmem_mutex& operator=(const xlogmem_mutex&) = delete;
    ~xlogmem_mutex() {
        while (favourites != nullptr) {
            Favourite* next = favourites->next;
            delete favourites;
            favourites = next;
        }
    }
    // Without waiting for anything.  A lock that has another favourite is taken from it by `lock` alone.
    XLOGMEM_INLINE bool try_lock() {
        refuse_holder();
        if (!enter_shortly() && !try_mutex()) return false;
        own();
        return true;
    }
    XLOGMEM_INLINE void lock() {
        refuse_holder();
        if (!enter_shortly()) lock_mutex();
        own();
    }
    bool held() {
#ifdef XLOGMEM_CHECKS
        return holder.load(std::memory_order_relaxed) == xlogmem_self();
#else
        return true;
#endif
    }
    XLOGMEM_INLINE void unlock() {
        disown();
        Favourite* mine = entered;
        if (mine != nullptr) {
            entered = nullptr;
            leave_shortly(mine);
        } else {
            release();
        }
    }
};
