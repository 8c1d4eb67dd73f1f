# Runtimes that ended while some of their memory could not be freed.
#
# A finalizer may run inside any capture, so it must not wait for the whole context: that would end the capture.
# Remains that need such a wait, or the end of a capture, are kept in a list of the process.  Calls that may wait finish
# them: a blocking reap on the same device, and the creation of the next runtime there.  Nothing is done at exit.
#
# A pool may be finalized before its runtime or after it.  The pool does not wait either: the remains have the pool.

cimport cython

from cpython.ref cimport PyObject, Py_DECREF, Py_XDECREF
from libc.stdint cimport uint64_t

from xlogmem._base.log import warn
from xlogmem._base.cpp cimport check, vector
from xlogmem._base.failures cimport NO_FAILURE, PYTHON_RAISED, format_failure
from xlogmem._base.index cimport destroy
from xlogmem._base.sections cimport Section
from xlogmem._core cimport CoreState, end_calls, hand_over, set_hooks, start_calls, switch_history, tear_down
from xlogmem._driver cimport Context, forget_at_forks
from xlogmem._foreign.objects cimport StreamRegistry
from xlogmem._order cimport Ordering
from xlogmem.resources.base cimport DeviceMemoryResource
from xlogmem.streams cimport StreamPool

cdef extern from *:
    """
    // Add a reference to an object that another thread may be ending.  With the GIL none is between the last reference
    // and `__dealloc__`.  Weak references to a core prepare it for this.
    static inline bool xlogmem_refer_again(PyObject* object) {
    #ifdef Py_GIL_DISABLED
        return PyUnstable_TryIncRef(object);
    #else
        Py_INCREF(object);
        return true;
    #endif
    }
    """
    bint refer_again "xlogmem_refer_again"(PyObject* what) noexcept


cdef list ended = []                        # what runtimes have left; each change is one step
cdef object keeping = object()              # whose section guards the next
cdef dict kept_whole = {}                   # resources of runtimes that a collector is at, by the address of the core


@cython.final
@cython.no_gc_clear                         # __dealloc__ needs what the state refers to
cdef class Remains:
    """The remains of an ended runtime: its blocks, and the objects needed to free them."""
    cdef CoreState state
    cdef Ordering ordering
    cdef DeviceMemoryResource resource
    cdef tuple others
    cdef StreamPool stream_pool
    cdef StreamRegistry streams             # it holds the owners of foreign streams
    cdef bint owners_live

    def __dealloc__(self):
        delete_tables(&self.state)


cdef int keep_whole(Core core) except -1:
    """Keep the resources of a runtime that a collector ends and that has memory left: the collector must not empty a
    resource before the remains have it, if the resource, or one below it, is written in Python."""
    cdef Section section
    section.begin(keeping)
    kept_whole[<size_t><void*>core] = core.resources
    return 0


cdef int keep_remains(Core core) except -1:
    """Keep the remains of a runtime that ends now."""
    cdef Remains remains = Remains.__new__(Remains)
    remains.ordering = core.ordering
    remains.resource = core.resource
    remains.others = core.others
    remains.stream_pool = core.stream_pool
    remains.streams = core.streams
    remains.owners_live = core.owners_live
    hand_over(&core.state, &remains.state)
    start_calls(&remains.state)
    ended.append(remains)
    return 0


cdef int finish_ended(Context context) except -1:
    """Free the remains of ended runtimes of this device.  The host may wait for the whole context.  `warn_of_ended`
    reports failures: a constructor that calls this has to go on."""
    cdef Remains remains
    cdef bint more
    for address in list(kept_whole):
        finish_kept_whole(context, address)
    for remains in [remains for remains in ended if (<Remains>remains).ordering.context is context]:
        try:
            ended.remove(remains)
        except ValueError:
            continue                                    # another thread is at it
        with nogil:
            more = tear_down(&remains.state, True, remains.owners_live, True)
        drop_owners_of(&remains.state)
        if more:
            ended.append(remains)
    return 0


cdef int warn_of_ended(Context context) except -1:
    """Warn, once for each failure, if a blocking reap failed to free the remains of ended runtimes."""
    cdef Remains remains
    cdef char[512] text
    for remains in [remains for remains in ended if (<Remains>remains).ordering.context is context]:
        if remains.state.unreported_failure.kind not in (NO_FAILURE, PYTHON_RAISED):
            format_failure(&remains.state.unreported_failure, text, sizeof(text))
            remains.state.unreported_failure.kind = NO_FAILURE
            warn(f"a runtime that ended has memory left, which could not be freed: {text.decode()}", RuntimeWarning)
    return 0


cdef int keep_no_longer(Core core) except -1:
    """Forget a runtime that ends for good; no other thread gets it from here on."""
    cdef Section section
    section.begin(keeping)
    kept_whole.pop(<size_t><void*>core, None)
    return 0


cdef Core kept_core(object address):
    """Return a runtime that is kept whole; None if it ended meanwhile, or ends just now."""
    cdef Section section
    section.begin(keeping)
    if address not in kept_whole or not refer_again(<PyObject*><size_t>address):
        return None
    core = <Core><PyObject*><size_t>address
    Py_DECREF(core)                                     # that of `refer_again`
    return core


cdef int finish_kept_whole(Context context, object address) except -1:
    """Finish a runtime that its resource refers to.  It lives on while the resource is kept; here it ends while the
    resource is whole."""
    cdef Core core = kept_core(address)
    cdef bint more
    if core is None:
        return 0
    if core.ordering.context is context:
        with nogil:
            more = tear_down(&core.state, False, core.owners_live, True)
        core.drop_owners()
        if not more:
            keep_no_longer(core)
    return 0


def report_to_check(size_t address):
    """Have runtimes that are made from now on report to the table at this address: see cpp/engine/hooks.hpp."""
    set_hooks(address)


recording = None                            # what is being recorded, for the messages of errors


def record_history(bint recorded, history=None):
    """Switch the recording of operations into the ring of `_history` on or off, for all runtimes.  When a call that
    switches it off returns, no runtime writes events.  `history` has `lines_of_block` and `beginnings_of_blocks`; see
    `xlogmem.history.Recording`."""
    global recording
    recording = history if recorded else None
    switch_history(recorded)


cdef str recorded_lines(uint64_t generation):
    """Return where a block was allocated and freed, a line each, if a history is being recorded."""
    known = recording
    return known.lines_of_block(generation) if known is not None else ""


def unfinished_runtimes():
    """Count the ended runtimes of this process that have memory left, which a later call has to free."""
    return len(ended) + len(kept_whole)


cdef int drop_owners_of(CoreState* core) except -1:
    """Drop the owners of adopted memory that the last operations freed.  Never called under the lock: a finalizer may
    do anything."""
    cdef vector[void*] owners
    cdef size_t i
    if not core.has_pending_decrefs:
        return 0
    if core.order.lock.try_lock():
        take_owners_locked(core, &owners)
        core.order.lock.unlock()
    else:
        with nogil:
            core.order.lock.lock()
            take_owners_locked(core, &owners)
            core.order.lock.unlock()
    for i in range(owners.size()):
        Py_XDECREF(<PyObject*>owners[i])
    return 0


cdef void take_owners_locked(CoreState* core, vector[void*]* owners) noexcept nogil:
    check(core.order.lock.held(), "the lock is held")
    owners[0] = core.pending_decrefs
    core.pending_decrefs.clear()
    core.has_pending_decrefs.store(False)


cdef int delete_tables(CoreState* core) except -1:
    """Delete the tables; nothing refers to them."""
    cdef size_t i
    if core.order != NULL:
        end_calls(core)
    if core.unreported_failure.kind == PYTHON_RAISED:
        Py_XDECREF(<PyObject*>core.unreported_failure.exception)
    for i in range(core.blocks.size()):
        Py_XDECREF(<PyObject*>core.blocks[i].owner)
        del core.blocks[i]
    for i in range(core.parts.size()):
        del core.parts[i]
    for i in range(core.windows.size()):
        del core.windows[i]
    for i in range(core.host_threads.size()):
        del core.host_threads[i]
    for i in range(core.caches.size()):
        forget_at_forks(&core.caches[i].cache_lock)
        del core.caches[i]
    destroy(&core.index)
    return 0
