"""Who may touch which memory: blocks, windows and frees.  The heart of xlogmem; read this page first.

A *block* is one allocation.  Its *generation* is a number that no other block of the process ever has: addresses come
back, generations do not, so a handle that outlived its block is never taken for the block that has the address now.

A *use* is a launch that reads or writes blocks on some stream.  It has a *window*: ``prepare`` opens it before the
launch and queues the waits that make the launch right; ``finish`` closes it after the launch and files what happened.
While a window is open on a block the block cannot be freed: a free that is requested meanwhile is carried out by the
last close.  A launch can be ordered only after launches that are filed, so one that conflicts with an open window on
another stream (one of the two writes) waits on the host until that window closes.

The program itself reads and writes memory that the host reaches, too: page-locked, or managed.  An *access by the host*
has a window, and the host waits for what a launch would be ordered after.  Its close files nothing, because whatever is
queued after it begins after it.  Memory that is allocated *for the host* has no stream and no entries: the host has
seen all former uses of it complete, so its first access waits for nothing.

What is filed is the *frontier* of a block: for each kind of access (allocated, written, has-read) and each stream, the
newest position that the next user has to be ordered after.  A reader is ordered after the allocation and the writers, a
writer or a free after all.  A writer's finish removes the entries that its own prepare was ordered after (its
*snapshot*), if they have not changed since, and no others: a reader that came in between is not forgotten.  So a
frontier holds at most one entry per kind and stream, however often the block is used, and a use costs no event: a
position is a number, and `_order` records events only where a stream has to wait for another one.

A launch may name ranges of a block.  Then the block is cut into *parts*, each with windows and a frontier of its own,
so that launches on disjoint ranges do not wait for each other.  Whatever means all of the block joins the parts first.

Programs fill new memory without recording it.  So until a use on another stream has been filed, a block is *fresh*: its
entries on its own stream are raised to a new position of that stream before another stream is ordered after them, which
covers all work that was queued there so far, and once more when that first use is filed.  Streams on which unrecorded
work may be queued at any time (cuDF's) are *opaque*: the same holds for all entries of such a stream, and the stream
itself is ordered after each use elsewhere of a block that will be freed there (the *hand-back*), because its owner does
not wait by itself.

A runtime has a resource of its own, and allocations may name others: a block knows where its memory came from, and goes
back there.  A resource may keep frontiers itself (the pool does): then a free passes the block's frontier on with the
bytes and makes no driver call, and the next owner of the bytes is ordered after it.  With other resources too a free
makes no stream wait if the block was used on its home alone, which is ordered after its own work.  A resource
that knows no streams (page-locked or managed memory without a pool) gets idle memory: the host waits before the free.

Foreign memory can be *adopted*: it is tracked like a block, and its owner is dropped where a block would be freed.
Foreign streams (recognised in `_foreign`) can be destroyed: blocks whose *home* (where they are freed) was unregistered
are freed on its *successor*.  Memory can be *exported* to another library: the consumer may queue unrecorded work on
its stream until it releases the export, so for this block that stream counts as opaque, and a *pin* puts a free off
until then.  A graph pins its blocks until it is closed; while it is captured, adopted memory stands in for them in a
core of the capture's own (core/graphs.pxi).

Locks.  One lock guards a runtime: the tables of this room and of `_order`.  Under it no driver call is made, the GIL is
not acquired and no Python object is touched; and no thread waits for it while it holds the GIL.  Every operation is a C
function that runs without the GIL, holds the lock for its bookkeeping alone and drops it around driver calls.  What
waits for nothing is done with the GIL, if the lock is free (core/at_once.pxi).  An open window, a pin or the state
FREEING protects what must not change meanwhile.  Finalizers of blocks and recorders never take the lock: they push on a
lock-free list, which the next operation drains.  Names say what a function does with the lock: see `_core.pxd`.

Where a pool hands out memory again that only one stream has used, or that the host has seen idle, even that lock is not
needed: each stream, and the host, has a cache of what it freed, with a lock of its own, and blocks from there are known
to the cache alone until an operation needs them (`core/caches.pxi`).

Handles.  Block structures are never moved or freed while their core lives; a handle is a slot and a generation, and is
valid if the slot still has that generation.
"""

cdef enum:
    EAGER_COMMITS = 64          # commits that record at once after a launch elsewhere had to wait (adaptive)
    SOME_BLOCKS = 16            # of a launch; where readers overlap, more are merged
    RESERVE = 64                # windows kept for the next recorders

cdef atomic[uint64_t] generations           # of this process, shared by all devices and resources

# The pages, in the order of reading.  The life of a block:
include "core/frontier.pxi"             # frontiers: the positions that the next user has to be ordered after
include "core/parts.pxi"                # blocks of which launches name ranges
include "core/prepare.pxi"              # before a launch: opens windows, queues waits
include "core/finish.pxi"               # after a launch: files the use, closes windows
include "core/allocate.pxi"             # allocation and adoption
include "core/free.pxi"                 # frees, and where they wait
include "core/deferred.pxi"             # frees queued by finalizers, and failed frees to retry
include "core/export.pxi"               # exported memory (DLPack, CAI, Arrow): pins and releases
include "core/graphs.pxi"               # blocks that a graph holds, and their stand-ins while it is captured
include "core/host.pxi"                 # accesses by the host: windows that file nothing
include "core/complete.pxi"             # queries: True if the work on a block is complete
# Launches that conflict:
include "core/contested.pxi"            # a launch waits on the host for one that is not filed yet
include "core/circles.pxi"              # deadlock detection between waiting launches
# Fast paths of the above:
include "core/caches.pxi"               # caches of freed blocks, of streams and of the host
include "core/cache_ends.pxi"           # opening, emptying, closing and counting of these caches
include "core/by_handle.pxi"            # operations of the C table: lock once, look up by handle
include "core/at_once.pxi"              # operations that wait for nothing and keep the GIL
include "core/many.pxi"                 # batches: several blocks by one call
# What others see:
include "core/accounting.pxi"           # pending bytes, lookup by address, the end of a runtime
include "core/peaks.pxi"                # peaks of live bytes
include "core/survey.pxi"               # snapshots
include "core/watched.pxi"              # hooks for `xlogmem check`
include "core/recorded.pxi"             # events of a recorded history
