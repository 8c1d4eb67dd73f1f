"""What users wrap their launches in: `use`, and the `LaunchRecorder` behind it.

A recorder collects what one launch touches, has the core prepare it before the launch, and files it afterwards.  It
turns objects into block identities and knows nothing of waits and events.

A use comes with every launch, so what nearly all programs write, streams and blocks of one runtime, is as cheap as an
empty context manager: no dictionary of arguments, recorders and windows that were used before, one call of the core on
entry and one on exit, both with the GIL where nothing has to wait (core/at_once.pxi).
"""
import warnings
import weakref

cimport cython

from cpython.exc cimport PyErr_Fetch, PyErr_Restore
from cpython.list cimport PyList_GET_ITEM, PyList_GET_SIZE
from cpython.ref cimport PyObject
from cpython.tuple cimport PyTuple_GET_ITEM, PyTuple_GET_SIZE
from libc.stdint cimport uint64_t

from xlogmem._core cimport (
    CANCELLED,
    COUNT_CONFLICTS,
    DONE,
    HAND_BACK_ALL,
    HAND_BACK_WRITES,
    LAUNCHED,
    NO_THREAD,
    NOT_AT_ONCE,
    READ,
    READ_WRITE,
    REFUSE_CONFLICTS,
    REFUSED,
    WAIT_FOR_CONFLICTS,
    WRITE,
    Found,
    Outcome,
    Request,
    abandon,
    file_window_locked,
    finish_rest,
    note_thread,
    prepare,
    prepare_at_once,
    prepare_rest,
    refuse_forked,
    return_window,
    take_window,
)
from xlogmem._driver cimport process_is_closing, process_was_forked
from xlogmem._failures cimport Failure, raise_failure
from xlogmem._named cimport Extent, name_memory
from xlogmem._order cimport OrderState, current_thread
from xlogmem.blocks cimport (
    BEYOND,
    READ_ONLY_HERE,
    RESERVE_WITH_GIL,
    SEVERAL,
    TRACKED,
    UNTRACKED,
    BlockView,
    Core,
    DeviceBlock,
    Resolved,
    adopt_while_owned,
    contents_of,
    describe_beyond,
    for_each,
    resolver_of,
)
from xlogmem.streams cimport Stream, core_of, device_of, handle_of, parse

from xlogmem._memory_owners import find_memory_owner
from xlogmem._stream_owners import find_current_streams, find_producer_stream
from xlogmem.errors import StreamMisuseError

__all__ = ["LaunchRecorder", "use"]

cdef extern from "Python.h":
    ctypedef struct PyTypeObject:
        pass
    PyTypeObject* Py_TYPE(PyObject* what)
    int Py_GetRecursionLimit()

include "launch/windows.pxi"                # the windows that recorders own
include "launch/recorder.pxi"               # LaunchRecorder: recorded, prepared, filed
include "launch/arguments.pxi"              # arguments become block identities
include "launch/untracked.pxi"              # and what is done with memory that is not tracked
include "launch/use.pxi"                    # `use`, and whose blocks it means
include "launch/quick.pxi"                  # `use` for what nearly all programs write
