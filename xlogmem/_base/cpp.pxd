# The C++ containers of the core, declared without `except +`.
#
# Cython's own declarations turn a C++ exception into a Python exception, which takes the GIL.  xlogmem's tables change
# under a lock, where the GIL may not be taken, and callers of the C table are written in C.  The only possible C++
# exception is "no host memory for a few bytes of bookkeeping".  So all tables and their items are allocated here: if
# there is no memory, these functions print a line and abort the process, which is better than tables that are changed
# half way.  Memory whose size other libraries or users choose is allocated elsewhere; its lack is a MemoryError.

from libc.stdint cimport uint32_t, uint64_t


cdef extern from *:
    """
    #include <cstddef>
    #include <cstdlib>
    #include <cstdint>
    #include <cstring>
    #include <limits>
    #include <new>
    #include <type_traits>
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

    // A vector whose first items lie in its owner: it allocates memory only for more items, and keeps that memory.
    template <typename T>
    class xlogmem_few {
        static_assert(std::is_trivially_copyable<T>::value, "items are copied as bytes");
        enum : std::uint32_t { WITHIN = 3 };
        T* items = within;
        std::uint32_t count = 0, room = WITHIN;
        T within[WITHIN];

        __attribute__((cold, noinline)) void grow() {
            T* more = xlogmem_allocator<T>().allocate(std::size_t{room} * 2);
            std::memcpy(more, items, count * sizeof(T));
            if (items != within) std::free(items);
            items = more;
            room *= 2;
        }

    public:
        xlogmem_few() {}
        ~xlogmem_few() { if (items != within) std::free(items); }
        xlogmem_few(const xlogmem_few&) = delete;
        xlogmem_few& operator=(const xlogmem_few&) = delete;
        T& operator[](std::size_t place) {
        #ifdef XLOGMEM_CHECKS
            if (place >= count) std::abort();
        #endif
            return items[place];
        }
        std::size_t size() const { return count; }
        T& back() { return (*this)[count - 1]; }
        T& emplace_back() {
            if (__builtin_expect(count == room, 0)) grow();
            return items[count++];
        }
        void pop_back() { --count; }
        void clear() { count = 0; }
    };

    template <typename T>
    static inline T* xlogmem_make_new() {
        T* made = new (std::nothrow) T();
        if (__builtin_expect(made == nullptr, 0)) xlogmem_out_of_memory();
        return made;
    }
    #endif
    """
    # Use this instead of `new T()`, which raises in Cython; `del` deletes the object.
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

    cdef cppclass few "xlogmem_few" [T] nogil:
        few()
        T& operator[](size_t)
        T& back()
        size_t size()
        T& emplace_back() noexcept      # to be filled in: it may have what was there before
        void pop_back()
        void clear()


cdef extern from "<atomic>" namespace "std" nogil:
    cdef cppclass atomic[T]:
        atomic()
        T load()
        void store(T)
        T exchange(T)
        T fetch_add(T)
        T fetch_sub(T)
        T fetch_or(T)
        T fetch_and(T)
        bint compare_exchange_weak(T& expected, T desired)

    # A bint that may be read without the lock under which it changes.
    cdef cppclass flag "std::atomic<bool>":
        void store(bint)
        bint operator bool()
        bint operator!()


cdef extern from *:
    """
    #define xlogmem_peek(figure) __atomic_load_n(&(figure), __ATOMIC_RELAXED)
    #define xlogmem_poke(figure, value) __atomic_store_n(&(figure), value, __ATOMIC_RELAXED)
    """
    # A figure that changes under a lock and is read without it.
    uint64_t peek "xlogmem_peek"(uint64_t& figure) noexcept nogil
    void poke "xlogmem_poke"(uint64_t& figure, uint64_t value) noexcept nogil


cdef extern from *:
    """
    #ifndef XLOGMEM_COUNTER
    #define XLOGMEM_COUNTER
    // A number that changes under a lock, as quickly as a plain number.  It may be read without the lock, as a hint: it
    // may have changed by then.
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
    """
    #ifndef XLOGMEM_PUSH
    #define XLOGMEM_PUSH
    template <typename Item>
    static inline void xlogmem_push(std::atomic<Item*>& head, Item* item) {
        item->next = head.load();
        while (!head.compare_exchange_weak(item->next, item)) {}
    }
    #endif
    """
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
    # True if this build checks; for invariants that take a call to evaluate.
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
    #include <ctime>
    static inline uint64_t xlogmem_milliseconds() {
        std::timespec now;
        clock_gettime(CLOCK_MONOTONIC, &now);
        return uint64_t(now.tv_sec) * 1000 + uint64_t(now.tv_nsec) / 1000000;
    }
    """
    # A clock that only rises.
    uint64_t milliseconds "xlogmem_milliseconds"() noexcept nogil


cdef extern from *:
    """
    typedef std::uint64_t xlogmem_first_of_line __attribute__((aligned(64)));
    """
    # The first member of a struct that threads change at the same time: the struct shares no cache line with others.
    ctypedef uint64_t first_of_line "xlogmem_first_of_line"


cdef inline uint64_t larger(uint64_t a, uint64_t b) noexcept nogil:
    return a if a > b else b
