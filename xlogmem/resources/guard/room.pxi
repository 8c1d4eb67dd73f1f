# Out of memory upstream: memory in quarantine, or on its way upstream, makes room.
#
# Freed memory that another thread keeps (the thread returns it, or has pinned it for a check) cannot be found, although
# it is not in use.  So an allocation waits for such threads before it is refused: as in the pool, see pool/calls.pxi.

from libc.stdint cimport uint32_t, uint64_t

from xlogmem._base.failures cimport Failure, drop_exception, is_out_of_memory
from xlogmem._order cimport this_thread
from xlogmem.resources.base cimport Allocation


cdef extern from "Python.h":
    ctypedef struct PyThreadState
    bint PyGILState_Check() nogil
    PyThreadState* PyEval_SaveThread() nogil
    void PyEval_RestoreThread(PyThreadState* thread) nogil

cdef enum:
    ATTEMPTS = 16               # others may take what was returned; one that is too large for upstream never fits


cdef int allocate_or_empty(GuardState* guard, Allocation* given, Failure* failure) except -1 nogil:
    """Allocate upstream; freed memory that was not returned upstream yet is returned before the allocation fails."""
    cdef uint64_t returns
    cdef int _attempt
    for _attempt in range(ATTEMPTS):
        guard.lock.lock()
        returns = guard.returns
        guard.lock.unlock()
        if not allocate_upstream(guard, given, failure):
            return 0
        if not is_out_of_memory(failure) or not make_room(guard, returns):
            return 1
        drop_exception(failure)
    return allocate_upstream(guard, given, failure)


cdef bint make_room(GuardState* guard, uint64_t returns) except -1 nogil:
    """Make room after an allocation found no memory; `returns` is the number of returns when it began.  True if the
    caller has to try again."""
    cdef Failure ignored
    cdef bint more
    if empty_quarantine(guard, &ignored):
        drop_exception(&ignored)
    guard.lock.lock()
    more = wait_for_keepers_unlocks(guard)
    more = more or guard.returns != returns
    guard.lock.unlock()
    return more


cdef bint wait_for_keepers_unlocks(GuardState* guard) except -1 nogil:
    """Wait until the threads that keep memory now have ended keeping it.  True if there were any.  A thread that keeps
    memory itself does not wait: a resource upstream may allocate from the guard inside a free."""
    cdef uint64_t newest = guard.keeps
    cdef bint waited = False
    while others_keep_locked(guard, newest):
        sleep_until_kept_unlocks(guard)
        waited = True
    return waited


cdef bint others_keep_locked(GuardState* guard, uint64_t newest) noexcept nogil:
    cdef bint others = False
    cdef size_t i
    for i in range(guard.keepers.size()):
        if guard.keepers[i].thread == this_thread():
            return False
        others |= guard.keepers[i].number <= newest
    return others


cdef int sleep_until_kept_unlocks(GuardState* guard) except -1 nogil:
    """Sleep without the lock, and without the GIL, which callers of the C table may have and the keepers may need."""
    cdef uint32_t heard = guard.kept.heard()
    cdef PyThreadState* thread = NULL
    guard.lock.unlock()
    if PyGILState_Check():
        thread = PyEval_SaveThread()
    guard.kept.wait(heard)
    if thread != NULL:
        PyEval_RestoreThread(thread)
    guard.lock.lock()
    return 0
