# Primitives that threads wait for: the lock, the bell and the signal.

from libc.stdint cimport uint32_t, uint64_t


cdef extern from *:
    """
    #include <climits>
    #include "mutex.hpp"
    #ifndef XLOGMEM_BELL
    #define XLOGMEM_BELL
    // Rung where something changes that other threads wait for.  One that waits took `heard` under the lock that guards
    // the change, and then dropped the lock: a ring in between is not missed.
    class xlogmem_bell {
        std::atomic<std::uint32_t> rings{0};
        std::atomic<std::uint32_t> listeners{0};

    public:
        std::uint32_t heard() { return rings.load(); }
        void ring() {
            rings.fetch_add(1);
            if (listeners.load()) xlogmem_futex(rings, FUTEX_WAKE, INT_MAX);
        }
        void wait(std::uint32_t heard) {
            listeners.fetch_add(1);
            while (rings.load() == heard) xlogmem_futex(rings, FUTEX_WAIT, heard);
            listeners.fetch_sub(1);
        }
    };
    #endif
    #ifndef XLOGMEM_COUNTED_MUTEX
    #define XLOGMEM_COUNTED_MUTEX
    // A thread that takes it again, and finds the next number, knows that no other has had it in between.  Forks take
    // it as a plain mutex, uncounted, and change nothing under it.
    struct xlogmem_counted_mutex : xlogmem_mutex {
        std::uint64_t turn = 0;                             // the holder's own
        XLOGMEM_INLINE void lock() {
            xlogmem_mutex::lock();
            ++turn;
        }
        XLOGMEM_INLINE bool try_lock() {
            if (!xlogmem_mutex::try_lock()) return false;
            ++turn;
            return true;
        }
    };
    #endif
    """
    # Not re-entrant.  A mutex outlives every call of its methods: it is never a static of C++, and never deleted by the
    # last of several holders that are counted under the mutex itself.
    cdef cppclass mutex "xlogmem_mutex" nogil:
        mutex()
        void lock() noexcept
        bint try_lock() noexcept
        void unlock() noexcept
        bint held() noexcept            # by this thread; in release builds always true

    cdef cppclass counted_mutex "xlogmem_counted_mutex"(mutex) nogil:
        counted_mutex()
        uint64_t turn                   # how often it was taken so far, but by forks; with the lock held
        void lock() noexcept
        bint try_lock() noexcept

    cdef cppclass bell "xlogmem_bell" nogil:
        bell()
        uint32_t heard() noexcept
        void ring() noexcept            # wakes all
        void wait(uint32_t heard) noexcept      # until it is rung again; without a lock and without the GIL


cdef extern from *:
    """
    #ifndef XLOGMEM_SIGNAL
    #define XLOGMEM_SIGNAL
    // Set by one thread, waited for by another, which has to look at times whether there is still anything to wait for.
    class xlogmem_signal {
        std::atomic<std::uint32_t> raised{0};

    public:
        void set() {
            raised.store(1, std::memory_order_release);
            xlogmem_futex(raised, FUTEX_WAKE, 1);
        }
        void clear() { raised.store(0, std::memory_order_relaxed); }
        bool is_set() { return raised.load(std::memory_order_acquire); }
        // Returns when it is set, and at the latest after so many milliseconds (less than 1,000).
        void wait(long milliseconds) {
            const std::timespec limit{0, milliseconds * 1000000};
            for (int i = 0; i < 200 && !is_set(); ++i) xlogmem_pause();
            if (!is_set()) xlogmem_futex(raised, FUTEX_WAIT, 0, &limit);
        }
    };
    #endif
    """
    cdef cppclass signal "xlogmem_signal" nogil:
        signal()
        void set() noexcept
        void clear() noexcept
        bint is_set() noexcept
        void wait(long milliseconds) noexcept


cdef inline uint64_t read_under(mutex* lock, uint64_t* figure) noexcept:
    """Read a figure under its lock.  Call with the GIL, which is released meanwhile."""
    cdef uint64_t now
    with nogil:
        lock.lock()
        now = figure[0]
        lock.unlock()
    return now
