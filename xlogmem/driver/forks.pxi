# Forks: the child of a process that had started the driver is refused, and finds no lock held.
#
# CUDA cannot be used in such a child.  And a child has one thread: a lock that another thread of its parent held would
# stay locked, and the tables behind the lock half changed.  So a fork first locks every `mutex` of the package, and
# unlocks them afterwards in both processes.  That does not take long, because no `mutex` is held during a driver call
# or by a thread that wants the GIL.  Locks of Python code may be held for any length of time: they are `ProcessLock`s,
# which refuse the child before they wait.

import threading

cimport cython

from xlogmem._base.failures import FORKED
from xlogmem._base.sections cimport Section
from xlogmem.errors import DriverError


cdef extern from "<pthread.h>" nogil:
    int pthread_atfork(void (*prepare)() noexcept nogil, void (*parent)() noexcept nogil,
                       void (*child)() noexcept nogil)


cdef cppclass Locks:
    mutex changes               # of the lists
    vector[mutex*] outer        # of runtimes; a thread holds one at a time
    vector[mutex*] leaves       # taken under one of those or alone; no other is taken under them

cdef Locks* locks = make_new[Locks]()             # never destroyed: threads may outlive the interpreter
cdef bint driver_started = False            # or is about to be
cdef bint child_is_refused = False          # this is the child of a process that had started the driver
cdef int forks = 0                          # that led to this process


cdef bint process_was_forked() noexcept nogil:
    """True if this is the child of a process that had started the driver."""
    return child_is_refused


cdef void take_at_forks(mutex* lock, LockLevel level) noexcept nogil:
    """Have forks take a new lock, until `forget_at_forks`."""
    locks.changes.lock()
    if level == OUTER_LOCK:
        locks.outer.push_back(lock)
    else:
        locks.leaves.push_back(lock)
    locks.changes.unlock()


cdef void forget_at_forks(mutex* lock) noexcept nogil:
    """Have forks take the lock no more: it ends."""
    locks.changes.lock()
    remove_lock(&locks.outer, lock)
    remove_lock(&locks.leaves, lock)
    locks.changes.unlock()


cdef void remove_lock(vector[mutex*]* known, mutex* lock) noexcept nogil:
    cdef size_t i
    for i in range(known.size()):
        if known[0][i] == lock:
            known[0][i] = known.back()
            known.pop_back()
            return


cdef void before_fork() noexcept nogil:
    cdef size_t i
    locks.changes.lock()
    for i in range(locks.outer.size()):
        locks.outer[i].lock()
    for i in range(locks.leaves.size()):
        locks.leaves[i].lock()


cdef void after_fork() noexcept nogil:
    cdef size_t i
    for i in range(locks.leaves.size()):
        locks.leaves[i].unlock()
    for i in range(locks.outer.size()):
        locks.outer[i].unlock()
    locks.changes.unlock()


cdef void in_child() noexcept nogil:
    global child_is_refused, forks
    child_is_refused = driver_started
    forks += 1
    after_fork()


pthread_atfork(before_fork, after_fork, in_child)


# ---------------------------------------------------------------------------------------------- locks of Python code
@cython.final
cdef class ProcessLock:
    """A re-entrant lock of Python code, which refuses a forked child instead of waiting for a thread that is not there.

    As a context manager it returns the number of times that the thread has entered it by now.  It is compiled, so that
    an interrupt cannot come between taking the lock and the ``with`` statement that releases it.

    Raises
    ------
    DriverError
        On entry: the process was forked from one that had started the driver.
    """

    cdef object lock
    cdef int generation                     # forks before `lock` was made
    cdef int depth                          # of the thread that holds it

    def __cinit__(self):
        self.lock = threading.RLock()       # the collector may run inside, and finalizers may take it again
        self.generation = forks

    def __enter__(self):
        self.acquire()
        return self.depth

    def __exit__(self, kind, exception, traceback):
        self.release()

    def acquire(self):
        """See `__enter__`."""
        if self.generation != forks:
            if child_is_refused:
                raise DriverError(FORKED)
            self.lock = threading.RLock()
            self.generation = forks
            self.depth = 0
        self.lock.acquire()
        self.deepen(1)

    def release(self):
        """See `__exit__`."""
        cdef Section section
        section.begin(self)
        self.lock.release()                 # keeps the GIL, or the section
        self.depth -= 1

    cdef int deepen(self, int change) except -1:
        cdef Section section
        section.begin(self)
        self.depth += change
        return 0

    # Methods that `threading.Condition` needs of a re-entrant lock.
    def locked(self):                       # from Python 3.14 on
        return self.depth != 0

    def _is_owned(self):
        return self.lock._is_owned()

    def _release_save(self):
        depth, self.depth = self.depth, 0
        return depth, self.lock._release_save()

    def _acquire_restore(self, saved):
        self.lock._acquire_restore(saved[1])
        self.depth = saved[0]
