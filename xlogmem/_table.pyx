"""The C table: the core for callers without the GIL.

``include/xlogmem.h`` is the promise to its callers, and documents each function.  Nothing here knows RMM; RMM's binding
(``xlogmem.rmm``) is a caller that keeps to the header.

Threads of C++ programs may hold locks of their own, so nothing here takes the GIL, finalizers least of all.  Work that
needs it (dropping a runtime, writing to the log) is deferred: the interpreter's main thread runs it as a pending call,
or the next `open` does.

Streams come as bare handles.  An allocation or a free makes them opaque, unless the program named another discipline,
because the caller enqueues work that is not recorded; a use leaves them as they are.  `_foreign` finds the registration
that a handle means.
"""

__all__ = ["name_memory", "table"]

cdef enum:
    LOG_LINES = 32              # kept for the log until a thread has the GIL
    LARGE = 4 << 20             # bytes that count as one more of them
    LONGEST_EXIT = 1000         # ms that an exit waits for calls that need the interpreter


include "table/streams.pxi"    # runtimes held through the table, and their streams
include "table/deferred.pxi"   # work deferred until a thread has the GIL, and the end of the interpreter
include "table/uses.pxi"       # uses, and streams that live
include "table/host.pxi"       # accesses by the host
include "table/elsewhere.pxi"  # uses of memory of other devices, and uses in captures
include "table/graphs.pxi"     # captures and graphs
include "table/many.pxi"       # batches
include "table/functions.pxi"  # the functions of the table
