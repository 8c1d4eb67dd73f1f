"""The C table: the core for callers without the GIL.

``include/xlogmem.h`` is the promise to its callers, and says what each function does.  Nothing here knows RMM; its
binding (``xlogmem.rmm``) is one that keeps to the header.

Threads of C++ programs may hold locks of their own, so nothing here takes the GIL, finalizers least of all.  Work that
needs it (dropping a runtime, writing to the log) is deferred: the interpreter's main thread runs it as a pending call,
or the next `open` does.

Streams come as bare handles.  They become opaque, unless the program named another discipline, because the caller
enqueues work that is not recorded.  Which registration a handle means is found by `_foreign`.
"""

from cpython.pycapsule cimport PyCapsule_New
from cpython.ref cimport Py_DECREF, Py_INCREF
from cuda.bindings cimport cydriver as cy
from libc.stdint cimport uint32_t, uint64_t
from libc.stdio cimport snprintf
from libc.string cimport strlen

from xlogmem._abi cimport (
    XLOGMEM_FAILED,
    XLOGMEM_NOT_FOUND,
    XLOGMEM_OUT_OF_MEMORY,
    XLOGMEM_TABLE,
    XLOGMEM_TABLE_VERSION,
    XLOGMEM_TEXT,
    xlogmem_error,
    xlogmem_runtime,
    xlogmem_table,
)
from xlogmem._core cimport (
    CAPTURE_WAS_CHECKED,
    CHECK_CAPTURE,
    RELEASE_STREAM,
    KEEP_STREAM_BUSY,
    UNKNOWN_ACCESS,
    Block,
    CaptureCheck,
    CoreState,
    Figures,
    Found,
    StreamCache,
    allocate_by_handle,
    allocate_from_cache,
    allocate_in_call,
    count_all_locked,
    drain,
    drop_exception_locked,
    file_unprepared_unlocks,
    find_by_address_locked,
    find_site_for_check,
    free_at_into_cache,
    free_by_handle,
    free_block,
    free_found_unlocks,
    free_without_wait,
    goes_slowly,
    keep_stack_of_free,
    may_allocate_at,
    keep_unreported_locked,
    live_block_at_locked,
    mark_lost_if_sticky,
    refuse_lost,
    requeue_free_locked,
)
from xlogmem._cpp cimport atomic, check, make_new, push, unlikely, vector
from xlogmem._driver cimport (
    LEAF_LOCK,
    LEGACY,
    PER_THREAD,
    Scope,
    enter_context,
    leave_context,
    process_is_closing,
    process_was_forked,
    stream_is_capturing,
    take_at_forks,
)
from xlogmem._failures cimport (
    DRIVER_FAILED,
    OUT_OF_BUDGET,
    PYTHON_RAISED,
    STREAM_IS_CAPTURING,
    Failure,
    UnderWay,
    fail_resource,
    fail_stream,
    format_failure,
    is_out_of_memory,
    is_put_off,
    put_back,
    set_aside,
)
from xlogmem._foreign cimport Identified, identify_unlocks
from xlogmem._labels cimport Label, label_of_stack, release
from xlogmem._locks cimport mutex
from xlogmem._order cimport (
    OPAQUE,
    Fence,
    OrderState,
    StreamState,
    advance,
    host_wait_unlocks,
    may_be_destroyed,
    own_stream_locked,
    record_fence_unlocks,
    this_thread,
)
from xlogmem.blocks cimport Core
from xlogmem.resources.base cimport Allocation, start_call, start_call_on

from xlogmem._log import logger

__all__ = ["table"]

cdef enum:
    LOG_LINES = 32              # kept for the log until a thread has the GIL
    LARGE = 4 << 20             # bytes that count as one more of them


include "table/streams.pxi"             # runtimes that are held, and the streams that were named through a hold
include "table/deferred.pxi"            # what needs the GIL, later
include "table/functions.pxi"           # the functions of the table
