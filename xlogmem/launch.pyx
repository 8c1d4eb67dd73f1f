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

from cuda.bindings cimport cydriver as cy
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
    NOT_PREPARED,
    READ,
    READ_WRITE,
    REFUSE_CONFLICTS,
    REFUSED,
    WAIT_FOR_CONFLICTS,
    WRITE,
    Block,
    Found,
    Outcome,
    Request,
    abandon,
    bring_in_locked,
    file_window_locked,
    finish_rest,
    is_still_locked,
    note_thread,
    prepare,
    prepare_at_once,
    prepare_rest,
    refuse_forked,
    return_window,
    take_window,
)
from xlogmem._driver cimport (
    is_peer_enabled,
    peer_access_of,
    pointer_device,
    pool_of_pointer,
    pool_open_to,
    process_is_closing,
    process_was_forked,
)
from xlogmem._failures cimport Failure, raise_failure
from xlogmem._foreign cimport provide_runtimes as provide_to_streams
from xlogmem._named cimport Extent, name_memory
from xlogmem._order cimport Ordering, OrderState, StreamState, current_thread, fail_elsewhere
from xlogmem._cpp cimport unlikely
from xlogmem.blocks cimport (
    BEYOND,
    READ_ONLY_HERE,
    RESERVE_WITH_GIL,
    SEVERAL,
    TRACKED,
    UNTRACKED,
    BlockId,
    BlockView,
    Core,
    DeviceBlock,
    Resolved,
    adopt_while_owned,
    contents_of,
    describe_beyond,
    described,
    for_each,
    resolver_of,
)
from xlogmem.streams cimport Stream, core_of, device_of, handle_of, parse

from xlogmem._driver import can_access_peer
from xlogmem._memory_owners import find_memory_owner
from xlogmem._stream_owners import find_current_streams, find_producer_stream
from xlogmem.errors import StreamMisuseError
from xlogmem.resources import AsyncMemoryResource, DirectMemoryResource
from xlogmem.resources.layers import layers_of

__all__ = ["LaunchRecorder", "use"]

cdef enum:
    READ_ACCESS = 1                         # CU_MEM_ACCESS_FLAGS_PROT_READ
    READ_WRITE_ACCESS = 3                   # CU_MEM_ACCESS_FLAGS_PROT_READWRITE

cdef extern from "Python.h":
    ctypedef struct PyTypeObject:
        pass
    PyTypeObject* Py_TYPE(PyObject* what)
    int Py_GetRecursionLimit()

include "launch/windows.pxi"                # the windows that recorders own
include "launch/recorder.pxi"               # LaunchRecorder: recorded, prepared, filed
include "launch/arguments.pxi"              # arguments become block identities
include "launch/untracked.pxi"              # and what is done with memory that is not tracked
include "launch/elsewhere.pxi"              # blocks of other devices, for which a launch has windows in their runtimes
include "launch/use.pxi"                    # `use`, and whose blocks it means
include "launch/quick.pxi"                  # `use` for what nearly all programs write
