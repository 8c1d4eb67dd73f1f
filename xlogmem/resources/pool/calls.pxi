# Calls upstream in flight, and allocations that wait for one of them to end.
#
# No allocation can find the memory that such a call works on: a chunk on its way here or back, or the room below the
# maximum that is reserved for a chunk.  So an allocation that finds no memory meanwhile is not out of memory yet: it
# waits for a call to end and chooses again.

from libc.stdint cimport uint32_t, uint64_t

from xlogmem._base.cpp cimport check
from xlogmem._order cimport this_thread


cdef extern from "Python.h":
    ctypedef struct PyThreadState
    bint PyGILState_Check() nogil
    PyThreadState* PyEval_SaveThread() nogil
    void PyEval_RestoreThread(PyThreadState* thread) nogil


cdef void begin_call_upstream_locked(PoolState* pool) noexcept nogil:
    """Note a call upstream, before the lock is dropped for it."""
    check(pool.order.lock.held(), "the lock is held")
    pool.callers.push_back(this_thread())


cdef void end_call_upstream_locked(PoolState* pool) noexcept nogil:
    """End a call upstream.  Waiting threads are woken, and see the caller's changes up to the moment when it drops the
    lock."""
    check(pool.order.lock.held(), "the lock is held")
    cdef size_t i = 0
    while pool.callers[i] != this_thread():
        i += 1
    pool.callers[i] = pool.callers.back()
    pool.callers.pop_back()
    pool.call_ended.ring()


cdef bint is_calling_upstream_locked(PoolState* pool) noexcept nogil:
    """True if this thread is inside a call upstream: that of a resource that allocates from the pool above it."""
    check(pool.order.lock.held(), "the lock is held")
    cdef size_t i
    for i in range(pool.callers.size()):
        if pool.callers[i] == this_thread():
            return True
    return False


cdef inline uint64_t chunks_moved_locked(PoolState* pool) noexcept nogil:
    """Count the chunks taken and returned so far."""
    check(pool.order.lock.held(), "the lock is held")
    return pool.counters.grown + pool.counters.released


cdef bint wait_for_calls_upstream_unlocks(PoolState* pool, size_t nbytes, uint64_t moved) except -1 nogil:
    """True if an allocation that found no memory, and that began with `moved` chunks, should choose again, perhaps
    after a wait.

    Without room below the maximum the allocation waits for the end of any call, which may have had some room reserved.
    With room, and no memory upstream, only another call's success is worth another try; otherwise calls that all fail
    would make each other try for ever.  A thread that is inside a call does not wait, for itself least of all.
    """
    check(pool.order.lock.held(), "the lock is held")
    cdef bint had_room = nbytes <= pool.maximum - pool.size
    while moved == chunks_moved_locked(pool):
        if pool.callers.empty() or is_calling_upstream_locked(pool):
            return False
        sleep_until_call_ended_unlocks(pool)
        if not had_room:
            break
    return True


cdef int sleep_until_call_ended_unlocks(PoolState* pool) except -1 nogil:
    """Sleep until a call ends, without the lock, and without the GIL, which callers of the C table may have and the
    call may need."""
    check(pool.order.lock.held(), "the lock is held")
    cdef uint32_t heard = pool.call_ended.heard()
    cdef PyThreadState* thread = NULL
    pool.order.lock.unlock()
    if PyGILState_Check():
        thread = PyEval_SaveThread()
    pool.call_ended.wait(heard)
    if thread != NULL:
        PyEval_RestoreThread(thread)
    pool.order.lock.lock()
    return 0
