"""What Python holds of the core: the tracking core of a runtime, blocks, and their identities.

Thin shells.  They check what they are given, release the GIL, call one of `_core`'s operations and turn a failure
into an exception; the rules are there.
"""
import enum
import weakref

cimport cython

from cpython.number cimport PyNumber_Index
from libc.stdint cimport UINT64_MAX, uint8_t, uint64_t

from xlogmem._core cimport (
    ALLOCATED,
    FREED,
    HAS_READ,
    LIVE,
    WRITTEN,
    CoreCounters,
    Entry,
    allocate,
    drop,
    find_by_address,
    free_block,
    reap,
    tear_down,
)
from xlogmem._cpp cimport vector
from xlogmem._driver cimport Failure, process_is_closing, raise_failure
from xlogmem._order cimport ADAPTIVE, LAZY, PRECISE, OrderCounters, OrderState
from xlogmem.resources.base cimport UNDECLARED

from xlogmem.errors import DriverError, StreamMisuseError, UseAfterFreeError

__all__ = ["Access", "BlockId", "BlockState", "Core", "DeviceBlock"]

POLICIES = {"lazy": LAZY, "precise": PRECISE, "adaptive": ADAPTIVE}


@cython.no_gc_clear                         # __dealloc__ needs what the core is made of
cdef class Core:
    """Tracks the memory that one resource hands out on one device.  `DeviceRuntime` is what users hold.

    Parameters
    ----------
    stream_pool : StreamPool
        Its streams are the ones that this core knows.  A pool serves one core.
    resource : DeviceMemoryResource
        Where the bytes come from.
    policy : {"adaptive", "precise", "lazy"}
        When a commit records an event at once.
    """

    def __cinit__(self, StreamPool stream_pool not None, DeviceMemoryResource resource not None, *,
                  str policy="adaptive"):
        if policy not in POLICIES:
            raise ValueError(f"policy {policy!r} is unknown; choose one of {', '.join(POLICIES)}")
        if stream_pool.ordering is None:
            raise StreamMisuseError("the stream pool was never initialised")
        if resource.table.order == UNDECLARED:
            raise StreamMisuseError(
                f"{type(resource).__name__} does not support cross-stream use tracking (unsupported): it declares "
                "neither that its frees are ordered on a stream nor that they wait on the host")
        if resource.context is not stream_pool.ordering.context:
            raise StreamMisuseError(
                f"the stream pool is on device {stream_pool.ordering.context.ordinal}, the resource on device "
                f"{resource.context.ordinal}")
        if stream_pool.ordering.core is not None and stream_pool.ordering.core() is not None:
            raise StreamMisuseError("the stream pool belongs to another runtime; give each runtime a pool of its own")
        self.stream_pool = stream_pool
        self.ordering = stream_pool.ordering
        self.resource = resource
        self.state.order = &self.ordering.state
        self.state.order.policy = POLICIES[policy]
        self.state.resource = &resource.table
        self.ordering.core = weakref.ref(self)

    def __dealloc__(self):
        """No handle is left, so every block that is still live was dropped or failed to be freed."""
        cdef size_t i
        if self.state.order != NULL and not process_is_closing():
            with nogil:
                tear_down(&self.state)
        for i in range(self.state.blocks.size()):
            del self.state.blocks[i]

    cdef StreamState* stream_of(self, Stream stream) except NULL:
        """The registration behind a stream handle, if it is ours (W12)."""
        if stream.ordering is not self.ordering:
            raise StreamMisuseError(f"{stream!r} belongs to another runtime than {self!r}")
        return stream.state

    cdef bint find(self, uint64_t ptr, Found* found) noexcept:
        """The live block that contains an address."""
        cdef bint there
        if self.state.order.lock.try_lock():
            there = find_by_address(&self.state, ptr, found)
            self.state.order.lock.unlock()
            return there
        with nogil:
            self.state.order.lock.lock()
            there = find_by_address(&self.state, ptr, found)
            self.state.order.lock.unlock()
        return there

    def allocate(self, nbytes, Stream stream=None, *, str tag=None):
        """Allocate device memory, ordered on a stream.

        Parameters
        ----------
        nbytes : int
            Bytes wanted, at least 1.
        stream : Stream, optional
            The memory may be used on this stream at once, and on others through `use`; the default is the pool's
            default stream.
        tag : str, optional
            A label for messages and logs.

        Returns
        -------
        DeviceBlock

        Raises
        ------
        DriverError
            Zero bytes were asked for (contract 37), or the driver refused.
        OutOfDeviceMemoryError
            There is no memory left, also after pending frees were waited for and the resource was trimmed (W34).
        StreamMisuseError
            The stream belongs to another runtime (contract 38) or is capturing a graph.

        Notes
        -----
        Thread-safe; the GIL is released.  The memory is not initialised.
        """
        cdef StreamState* state
        cdef Block* block = NULL
        cdef Failure failure
        cdef size_t wanted
        cdef int failed
        cdef DeviceBlock handle
        nbytes = PyNumber_Index(nbytes)
        if nbytes < 0:
            raise ValueError(f"nbytes must not be negative, got {nbytes}")
        if nbytes == 0:
            raise DriverError("a zero-byte allocation is not supported: ask for at least one byte")
        wanted = nbytes
        if stream is None:
            stream = self.stream_pool.default
        state = self.stream_of(stream)
        handle = DeviceBlock.__new__(DeviceBlock)
        with nogil:
            failed = allocate(&self.state, wanted, state, &block, &failure)
        if failed:
            raise_failure(&failure, f"allocating {nbytes} bytes on {stream!r}")
        handle.core = self
        handle.block = block
        handle.released = False
        handle.stream = stream
        handle.tag = tag
        handle.generation = block.generation
        handle.ptr = block.ptr
        handle.nbytes = wanted
        return handle

    def deallocate(self, DeviceBlock block not None, Stream stream=None):
        """Free a block after every use of it, without waiting on the host.

        Parameters
        ----------
        block : DeviceBlock
            A block of this runtime.
        stream : Stream, optional
            Where the free is queued; the default is the stream of the allocation.

        Raises
        ------
        UseAfterFreeError
            The block was freed before (contract 48).
        DriverError
            A wait or the free could not be queued.  The block stays live and the call may be repeated (W31).

        Notes
        -----
        While a window is open on the block the free is carried out by the last close; the state is ``RETIRED`` until
        then.  On a stream that is capturing, it is carried out by the first call after the capture.  Thread-safe; the
        GIL is released.
        """
        cdef StreamState* home = NULL
        cdef Failure failure
        cdef int failed
        if block.core is not self:
            raise StreamMisuseError(f"{block!r} belongs to another runtime than {self!r}")
        if block.released:
            raise UseAfterFreeError(block.generation)
        if stream is not None:
            home = self.stream_of(stream)
        with nogil:
            failed = free_block(&self.state, block.block.slot, block.generation, home, &failure)
        if failed:
            raise_failure(&failure, f"freeing {block!r}")
        block.released = True

    def reap_pending(self, *, bint blocking=True):
        """Release the bytes of frees that the device has completed.

        Parameters
        ----------
        blocking : bool
            Wait on the host for every free that is queued (default), or only look which are complete.

        Raises
        ------
        DriverError
            A stream could not be waited for, or a free inside another call failed and still does.  Every stream was
            visited; what failed stays pending and is tried again by the next call.
        """
        cdef Failure failure
        cdef int failed
        with nogil:
            failed = reap(&self.state, blocking, &failure)
        if failed:
            raise_failure(&failure, "reaping pending frees")

    def find_block(self, ptr):
        """The identity of the live block that contains an address, or None.  O(log n) in the number of blocks."""
        cdef Found found
        cdef BlockId identity
        ptr = PyNumber_Index(ptr)
        if not 0 <= ptr <= UINT64_MAX or not self.find(ptr, &found):
            return None
        identity = BlockId.__new__(BlockId)
        identity.ptr = found.ptr
        identity.generation = found.generation
        identity.alloc_stream = self.stream_pool.stream(found.stream)
        identity.device_ordinal = self.ordering.context.ordinal
        identity.slot = found.slot
        return identity

    @property
    def ordinal(self):
        """The device ordinal."""
        return self.ordering.context.ordinal

    @property
    def policy(self):
        """``"adaptive"``, ``"precise"`` or ``"lazy"``."""
        return {value: name for name, value in POLICIES.items()}[self.state.order.policy]

    @property
    def live_bytes(self):
        """Bytes of the blocks that are not freed yet."""
        return self._bytes()[0]

    @property
    def pending_bytes(self):
        """Bytes that were freed, but whose free the host has not seen complete."""
        return self._bytes()[1]

    @property
    def bytes_outstanding(self):
        """Live and pending bytes together, read in one step (W27)."""
        return sum(self._bytes())

    cdef tuple _bytes(self):
        cdef uint64_t live, pending
        with nogil:
            self.state.order.lock.lock()
            live = self.state.live_bytes
            pending = self.state.pending_bytes
            self.state.order.lock.unlock()
        return live, pending

    def counters(self):
        """What the runtime has done since it was made, as a dictionary of counts.

        ``records``, ``waits`` and ``host_waits`` are driver calls; ``known`` are orderings that were needed and held
        already; ``covered`` are waits answered by an event that was there.
        """
        cdef OrderState* order = self.state.order
        cdef CoreState* core = &self.state
        cdef OrderCounters ordered
        cdef CoreCounters counted
        cdef uint64_t blocks
        with nogil:
            order.lock.lock()
            ordered = order.counters
            counted = core.counters
            blocks = core.live_blocks
            order.lock.unlock()
        return {
            "allocations": counted.allocations, "frees": counted.frees, "deferred_frees": counted.deferred_frees,
            "failed_frees": counted.failed_frees, "uses": counted.uses, "cancelled": counted.cancelled,
            "abandoned": counted.abandoned, "live_blocks": blocks, "records": ordered.records, "waits": ordered.waits,
            "host_waits": ordered.host_waits, "known": ordered.known, "covered": ordered.covered,
        }

    def __reduce__(self):
        raise TypeError("a runtime cannot be copied: it owns its memory")

    def __repr__(self):
        return (f"<{type(self).__name__} device={self.ordinal} resource={type(self.resource).__name__} "
                f"policy={self.policy}>")


class Access(enum.Flag):
    """How a use touches a block (contract 7)."""

    READ = 1                        # as in _core
    WRITE = 2
    READ_WRITE = 3

    @property
    def reads(self):
        """Whether the block's contents matter to the use."""
        return bool(self & Access.READ)

    @property
    def writes(self):
        """Whether the use changes the block's contents."""
        return bool(self & Access.WRITE)


class BlockState(enum.Enum):
    """What became of a block (contract 10)."""

    LIVE = "live"
    RETIRED = "retired"             # freed by its owner while in use; the memory is still there
    FREED = "freed"


@cython.final
@cython.no_gc
cdef class BlockId:
    """The identity of a block: copyable, comparable, and no hold on the memory (contract 8).

    Attributes
    ----------
    ptr : int
        Device address.
    generation : int
        A number that no other block of this process has.
    alloc_stream : Stream
        Where the block was allocated.
    device_ordinal : int
        The device.
    """

    def __init__(self):
        raise TypeError("block identities are taken from blocks: use block.id or runtime.find_block(ptr)")

    def __reduce__(self):
        raise TypeError("a block identity means nothing to another process")

    def __copy__(self):
        return self

    def __deepcopy__(self, memo):
        return self

    def __eq__(self, other):
        if not isinstance(other, BlockId):
            return NotImplemented
        return self.generation == (<BlockId>other).generation

    def __hash__(self):
        return hash(self.generation)

    def __repr__(self):
        return f"<BlockId generation={self.generation} device={self.device_ordinal} stream={self.alloc_stream.id}>"


@cython.final
@cython.no_gc
@cython.freelist(64)
cdef class DeviceBlock:
    """One allocation.  Dropping the last reference frees it, after every recorded use and without waiting on the host.

    Made by `DeviceRuntime.allocate`; the handle is not copied, and it owns the memory until it is freed.

    Attributes
    ----------
    ptr : int
        Device address, aligned to at least 256 bytes.
    nbytes : int
        Size in bytes, as asked for.
    generation : int
        Identity: no other block of this process has this number.
    stream : Stream
        Where it was allocated.
    tag : str or None
        The label given to the allocation.
    core : Core
        The runtime that tracks it.

    Notes
    -----
    Thread-safe.  A finalizer makes no driver call: the free is queued by the next call to the runtime, or by
    `DeviceRuntime.reap_pending`.
    """

    def __init__(self):
        raise TypeError("blocks are made by DeviceRuntime.allocate()")

    def __dealloc__(self):
        if self.block != NULL and not self.released:
            drop(&self.core.state, self.block)

    def __reduce__(self):
        raise TypeError("a block cannot be copied: it owns its memory")

    def free(self, Stream stream=None):
        """Free the block now; see `DeviceRuntime.deallocate`."""
        if self.core is None:
            raise StreamMisuseError("the block was never allocated")
        self.core.deallocate(self, stream)

    @property
    def id(self):
        """The identity of the block, which may be kept longer than the block."""
        cdef BlockId identity = BlockId.__new__(BlockId)
        if self.core is None:
            raise StreamMisuseError("the block was never allocated")
        identity.ptr = self.ptr
        identity.generation = self.generation
        identity.alloc_stream = self.stream
        identity.device_ordinal = self.core.ordering.context.ordinal
        identity.slot = self.block.slot
        return identity

    @property
    def align(self):
        """The alignment of `ptr` that is promised, in bytes (W64)."""
        return 256

    @property
    def state(self):
        """A `BlockState`."""
        cdef OrderState* order
        cdef uint8_t state = FREED
        if self.core is None:
            return BlockState.FREED
        order = &self.core.ordering.state
        with nogil:
            order.lock.lock()
            if self.block.generation == self.generation:
                state = self.block.state
            order.lock.unlock()
        if state == FREED:
            return BlockState.FREED
        return BlockState.LIVE if state == LIVE and not self.released else BlockState.RETIRED

    @property
    def frontier(self):
        """What the next user would be ordered after: ``{(kind, stream id): position}``.  For tests and the curious."""
        cdef OrderState* order
        cdef vector[Entry] entries
        cdef size_t i
        if self.core is None:
            return {}
        order = &self.core.ordering.state
        with nogil:
            order.lock.lock()
            if self.block.generation == self.generation:
                entries = self.block.frontier
            order.lock.unlock()
        kinds = {ALLOCATED: "allocated", WRITTEN: "written", HAS_READ: "has-read"}
        return {(kinds[entries[i].kind], entries[i].stream): entries[i].position for i in range(entries.size())}

    def __repr__(self):
        if self.core is None:
            return "<DeviceBlock that was never allocated>"
        return (f"<DeviceBlock generation={self.generation} nbytes={self.nbytes} stream={self.stream.id}"
                f"{f' tag={self.tag}' if self.tag else ''} {self.state.value}>")
