# Handles of a block: its owner, its identity, and views of a part.

import enum

cimport cython

from libc.stdint cimport uint8_t

from xlogmem._base.signatures import Signed
from xlogmem.errors import StreamMisuseError, UseAfterFreeError
from xlogmem._base.cpp cimport peek, unlikely, vector
from xlogmem._base.failures cimport BLOCK_IS_STALE
from xlogmem._base.sections cimport Section
from xlogmem._core cimport (
    FREED,
    LIVE,
    READ,
    READ_WRITE,
    RETIRED,
    Entry,
    is_kept_by_guard,
    is_still_locked,
    look_at_block,
    wait_for_block,
)
from xlogmem._order cimport ALLOCATED, HAS_READ, WRITTEN, OrderState, StreamState, is_of_former
from xlogmem.resources.base cimport ResourceTable
from xlogmem.streams cimport core_of


class Access(enum.Flag, boundary=enum.STRICT):    # as later releases of Python do by themselves
    """How a use accesses a block.

    Examples
    --------
    >>> block = xlogmem.get_runtime().allocate("1MiB")
    >>> block.is_ready(xlogmem.Access.READ)         # nothing writes it any more
    True
    >>> xlogmem.Access.READ_WRITE.reads, xlogmem.Access.READ.writes
    (True, False)
    """

    READ = 1                        # as AccessFlags in _core
    WRITE = 2
    READ_WRITE = 3

    @property
    def reads(self):
        """True if the use depends on the block's contents."""
        return bool(self.value & 1)

    @property
    def writes(self):
        """True if the use changes the block's contents."""
        return bool(self.value & 2)


cdef int flags_of(object access) except 0:
    """Return the `AccessFlags` of an `Access`."""
    cdef int flags = access.value if isinstance(access, Access) else 0      # as operators of enum are slow
    if flags == 0:
        raise TypeError(f"access must be Access.READ, Access.WRITE or Access.READ_WRITE, got {access!r}")
    return flags


class BlockState(enum.Enum):
    """The state of a block.

    Examples
    --------
    >>> block = xlogmem.get_runtime().allocate(1000)
    >>> block.state is xlogmem.BlockState.LIVE
    True
    >>> block.free()
    >>> block.state is xlogmem.BlockState.FREED
    True
    """

    LIVE = "live"
    RETIRED = "retired"             # freed by its owner while in use; the memory is still there
    QUARANTINED = "quarantined"     # freed, and kept by a `GuardResourceAdaptor`
    FREED = "freed"


@cython.final
@cython.no_gc
cdef class BlockId:
    """The identity of a block.  It can be copied and compared, and does not keep the memory.

    Attributes
    ----------
    ptr : int
        Device address.
    generation : int
        A number that no other block of this process has.
    alloc_stream : Stream or None
        The stream of the allocation; None for memory for the host, and memory adopted without a stream.
    device_id : int
        The device.

    Examples
    --------
    >>> runtime = xlogmem.get_runtime()
    >>> block = runtime.allocate(1000)
    >>> name = runtime.find_block(block.ptr + 10)   # an address inside
    >>> name == block.id
    True
    >>> with xlogmem.use(runtime.acquire_stream(), read=name):
    ...     pass                                    # launch(name.ptr)
    """

    __signature__ = Signed("")

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
        return f"<BlockId generation={self.generation} device={self.device_id} stream={stream}>"


@cython.final
@cython.no_gc_clear                         # the end of `owned` needs the core
@cython.freelist(1024)                      # the columns of a table
cdef class DeviceBlock:
    """One allocation.  Dropping the last reference frees it, after every recorded use; see `DeviceRuntime.deallocate`.

    Made by `DeviceRuntime.allocate`; the handle is not copied, and it owns the memory until it is freed.  ``with
    runtime.allocate(...) as block:`` closes it at the end.

    Attributes
    ----------
    nbytes : int
        Size in bytes, as requested.
    generation : int
        Identity: no other block of this process has this number.
    stream : Stream or None
        The stream of the allocation; None for memory for the host, and memory adopted without a stream.
    tag : str or None
        The label given to the allocation.
    core : Core or None
        The runtime that tracks the block; None if it has no bytes, because nothing is tracked then.

    Notes
    -----
    Thread-safe.  A block of no bytes is passed like others and orders nothing.  A finalizer makes no driver call: the
    free is queued by the next call to the runtime, or by `DeviceRuntime.reap_pending`.

    Examples
    --------
    >>> runtime = xlogmem.get_runtime()
    >>> load, work = runtime.acquire_stream(), runtime.acquire_stream()
    >>> block = runtime.allocate("1MiB", load, tag="samples")
    >>> with xlogmem.use(work, read=block):
    ...     pass                                    # launch(block.ptr) on `work`
    >>> block.free()                                # after that launch, on the device
    """

    __signature__ = Signed("")

    def __init__(self):
        raise TypeError("blocks are made by DeviceRuntime.allocate()")

    def __reduce__(self):
        """Raise TypeError.  Memory that other processes may open by CUDA IPC has to be allocated for that."""
        below = "" if self.resource is None else f" of {type(self.resource).__name__}"
        raise TypeError(f"a block{below} cannot be copied, nor be pickled for another process: it owns its memory, "
                        "which is not made for CUDA IPC. Send what is in it through the host, or allocate from "
                        "cuda.core's DeviceMemoryResource with IPC enabled and adopt() that memory in both processes")

    def free(self, stream=None):
        """Free the block; see `DeviceRuntime.deallocate`.  A second free is refused; `close` may be repeated."""
        if self.core is None and is_empty(self):
            free_empty(self)
        else:
            free_handle(self.core, self, stream)

    def close(self, stream=None):
        """Free the block unless it was freed, or another handle owns it; see `DeviceRuntime.deallocate`.

        Parameters
        ----------
        stream : stream, optional
            As for `free`.

        Notes
        -----
        Thread-safe, and idempotent: a block that was freed in another way meanwhile is left alone.
        """
        if self.owned.item == NULL and self.block != NULL:
            return
        try:
            self.free(stream)
        except UseAfterFreeError:
            pass

    def __enter__(self):
        """Return the block, which is closed at the end of the ``with`` statement."""
        if self.owned.item == NULL:
            if self.block == NULL:
                raise StreamMisuseError("the block was never allocated: make one with DeviceRuntime.allocate()")
            raise stale_handle(self)
        return self

    def __exit__(self, kind, exception, traceback):
        self.close()

    def synchronize(self, access=Access.READ_WRITE):
        """Wait on the host until the uses that were recorded are complete.

        Parameters
        ----------
        access : Access
            What the memory is to be used for.  Before a read only the work that writes has to be complete.

        Work that may be enqueued without a record counts as well: all work enqueued so far on the stream of a block
        that no other stream has used, on an opaque stream, or on the stream of a consumer.  Launches inside a `use`
        that is not closed do not count.

        Raises
        ------
        UseAfterFreeError
            The block was freed.
        StreamMisuseError
            A stream that the host has to wait for is capturing a graph.
        DriverError
            The driver refused, or work on the device has failed.

        Notes
        -----
        Thread-safe; the GIL is released.  The block may be freed by another thread meanwhile.

        Examples
        --------
        >>> block = xlogmem.get_runtime().allocate(1000)
        >>> block.synchronize()                         # the host waits for the uses of this block alone
        >>> block.ready
        True
        """
        cdef int flags = flags_of(access)
        if self.core is not None:
            wait_for_handle(self, flags)
        elif is_empty(self):
            is_empty_of(self, core_of(self.stream))

    @property
    def ptr(self):
        """The device address, as an int.  Memory that xlogmem allocated is aligned to at least 256 bytes; adopted
        memory has the alignment that it came with.  0 for a block of no bytes.

        Raises
        ------
        UseAfterFreeError
            The block was freed: its address may be that of other memory by now.  While a `use` keeps the memory of a
            block that was freed inside of it, the address is returned.
        """
        if unlikely(self.block == NULL or peek(self.block.generation) != self.generation):
            refuse_freed(self)
        return self.address

    def is_ready(self, access=Access.READ_WRITE):
        """Find out if the work that ``synchronize(access)`` waits for is complete.  The device is queried, without a
        wait.

        Parameters
        ----------
        access : Access
            What the memory is to be used for.  Before a read only the work that writes has to be complete.

        Returns
        -------
        bool

        Raises
        ------
        UseAfterFreeError, StreamMisuseError, DriverError
            As from `synchronize`.

        Notes
        -----
        Makes one query for each stream that the host is not ordered after, and records an event where there is none.
        False where no query is possible: on a stream without a known owner, and on another thread's default stream.
        Thread-safe; the GIL is released.
        """
        cdef int flags = flags_of(access)
        if self.core is not None:
            return handle_is_ready(self, flags)
        return is_empty(self) and is_empty_of(self, core_of(self.stream))

    @property
    def ready(self):
        """True if all work that `synchronize` waits for is complete: `is_ready` before any access."""
        return self.is_ready()

    def __await__(self):
        """Suspend the coroutine until the work that `synchronize` waits for is complete; the event loop goes on.

        Raises
        ------
        RuntimeError
            There is no running event loop of asyncio.
        UseAfterFreeError, StreamMisuseError, DriverError
            As from `synchronize`.

        Notes
        -----
        The work is looked at first.  If it is not complete, a stream of the runtime's pool waits for it and wakes the
        loop: no thread waits, and no stream of the program is delayed.  Where the loop has more than 32 coroutines that
        wait, one may come as late as another.  The thread of the loop waits itself for work on another thread's default
        stream.  `asyncio.wait_for` and a cancelled task give up the waiting, not the work.
        """
        return awaiter(self)

    def map(self, dtype="uint8", *, write=False):
        """The memory as a NumPy array of one dimension, for an access by the host.

        Parameters
        ----------
        dtype : dtype
            The bytes have to be a whole number of its elements.
        write : bool
            Whether the host writes too.  Otherwise the array is read-only.

        Returns
        -------
        context manager
            Gives the array; see `Buffer.map`, which has all of its rules.

        Raises
        ------
        TypeError, ValueError
            At the call: NumPy has no such dtype, or the bytes are not a whole number of elements.  On entry: the host
            cannot reach the memory.
        UseAfterFreeError
            On entry, and at the call for a block of no bytes: the block was freed.

        Examples
        --------
        >>> pinned = xlogmem.PoolMemoryResource(xlogmem.PinnedMemoryResource())
        >>> runtime = xlogmem.get_runtime()
        >>> with runtime.allocate(4096, xlogmem.host, resource=pinned) as staging:
        ...     with staging.map("float32", write=True) as array:
        ...         array[:] = 1
        """
        return mapping_maker(self, core_of(self.stream) if self.core is None and is_empty(self) else self.core, dtype,
                             write)

    @property
    def __cuda_array_interface__(self):
        """Version 3 of the CUDA array interface, of the bytes (``"|u1"``).

        The interface names a stream that is ordered, at this moment, after all uses; see
        `Buffer.__cuda_array_interface__`.
        """
        if self.core is None:
            is_empty(self)
        return interface_maker(self)

    @property
    def id(self):
        """The identity of the block, which may be kept longer than the block."""
        cdef Core core = self.core
        if core is None and is_empty(self):
            core = core_of(self.stream)
        return core.identity(self.address, self.generation, self.block.slot, self.stream)

    @property
    def size(self):
        """`nbytes`, as cuda.core calls it."""
        return self.nbytes

    @property
    def device_id(self):
        """The number of the device."""
        if self.core is not None:
            return self.core.ordering.context.device_id
        return self.stream.device_id if self.block != NULL else None

    @property
    def resource(self):
        """The resource that the memory comes from; None if it was freed, or adopted, or has no bytes."""
        cdef ResourceTable* table = NULL
        cdef OrderState* order
        if self.core is None:
            return None
        order = &self.core.ordering.state
        with nogil:
            order.lock.lock()
            if is_still_locked(&self.core.state, self.block, self.generation) and not self.block.adopted:
                table = self.block.resource
            order.lock.unlock()
        return self.core.resource_with(table) if table != NULL else None

    @property
    def align(self):
        """The guaranteed alignment of `ptr`, in bytes."""
        return 256

    @property
    def state(self):
        """A `BlockState`."""
        cdef Section section
        cdef OrderState* order
        cdef uint8_t state = FREED
        if self.core is None:
            return BlockState.LIVE if self.owned.item != NULL else BlockState.FREED
        order = &self.core.ordering.state
        with nogil:
            order.lock.lock()
            if is_still_locked(&self.core.state, self.block, self.generation):
                state = self.block.state
            order.lock.unlock()
        section.begin(self.core)             # for the list of its resources
        if state == FREED:
            kept = is_kept_by_guard(&self.core.state, self.address, self.generation)
            return BlockState.QUARANTINED if kept else BlockState.FREED
        return BlockState.LIVE if state == LIVE else BlockState.RETIRED

    @property
    def frontier(self):
        """The positions that the next user would be ordered after: ``{(kind, stream id): position}``.  For tests and
        debugging."""
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
        if self.block == NULL:
            return "<DeviceBlock that was never allocated>"
        where = f" ptr={self.ptr:#x}" if self.state is BlockState.LIVE else ""
        resource = self.resource
        if resource is not None and resource is not self.core.resource:
            where += f" resource={type(resource).__name__}"
        return (f"<DeviceBlock generation={self.generation}{where} nbytes={self.nbytes} "
                f"stream={self.stream.id if self.stream is not None else None}"
                f"{f' tag={self.tag}' if self.tag else ''} {self.state.value}>")


cdef int refuse_freed(DeviceBlock block) except -1:
    """Raise if the block has no memory any more."""
    if block.owned.item == NULL if is_empty(block) else peek(block.block.generation) != block.generation:
        raise stale_handle(block)
    return 0


cdef object awaiter = None                  # set by `launch`, which stands above


def set_awaiter(function):
    """Let `DeviceBlock.__await__` return ``function(block)``."""
    global awaiter
    awaiter = function


cdef object interface_maker = None          # set by `buffers`, which stands above
cdef object mapping_maker = None


def set_makers(interface, mapping):
    """Let `DeviceBlock.__cuda_array_interface__` be ``interface(block)``, and `DeviceBlock.map` make what
    ``mapping(block, core, dtype, write)`` returns."""
    global interface_maker, mapping_maker
    interface_maker, mapping_maker = interface, mapping


cdef int wait_for_handle(DeviceBlock block, int access) except -1:
    cdef Core core = block.core
    cdef Failure failure
    cdef int failed
    collect_exports()
    with nogil:
        failed = wait_for_block(&core.state, block.block, block.generation, access, NULL, &failure)
    if failed and failure.kind == BLOCK_IS_STALE:
        raise stale_handle(block)
    if failed:
        core.fail(&failure, f"waiting for {block!r}")
    return core.drop_owners()


cdef bint handle_is_ready(DeviceBlock block, int access) except -1:
    cdef Core core = block.core
    cdef bint ready = False
    cdef Failure failure
    cdef int failed
    collect_exports()
    with nogil:
        failed = look_at_block(&core.state, block.block, block.generation, access, &ready, &failure)
    if failed and failure.kind == BLOCK_IS_STALE:
        raise stale_handle(block)
    if failed:
        core.fail(&failure, f"looking at {block!r}")
    core.drop_owners()
    return ready


cdef class BlockView:
    """A part of a block; `Buffer` is one."""

    __signature__ = Signed("")

    def __init__(self):
        raise TypeError("views are made by xlogmem itself")

    def __reduce__(self):
        raise TypeError("a part of a block cannot be pickled")

    cdef DeviceBlock held(self):
        """Return the block, which another thread may release; None for zero bytes, and after the release."""
        cdef Section section
        section.begin(self)
        return self.block

    cdef int refuse_stale(self) except -1:
        """Raise if the memory must not be used any more."""
        raise NotImplementedError

    cdef bint find_range(self, DeviceBlock block, ByteRange* found) noexcept:
        """Find the addresses of this part of its block.  False if it is all of the block."""
        return False
