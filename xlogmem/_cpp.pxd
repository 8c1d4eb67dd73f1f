# The C++ containers and locks of the core, declared without `except +`.
#
# Cython's own declarations turn a C++ exception into a Python one, which takes the GIL.  xlogmem's tables change under
# a lock, where the GIL may not be taken, and callers of the C table are written in C.  The only exception that could
# come is "no host memory for a few bytes of bookkeeping".  So the memory of all tables, and of what is in them, comes
# from here: where there is none, a line says so and the process is aborted, which is better than tables that are
# changed half way.  Memory whose size other libraries or users choose is allocated elsewhere; its lack is a
# MemoryError.

from libc.stdint cimport uint32_t, uint64_t


cdef extern from *:
    """
    #include <cstddef>
    #include <cstdlib>
    #include <limits>
    #include <new>
    #include <unistd.h>
    #include <vector>
    #ifndef XLOGMEM_MEMORY
    #define XLOGMEM_MEMORY
    [[noreturn]] __attribute__((cold, noinline)) static void xlogmem_out_of_memory() {
        static const char line[] = "xlogmem: out of host memory for its tables; the process is aborted\\n";
        if (write(STDERR_FILENO, line, sizeof(line) - 1) < 0) {}    // nothing that allocates
        std::abort();
    }

    template <typename T>
    struct xlogmem_allocator {
        using value_type = T;
        xlogmem_allocator() = default;
        template <typename U>
        xlogmem_allocator(const xlogmem_allocator<U>&) noexcept {}
        T* allocate(std::size_t count) noexcept {
            static_assert(alignof(T) <= alignof(std::max_align_t), "malloc aligns to that");
            void* memory = std::malloc(count * sizeof(T));          // a vector is never larger than max_size()
            if (__builtin_expect(memory == nullptr, 0)) xlogmem_out_of_memory();
            return static_cast<T*>(memory);
        }
        void deallocate(T* memory, std::size_t) noexcept { std::free(memory); }
        template <typename U>
        bool operator==(const xlogmem_allocator<U>&) const noexcept { return true; }
        template <typename U>
        bool operator!=(const xlogmem_allocator<U>&) const noexcept { return false; }
    };

    template <typename T>
    using xlogmem_vector = std::vector<T, xlogmem_allocator<T>>;

    template <typename T>
    static inline T* xlogmem_make_new() {
        T* made = new (std::nothrow) T();
        if (__builtin_expect(made == nullptr, 0)) xlogmem_out_of_memory();
        return made;
    }
    #endif
    """
    # Instead of `new T()`, which in Cython raises; `del` deletes it.
    T* make_new "xlogmem_make_new"[T]() noexcept nogil

    cdef cppclass vector "xlogmem_vector" [T] nogil:
        vector()
        T& operator[](size_t)
        T& back()
        T* data()
        size_t size()
        bint empty()
        void push_back(T&) noexcept
        T& emplace_back() noexcept      # filled in place: copying what was just written in parts is slow
        void pop_back()
        void resize(size_t) noexcept
        void clear()


cdef extern from *:
    """
    #include <atomic>
    #include <cerrno>
    #include <climits>
    #include <cstdint>
    #include <ctime>
    #include <linux/futex.h>
    #include <pthread.h>
    #include <sys/syscall.h>
    #include <unistd.h>
    #ifndef XLOGMEM_MUTEX
    #define XLOGMEM_MUTEX
    // Locked with one atomic instruction, and unlocked with none while no other thread waits for it.
    //
    // A thread that has to wait sets SLEEPERS.  The holder may overwrite that with FREE in the few nanoseconds between
    // its load and its store, and then wakes no thread: sleepers try again by themselves after a while, so the worst
    // that this costs is that while.
    //
    // Builds with checks record the holder (`held`): functions that need the lock check that, as SQLite's do.
    class xlogmem_mutex {
        enum : std::uint32_t { FREE, HELD, SLEEPERS };
        std::atomic<std::uint32_t> state{FREE};
    #ifdef XLOGMEM_CHECKS
        std::atomic<pthread_t> owner{};
        void own() { owner.store(pthread_self(), std::memory_order_relaxed); }
        void disown() { owner.store({}, std::memory_order_relaxed); }
    #else
        void own() {}
        void disown() {}
    #endif

        long futex(int operation, std::uint32_t value, const std::timespec* limit) {
            return syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&state), operation | FUTEX_PRIVATE_FLAG, value,
                           limit, nullptr, 0);
        }
        __attribute__((cold, noinline)) void wait() {
            static const std::timespec a_while{0, 100000};      // 100 us
            for (int i = 0; i < 100; ++i) {
                if (state.load(std::memory_order_relaxed) == FREE && take()) return;
        #if defined(__x86_64__)
                __builtin_ia32_pause();
        #elif defined(__aarch64__)
                asm volatile("isb");
        #endif
            }
            const int error = errno;                            // a thread's errno must not change under it
            while (state.exchange(SLEEPERS, std::memory_order_acquire) != FREE) futex(FUTEX_WAIT, SLEEPERS, &a_while);
            errno = error;
        }

        __attribute__((cold, noinline)) void wake() {
            state.store(FREE, std::memory_order_release);
            futex(FUTEX_WAKE, 1, nullptr);
        }

        bool take() {
            std::uint32_t expected = FREE;
            return state.compare_exchange_strong(expected, HELD, std::memory_order_acquire, std::memory_order_relaxed);
        }

    public:
        bool try_lock() {
            if (!take()) return false;
            own();
            return true;
        }
        void lock() {
            if (__builtin_expect(!take(), 0)) wait();
            own();
        }
        bool held() {
        #ifdef XLOGMEM_CHECKS
            return state.load(std::memory_order_relaxed) != FREE
                   && owner.load(std::memory_order_relaxed) == pthread_self();
        #else
            return true;
        #endif
        }
        void unlock() {
            disown();
            if (__builtin_expect(state.load(std::memory_order_relaxed) == HELD, 1))
                state.store(FREE, std::memory_order_release);
            else
                wake();
        }
    };
    #ifndef XLOGMEM_CHECKS
    static_assert(sizeof(xlogmem_mutex) == sizeof(std::uint32_t), "a futex is a word of 32 bits");
    #endif

    // Rung where something changes that other threads wait for.  One that waits took `heard` under the lock that guards
    // the change, and then dropped the lock: a ring in between is not missed.
    class xlogmem_bell {
        std::atomic<std::uint32_t> rings{0};
        std::atomic<std::uint32_t> listeners{0};

        long futex(int operation, std::uint32_t value) {
            return syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&rings), operation | FUTEX_PRIVATE_FLAG, value,
                           nullptr, nullptr, 0);
        }

    public:
        std::uint32_t heard() { return rings.load(); }
        void ring() {
            rings.fetch_add(1);
            if (listeners.load()) futex(FUTEX_WAKE, INT_MAX);
        }
        void wait(std::uint32_t heard) {
            const int error = errno;                            // a thread's errno must not change under it
            listeners.fetch_add(1);
            while (rings.load() == heard) futex(FUTEX_WAIT, heard);
            listeners.fetch_sub(1);
            errno = error;
        }
    };

    // Put an item on a list that other threads take as a whole.  Takes no lock, so finalizers may call it.
    template <typename Item>
    static inline void xlogmem_push(std::atomic<Item*>& head, Item* item) {
        item->next = head.load();
        while (!head.compare_exchange_weak(item->next, item)) {}
    }
    #endif
    """
    cdef cppclass mutex "xlogmem_mutex" nogil:
        mutex()
        void lock() noexcept
        bint try_lock() noexcept
        void unlock() noexcept
        bint held() noexcept            # by this thread; in release builds always true

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

        void futex(int operation, std::uint32_t value, const std::timespec* limit) {
            const int error = errno;                            // a thread's errno must not change under it
            syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&raised), operation, value, limit, nullptr, 0);
            errno = error;
        }

    public:
        void set() {
            raised.store(1, std::memory_order_release);
            futex(FUTEX_WAKE_PRIVATE, 1, nullptr);
        }
        void clear() { raised.store(0, std::memory_order_relaxed); }
        bool is_set() { return raised.load(std::memory_order_acquire); }
        // Returns when it is set, and at the latest after so many milliseconds (less than 1,000).
        void wait(long milliseconds) {
            const std::timespec limit{0, milliseconds * 1000000};
            for (int i = 0; i < 200 && !is_set(); ++i) {
        #if defined(__x86_64__)
                __builtin_ia32_pause();
        #elif defined(__aarch64__)
                asm volatile("isb");
        #endif
            }
            if (!is_set()) futex(FUTEX_WAIT_PRIVATE, 0, &limit);
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


cdef extern from "<atomic>" namespace "std" nogil:
    cdef cppclass atomic[T]:
        atomic()
        T load()
        void store(T)
        T exchange(T)
        T fetch_add(T)
        T fetch_sub(T)
        bint compare_exchange_weak(T& expected, T desired)

    # A bint that may be read without the lock under which it changes.
    cdef cppclass flag "std::atomic<bool>":
        void store(bint)
        bint operator bool()
        bint operator!()


cdef extern from *:
    """
    #ifndef XLOGMEM_COUNTER
    #define XLOGMEM_COUNTER
    // Changes under a lock, as a plain number does and as quickly.  Without the lock it may be read: as a hint, because
    // it may be another one by then.
    class xlogmem_counter {
        std::atomic<std::uint32_t> number{0};

    public:
        xlogmem_counter() = default;
        xlogmem_counter(const xlogmem_counter& other) : number(std::uint32_t(other)) {}
        xlogmem_counter(std::uint32_t value) : number(value) {}
        xlogmem_counter& operator=(const xlogmem_counter& other) { return *this = std::uint32_t(other); }
        xlogmem_counter& operator=(std::uint32_t value) {
            number.store(value, std::memory_order_relaxed);
            return *this;
        }
        operator std::uint32_t() const { return number.load(std::memory_order_relaxed); }
    };
    #endif
    """
    ctypedef uint32_t counter "xlogmem_counter"


cdef extern from *:
    # Put an item in front of a list that is taken as a whole.  Takes no lock, so finalizers may call it.
    void push "xlogmem_push"[T](atomic[T*]& head, T* item) noexcept nogil


cdef extern from *:
    """
    #include <cstdio>
    #include <cstdlib>
    #ifdef XLOGMEM_CHECKS
    #define XLOGMEM_CHECKED 1
    #define XLOGMEM_CHECK(truth, rule) \
        do { \
            if (!(truth)) { \
                std::fprintf(stderr, "xlogmem: broken invariant: %s (%s:%d)\\n", rule, __FILE__, __LINE__); \
                std::abort(); \
            } \
        } while (0)
    #else
    #define XLOGMEM_CHECKED 0
    #define XLOGMEM_CHECK(truth, rule) ((void)(truth))
    #endif
    """
    # An invariant of xlogmem, checked in every build but release (setup.py); a broken one ends the process.
    void check "XLOGMEM_CHECK"(bint truth, const char* rule) noexcept nogil
    # Whether this build checks; for invariants that take a call to evaluate.
    const bint checked "XLOGMEM_CHECKED"


cdef extern from *:
    """
    static inline void xlogmem_prefetch(const void* address) { __builtin_prefetch(address); }
    #define XLOGMEM_UNLIKELY(truth) __builtin_expect(!!(truth), 0)
    """
    # Fetch a cache line that will be needed soon.
    void prefetch "xlogmem_prefetch"(const void* address) noexcept nogil

    # For conditions on the paths of every allocation, so that the code which usually runs is in one piece.
    bint unlikely "XLOGMEM_UNLIKELY"(bint truth) noexcept nogil


cdef extern from *:
    """
    static inline uint64_t xlogmem_milliseconds() {
        std::timespec now;
        clock_gettime(CLOCK_MONOTONIC, &now);
        return uint64_t(now.tv_sec) * 1000 + uint64_t(now.tv_nsec) / 1000000;
    }
    """
    # A clock that only rises.
    uint64_t milliseconds "xlogmem_milliseconds"() noexcept nogil


cdef inline uint64_t read_under(mutex* lock, uint64_t* figure) noexcept:
    """A figure of now.  With the GIL, which is released meanwhile."""
    cdef uint64_t now
    with nogil:
        lock.lock()
        now = figure[0]
        lock.unlock()
    return now


cdef inline uint64_t larger(uint64_t a, uint64_t b) noexcept nogil:
    return a if a > b else b
