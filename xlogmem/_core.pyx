"""Who may touch which memory: blocks, windows and frees.  The heart of xlogmem; read this page first.

A *block* is one allocation.  Its *generation* is a number that no other block of the process ever has: addresses come
back, generations do not, so a handle that outlived its block is told apart from the block that lives at the same
address now.

A *use* is a launch that reads or writes blocks on some stream.  It has a *window*: ``prepare`` opens it before the
launch and queues the waits that make the launch right; ``finish`` closes it after the launch and files what
happened.  While a window is open on a block the block cannot be freed: a free capture_checked for meanwhile is carried out by
the last close.

What is filed is the *frontier* of a block: for each kind of access (allocated, written, has-read) and each stream,
the newest position that the next user has to be ordered after.  A reader is ordered after the allocation and the
writers, a writer or a free after all.  A writer's finish removes the entries that its own prepare was ordered after
(its *snapshot*), if they have not changed since, and no others: a reader that slipped in between is not skipped.
So a frontier holds at most one entry per kind and stream, however often the block is used, and a use costs no
event: a position is a number, and `_order` records events only where a stream has to wait for another one.

People fill new memory without telling anybody.  So until a use on another stream has been filed, a block is
*fresh*: its entries on its own stream are raised to a new position of that stream before anybody else is ordered
after them, which covers whatever was queued there so far.  Streams whose owner queues work on blocks at any time
(cuDF's) are *opaque*: the same holds for all entries of such a stream as long as it is that, and the stream itself is
ordered after each use elsewhere of a block that will be freed there (the *hand-back*), because its owner cannot be told
to wait.

A resource may keep frontiers itself (the pool does): then a free hands the block's over with the bytes and makes no
driver call, and whoever gets the bytes next is ordered after it.  Without such a resource most frees make nobody wait
either: a block that was only used where it is freed goes the short way (``used_at_home_alone_locked``).

Memory that somebody else allocated can be *adopted*: it is tracked like a block, and where a block would be freed its
owner is let go.  Streams may be somebody else's too and may die: a block whose home died is freed on the *successor*.
Memory can be *lent* to others, who work on it on a stream that they named, at any time and without telling: for this
block the stream counts as opaque, and a *pin* puts the free off until they give it back.

Locks.  One lock guards a runtime: this room's tables and `_order`'s.  Under it there is no driver call, no GIL and
no Python object.  Every operation here is a C function that runs without the GIL, does its bookkeeping in one
acquisition and makes its driver calls outside.  What must not change meanwhile is protected by an open window, a
pin or the state FREEING.  Finalizers never take the lock: they push what they held on a lock-free list, which the
next operation drains.

Handles.  Block structures are never moved or freed while their core lives; a handle is a slot and a generation, and is
valid if the slot still has that generation.
"""
from cuda.bindings cimport cydriver as cy

from xlogmem._cpp cimport check, larger, mutex, prefetch, push, unlikely
from xlogmem._driver cimport (
    Scope,
    enter_context,
    leave_context,
    process_was_forked,
    stream_is_capturing,
)
from xlogmem._failures cimport (
    BLOCK_IS_CONTESTED,
    BLOCK_IS_STALE,
    DEVICE_IS_LOST,
    NO_FAILURE,
    PROCESS_WAS_FORKED,
    PYTHON_RAISED,
    SOURCE_IS_CAPTURING,
    STREAM_IS_CAPTURING,
    STREAM_IS_DEAD,
    drop_exception,
    is_out_of_memory,
    is_sticky,
)
from xlogmem._index cimport NO_STREAM, Tracked, erase, floor_of, insert, successor_of
from xlogmem._order cimport (
    ADAPTIVE,
    ALLOCATED,
    HAS_READ,
    LAZY,
    OPAQUE,
    PRECISE,
    SEALED,
    WRITTEN,
    Fence,
    Policy,
    advance,
    host_wait_unlocks,
    host_wait_or_sync_unlocks,
    is_ordered_after_locked,
    is_other_threads_default,
    order_after_unlocks,
    order_all_unlocks,
    poll_unlocks,
    record_fence_unlocks,
    refuse_capturing_unlocks,
    refuse_if_capturing_unlocks,
    release_tombstone_unlocks,
    sync_context_unlocks,
    unregister_all_foreign_unlocks,
)
from xlogmem.resources.base cimport HOST_SYNCHRONOUS, STREAM_ORDERED

cdef enum:
    EAGER_COMMITS = 64            # commits that record at once after a launch elsewhere had to wait (adaptive)
    MARKERS = 64                # per stream, before neighbours are merged
    RESERVE = 64                # windows kept for the next recorders

cdef atomic[uint64_t] generations           # of this process, shared by all devices and resources (contract 5)

include "core/frontier.pxi"             # what the next user of a block has to be ordered after
include "core/prepare.pxi"              # before a launch: windows open, waits are queued
include "core/finish.pxi"               # after a launch: the use is filed, windows close
include "core/export.pxi"               # memory that other libraries have
include "core/allocate.pxi"             # blocks begin: allocated, adopted
include "core/free.pxi"                 # blocks end
include "core/deferred.pxi"             # what finalizers leave, and frees that failed
include "core/accounting.pxi"           # pending bytes, lookup, the end of a runtime
