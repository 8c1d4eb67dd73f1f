# Work deferred until a thread has the GIL: dropping a runtime whose hold was closed, dropping owners of adopted memory,
# writing lines to the log.
#
# The interpreter's main thread runs this work as a pending call, when it comes to one.  The next `open` runs it too.
# Threads of C++ may go on when the interpreter exits and is gone.  From then on nothing is requested of it.

import atexit

from cpython.ref cimport Py_DECREF
from libc.stdint cimport uint32_t, uint64_t
from libc.stdio cimport snprintf
from posix.unistd cimport usleep

from xlogmem._base.log import logger
from xlogmem._base.texts import printable
from xlogmem._base.cpp cimport atomic, flag, make_new, push, vector
from xlogmem._base.labels cimport release
from xlogmem._base.locks cimport mutex
from xlogmem._base.sections cimport Section
from xlogmem._driver cimport LEAF_LOCK, process_was_forked, take_at_forks
from xlogmem.blocks cimport Core


ctypedef int (*DeferredCall)(void*) noexcept        # has the GIL

cdef extern from "Python.h":
    int Py_AddPendingCall(DeferredCall function, void* argument) nogil
    void* PyGILState_GetThisThreadState() nogil


cdef struct LogLine:
    char text[256]


cdef cppclass DeferredCalls:
    atomic[uint32_t] scheduled          # the interpreter was requested to run them
    atomic[RuntimeHold*] closed         # holds to release
    mutex lock                          # a leaf; of what follows
    vector[RuntimeHold*] with_owners    # whose runtimes have owners of adopted memory to drop
    vector[LogLine] log_lines
    uint64_t left_out                   # lines that were not kept
    flag interpreter_exits
    atomic[uint32_t] inside             # calls that need the interpreter

cdef DeferredCalls* deferred = make_new[DeferredCalls]()      # never destroyed: threads may outlive the interpreter
take_at_forks(&deferred.lock, LEAF_LOCK)


cdef object collecting = object()           # whose section finds no hold that another thread is releasing


cdef void schedule_deferred() noexcept nogil:
    if deferred.scheduled.exchange(1) == 0 and enter_interpreter():
        if Py_AddPendingCall(run_deferred, NULL):
            deferred.scheduled.store(0)         # the queue is full: the next deferred call tries again
        leave_interpreter()


cdef bint enter_interpreter() noexcept nogil:
    """Begin what needs the interpreter.  False: it exits.  Else `leave_interpreter` follows."""
    deferred.inside.fetch_add(1)                # before the look: `_exit` does both in the other order
    if not deferred.interpreter_exits:
        return True
    leave_interpreter()
    return False


cdef void leave_interpreter() noexcept nogil:
    deferred.inside.fetch_sub(1)


@atexit.register
def _exit():
    """Let no thread enter the interpreter from now on.  Those that are inside leave it, unless they wait for long: a
    thread that wants the GIL of an interpreter that is gone would be ended, or crash."""
    cdef uint32_t waited = 0
    deferred.interpreter_exits.store(True)
    with nogil:
        while deferred.inside.load() and waited < <uint32_t>LONGEST_EXIT and not process_was_forked():
            usleep(1000)
            waited += 1


cdef RuntimeHold* take_deferred(list cores, vector[LogLine]& log_lines, uint64_t* left_out) noexcept:
    """Take the holds that were closed, the lines of the log, and the cores that have owners to drop."""
    cdef Section section
    cdef RuntimeHold* hold
    cdef vector[RuntimeHold*] with_owners
    cdef size_t i
    section.begin(collecting)
    deferred.scheduled.store(0)
    hold = deferred.closed.exchange(NULL)       # first: a hold that is among these has come to the other list before
    deferred.lock.lock()                        # a leaf, never held for long
    log_lines = deferred.log_lines
    deferred.log_lines.clear()
    left_out[0] = deferred.left_out
    deferred.left_out = 0
    with_owners = deferred.with_owners
    deferred.with_owners.clear()
    deferred.lock.unlock()
    for i in range(with_owners.size()):         # their holds are released after this section
        cores.append(<object>with_owners[i].owner)
    return hold


cdef int run_deferred(void* _) noexcept:
    """Release the holds that were closed, drop owners, and write the log.  Called with the GIL."""
    cdef RuntimeHold* following
    cdef vector[LogLine] log_lines
    cdef uint64_t left_out
    cdef list cores = []                        # first: a collection may run here
    cdef RuntimeHold* hold = take_deferred(cores, log_lines, &left_out)
    cdef size_t i
    for core in cores:                          # runs finalizers, and so other threads, which may release these holds
        (<Core>core).drop_owners()
    while hold != NULL:
        following = hold.next
        with nogil:
            leave_streams(hold)
        Py_DECREF(<object>hold.owner)
        release(hold.tag)
        del hold
        hold = following
    for i in range(log_lines.size()):
        logger().error("%s", printable(log_lines[i].text.decode(errors="replace")))
    if left_out:
        logger().error("and %d more", left_out)
    return 0


cdef void release_later(RuntimeHold* hold) noexcept nogil:
    push(deferred.closed, hold)
    schedule_deferred()


cdef void drop_owners_later(RuntimeHold* hold) noexcept nogil:
    """Drop the owners of adopted memory that a call through this hold has freed."""
    cdef size_t i
    cdef bint listed = False
    deferred.lock.lock()
    for i in range(deferred.with_owners.size()):
        listed = listed or deferred.with_owners[i] == hold
    if not listed:
        deferred.with_owners.push_back(hold)
    deferred.lock.unlock()
    schedule_deferred()


cdef void log_later(const char* text) noexcept nogil:
    cdef LogLine line
    snprintf(line.text, sizeof(line.text), "%s", text)
    deferred.lock.lock()
    if deferred.log_lines.size() < <size_t>LOG_LINES:
        deferred.log_lines.push_back(line)
    else:
        deferred.left_out += 1
    deferred.lock.unlock()
    schedule_deferred()
