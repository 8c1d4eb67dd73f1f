"""What Python holds of the core: runtimes, blocks, and their identities.

Thin shells.  They check what they are given, call one of `_core`'s operations, without the GIL unless it can be done at
once, and turn a failure into an exception; the rules are there.
"""
import enum
import time
import warnings
import weakref
from contextvars import ContextVar

cimport cython

from cpython.dict cimport PyDict_GetItem
from cpython.exc cimport PyErr_Clear, PyErr_Fetch, PyErr_Restore, PyErr_SetInterrupt
from cpython.long cimport PyLong_CheckExact
from cpython.number cimport PyIndex_Check, PyNumber_Index
from cpython.ref cimport Py_DECREF, Py_INCREF, Py_XDECREF, PyObject
from libc.stdint cimport SIZE_MAX, UINT64_MAX, uint8_t, uint32_t, uint64_t

from xlogmem._core cimport (
    DONE,
    FREED,
    LIVE,
    NOT_AT_ONCE,
    READ,
    READ_WRITE,
    REFUSED,
    RETIRED,
    UNKNOWN_ACCESS,
    CoreCounters,
    CoreState,
    Entry,
    Figures,
    Range,
    Request,
    add_export_locked,
    adopt,
    allocate,
    allocate_at_once,
    begin_peak,
    block_at,
    count_all_locked,
    defer_free,
    drain_by_itself,
    drain_if_abandoned,
    encode_for_check,
    end_calls,
    end_export,
    end_peak,
    fence_export,
    find_by_address_locked,
    find_from_locked,
    find_site_for_check,
    free_at_once,
    free_block,
    free_into_cache,
    hand_over,
    is_still_locked,
    keep_stack_of_free,
    look,
    look_at_block,
    look_at_streams,
    mark_lost_if_sticky,
    new_identity,
    peak_of,
    reap,
    record_use,
    see_generation_locked,
    set_hooks,
    start_calls,
    survey_locked,
    switch_history,
    tally_tags_locked,
    tear_down,
    use_caches,
    wait_for_block,
    wait_for_pending,
    wait_for_streams,
    watched,
)
from xlogmem._cpp cimport atomic, make_new, peek, push, unlikely, vector
from xlogmem._driver cimport (
    LEAF_LOCK,
    PER_THREAD,
    Context,
    Scope,
    enter_context,
    forget_at_forks,
    give_event,
    leave_context,
    memory_info,
    process_is_closing,
    take_at_forks,
)
from xlogmem._failures cimport (
    BLOCK_IS_AWAITED,
    BLOCK_IS_CONTESTED,
    BLOCK_IS_STALE,
    LOST,
    NO_FAILURE,
    PYTHON_RAISED,
    WAIT_IS_CIRCULAR,
    format_failure,
    raise_failure,
)
from xlogmem._index cimport destroy
from xlogmem._labels cimport Label, label_of_stack, label_of_tag, object_of, release, stack_for
from xlogmem._named cimport Extent, name_memory
from xlogmem._order cimport (
    count_cached_locked,
    ADAPTIVE,
    ALLOCATED,
    HAS_READ,
    LAZY,
    OPAQUE,
    ORDINARY,
    PRECISE,
    SEALED,
    WRITTEN,
    Ordering,
    OrderCounters,
    OrderState,
    StreamState,
    empty_caches_locked,
    is_of_former,
)
from xlogmem._foreign cimport StreamRegistry
from xlogmem._survey cimport Seen, SeenStream, SeenUser, Survey
from xlogmem.resources.base cimport (
    Allocation,
    DeviceMemoryResource,
    GuardTable,
    refuse_undeclared,
    settle,
    start_call_on,
)
from xlogmem.resources.pool cimport (
    PoolFigures,
    PoolMemoryResource,
    PoolState,
    figures_as_dict,
    read_figures_locked,
)
from xlogmem.resources.tally cimport Tally, forget_all
from xlogmem.streams cimport StreamPool, core_of, counted_handle, handle_of, parse

from xlogmem._stream_owners import find_owner
from xlogmem._tags import shown
from xlogmem._units import parse_size
from xlogmem.errors import StaleBufferError, StreamMisuseError, UseAfterFreeError, XlogmemError
from xlogmem.resources.layers import find_layer

__all__ = ["Access", "BlockId", "BlockState", "Core", "DeviceBlock", "PeakSpan", "Runtime", "enter_scope",
           "leave_scope", "live_by_tag", "register_resolver", "runtime_of", "survey", "unfinished_runtimes"]

cdef extern from "Python.h":
    size_t PyLong_AsSize_t(object number)       # SIZE_MAX, and an exception is set: it does not fit
    int Py_EnterRecursiveCall(const char* where) except *
    void Py_LeaveRecursiveCall()

include "blocks/resolvers.pxi"              # how objects of other types name their memory
include "blocks/named.pxi"                  # what an argument names that is not a block
include "blocks/exports.pxi"                # what consumers released
include "blocks/handles.pxi"                # Access, BlockState, BlockId, DeviceBlock, BlockView
include "blocks/ended.pxi"                  # runtimes that ended with something left
include "blocks/memory.pxi"                 # allocate, free and adopt
include "blocks/scopes.pxi"                 # tags for allocations that name none
include "blocks/adoptions.pxi"              # memory that is tracked until its owner ends
include "blocks/empty.pxi"                  # blocks of no bytes
include "blocks/survey.pxi"                 # what there is at one moment; words for errors
include "blocks/core.pxi"                   # Core: what a runtime is made of
include "blocks/peaks.pxi"                  # the most that was live in a span of time
include "blocks/runtime.pxi"                # Runtime: the operations
