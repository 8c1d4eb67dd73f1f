# Exports that their consumers released: a list that deleters push on and that holders of the GIL collect.
#
# A consumer's deleter (DLPack, Arrow) may run on any thread, at any time, so it does nothing but push.

from cpython.ref cimport Py_DECREF
from libc.stdint cimport uint32_t

from xlogmem._base.cpp cimport atomic, make_new, push
from xlogmem._core cimport end_export, end_export_at_once
from xlogmem._driver cimport give_event, process_is_closing


cdef extern from "Python.h":
    int Py_AddPendingCall(int (*function)(void*) noexcept, void* argument) nogil

cdef cppclass ReleasedExports:
    atomic[Export*] exports                 # newest first
    atomic[uint32_t] scheduled              # the interpreter will collect them

cdef ReleasedExports* released_exports = make_new[ReleasedExports]()  # never destroyed: threads may outlive the end


cdef void release_export(Export* export) noexcept nogil:
    """Release an export.  For deleters, which call this on any thread, with or without the GIL, at any time: no lock,
    no driver call, no wait.  The main thread of the interpreter collects the export, or the next call that needs memory
    does; at its end the process frees everything."""
    push(released_exports.exports, export)
    if process_is_closing():
        return
    if released_exports.scheduled.exchange(1) == 0 and Py_AddPendingCall(collect_pending, NULL):
        released_exports.scheduled.store(0)             # its queue is full: the next release schedules it


cdef int collect_pending(void* _) noexcept:
    released_exports.scheduled.store(0)
    if not process_is_closing():
        collect_exports()
    return 0


cdef inline int collect_exports() except -1:
    """File the uses of released exports, and drop their blocks.  Called with the GIL."""
    return collect_released() if released_exports.exports.load() != NULL else 0


cdef int collect_released() except -1:
    cdef Export* export
    cdef Export* following
    cdef Core core
    cdef DeviceBlock block
    export = released_exports.exports.exchange(NULL)
    while export != NULL:
        following = export.next
        if export.block != NULL:
            block = <DeviceBlock>export.block
            core = block.core
            if not end_export_at_once(&core.state, block.block, block.generation, export.stream, export.access):
                with nogil:
                    end_export(&core.state, block.block, block.generation, export.stream, export.access)
            if export.event != NULL:
                with nogil:
                    give_event(export.events, export.event)
            Py_DECREF(block)
            block = core = None
        export.destroy(export.shell)
        export = following
    return 0
