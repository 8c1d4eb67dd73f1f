# What users hold of a block: the handle that owns it, its identity, and views of a part.

class Access(enum.Flag):
    """How a use touches a block."""

    READ = 1                        # as AccessFlags in _core
    WRITE = 2
    READ_WRITE = 3

    @property
    def reads(self):
        """Whether the block's contents matter to the use."""
        return bool(self.value & 1)

    @property
    def writes(self):
        """Whether the use changes the block's contents."""
        return bool(self.value & 2)


class BlockState(enum.Enum):
    """Whether a block is alive."""

    LIVE = "live"
    RETIRED = "retired"             # freed by its owner while in use; the memory is still there
    QUARANTINED = "quarantined"     # freed, and kept by a `GuardResourceAdaptor`
    FREED = "freed"


@cython.final
@cython.no_gc
cdef class BlockId:
    """The identity of a block: copyable, comparable, and does not keep the memory.

    Attributes
    ----------
    ptr : int
        Device address.
    generation : int
        A number that no other block of this process has.
    alloc_stream : Stream or None
        Where the block was allocated; None for memory adopted without a stream.
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
        stream = self.alloc_stream.id if self.alloc_stream is not None else None
        return f"<BlockId generation={self.generation} device={self.device_ordinal} stream={stream}>"


@cython.final
@cython.no_gc_clear                         # the end of `owned` needs the core
@cython.freelist(64)
cdef class DeviceBlock:
    """One allocation.  Dropping the last reference frees it, after every recorded use; see `DeviceRuntime.deallocate`.

    Made by `DeviceRuntime.allocate`; the handle is not copied, and it owns the memory until it is freed.

    Attributes
    ----------
    ptr : int
        Device address.  Aligned to at least 256 bytes where xlogmem allocated it; of adopted memory as it came.
    nbytes : int
        Size in bytes, as requested.
    generation : int
        Identity: no other block of this process has this number.
    stream : Stream or None
        Where it was allocated; None for memory adopted without a stream.
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

    def __reduce__(self):
        raise TypeError("a block cannot be copied: it owns its memory")

    def free(self, stream=None):
        """Free the block; see `DeviceRuntime.deallocate`."""
        if self.core is None:
            raise StreamMisuseError("the block was never allocated")
        free_handle(self.core, self, stream)

    @property
    def id(self):
        """The identity of the block, which may be kept longer than the block."""
        if self.core is None:
            raise StreamMisuseError("the block was never allocated")
        return self.core.identity(self.ptr, self.generation, self.block.slot, self.stream)

    @property
    def device_ordinal(self):
        """The device."""
        return self.core.ordering.context.ordinal if self.core is not None else None

    @property
    def align(self):
        """The alignment of `ptr` that is guaranteed, in bytes."""
        return 256

    @property
    def state(self):
        """A `BlockState`."""
        cdef OrderState* order
        cdef GuardTable* guard
        cdef uint8_t state = FREED
        if self.core is None:
            return BlockState.FREED
        order = &self.core.ordering.state
        with nogil:
            order.lock.lock()
            if is_still_locked(&self.core.state, self.block, self.generation):
                state = self.block.state
            order.lock.unlock()
        if state == FREED:
            guard = self.core.state.resource.guard
            kept = guard != NULL and guard.keeps(guard.self, self.ptr, self.generation)
            return BlockState.QUARANTINED if kept else BlockState.FREED
        return BlockState.LIVE if state == LIVE else BlockState.RETIRED

    @property
    def frontier(self):
        """What the next user would be ordered after: ``{(kind, stream id): position}``.  For tests and debugging."""
        cdef OrderState* order
        cdef vector[Entry] entries
        cdef StreamState* source
        cdef size_t i
        if self.core is None:
            return {}
        order = &self.core.ordering.state
        with nogil:
            order.lock.lock()
            if is_still_locked(&self.core.state, self.block, self.generation):
                for i in range(self.block.frontier.size()):
                    source = order.streams[self.block.frontier[i].stream]
                    if not is_of_former(source, self.block.frontier[i].position):
                        entries.push_back(self.block.frontier[i])
                        entries.back().stream = source.number
            order.lock.unlock()
        kinds = {ALLOCATED: "allocated", WRITTEN: "written", HAS_READ: "has-read"}
        return {(kinds[entries[i].kind], entries[i].stream): entries[i].position for i in range(entries.size())}

    def __repr__(self):
        if self.core is None:
            return "<DeviceBlock that was never allocated>"
        return (f"<DeviceBlock generation={self.generation} nbytes={self.nbytes} "
                f"stream={self.stream.id if self.stream is not None else None}"
                f"{f' tag={self.tag}' if self.tag else ''} {self.state.value}>")


cdef class BlockView:
    """A part of a block; `Buffer` is one."""

    def __init__(self):
        raise TypeError("views are made by xlogmem itself")

    def __reduce__(self):
        raise TypeError("a part of a block cannot be pickled")

    cdef int refuse_stale(self) except -1:
        """Raise if the memory must not be used any more."""
        raise NotImplementedError
