"""Runtimes, blocks, and their identities, as Python objects.

Thin shells.  They check their arguments, call one operation of `_core`, without the GIL unless it can be done at once,
and turn a failure into an exception; the rules are in `_core`.
"""

__all__ = ["Access", "BlockId", "BlockState", "Core", "DeviceBlock", "PeakSpan", "Runtime", "enter_scope",
           "in_scope", "leave_scope", "live_by_tag", "register_resolver", "runtime_of", "survey", "unfinished_runtimes"]

cdef extern from "Python.h":
    size_t PyLong_AsSize_t(object number)       # SIZE_MAX, and an exception is set: it does not fit
    int Py_EnterRecursiveCall(const char* where) except *
    void Py_LeaveRecursiveCall()

include "blocks/resolvers.pxi"  # resolvers: memory of objects of other types
include "blocks/named.pxi"      # blocks of arguments that are no blocks
include "blocks/exports.pxi"    # releases of exported memory
include "blocks/handles.pxi"    # Access, BlockState, BlockId, DeviceBlock, BlockView
include "blocks/ended.pxi"      # runtimes that ended with live blocks
include "blocks/memory.pxi"     # allocate, free and adopt
include "blocks/many.pxi"       # batches of these: several blocks by one call
include "blocks/scopes.pxi"     # default tags of allocations
include "blocks/adoptions.pxi"  # adopted memory: tracked until its owner ends
include "blocks/empty.pxi"      # blocks of zero bytes
include "blocks/survey.pxi"     # snapshots; block descriptions for error messages
include "blocks/core.pxi"       # Core: the parts of a runtime
include "blocks/peaks.pxi"      # peaks of live bytes during a span
include "blocks/runtime.pxi"    # Runtime: the operations
