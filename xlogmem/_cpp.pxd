# The C++ containers and locks of the core, declared without `except +`.
#
# Cython's own declarations turn a C++ exception into a Python one, which takes the GIL; our tables change under a lock,
# where the GIL may not be taken.  The only exception these calls can raise is "no host memory for a few bytes of
# bookkeeping", and a process that far gone is ended by C++ itself rather than left with half-changed tables.

from libc.stdint cimport uint64_t


cdef extern from "<vector>" namespace "std" nogil:
    cdef cppclass vector[T]:
        vector()
        T& operator[](size_t)
        T& back()
        T* data()
        size_t size()
        bint empty()
        void push_back(T&) noexcept
        void pop_back()
        void resize(size_t) noexcept
        void clear()


cdef extern from "<mutex>" namespace "std" nogil:
    cdef cppclass mutex:
        mutex()
        void lock() noexcept
        bint try_lock()
        void unlock()


cdef extern from "<atomic>" namespace "std" nogil:
    cdef cppclass atomic[T]:
        atomic()
        T load()
        void store(T)
        T exchange(T)
        bint compare_exchange_weak(T&, T)
        T fetch_add(T)
        T fetch_sub(T)

    # A bint that may be read without the lock under which it changes.
    cdef cppclass flag "std::atomic<bool>":
        void store(bint)
        bint operator bool()
        bint operator!()


cdef extern from *:
    """
    #include <cstdio>
    #include <cstdlib>
    #ifdef XLOGMEM_CHECKS
    #define XLOGMEM_CHECK(truth, rule) \
        do { \
            if (!(truth)) { \
                std::fprintf(stderr, "xlogmem: broken invariant: %s (%s:%d)\\n", rule, __FILE__, __LINE__); \
                std::abort(); \
            } \
        } while (0)
    #else
    #define XLOGMEM_CHECK(truth, rule) ((void)(truth))
    #endif
    """
    # An invariant of our own, looked at in every build but release (setup.py); a broken one ends the process.
    void check "XLOGMEM_CHECK"(bint truth, const char* rule) noexcept nogil


cdef extern from *:
    """
    static inline void xlogmem_prefetch(const void* address) { __builtin_prefetch(address); }
    """
    # Have a line of the cache fetched that will be needed soon.
    void prefetch "xlogmem_prefetch"(const void* address) noexcept nogil


cdef inline uint64_t larger(uint64_t a, uint64_t b) noexcept nogil:
    return a if a > b else b
