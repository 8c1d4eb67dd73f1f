# `Runtime`: the operations, as Python calls them.
#
# Each operation checks its arguments, calls one operation of `_core` (with the GIL if it can be done at once, else
# without it) and turns a failure into an exception.  `DeviceRuntime` (runtime.py) is this class with its parts put
# together.

cimport cython

from cpython.long cimport PyLong_CheckExact
from libc.stdint cimport UINT64_MAX, uint64_t

from xlogmem._foreign.advice import in_words, kind_of
from xlogmem.errors import StreamMisuseError
from xlogmem._base.cpp cimport vector
from xlogmem._core cimport (
    UNKNOWN_ACCESS,
    Request,
    adopt,
    allocate,
    drain_if_abandoned,
    look_at_streams,
    reap,
    record_use,
    wait_for_streams,
)
from xlogmem._foreign.named cimport Extent
from xlogmem._order cimport StreamState
from xlogmem.streams cimport handle_of


@cython.no_gc_clear                         # __dealloc__ of the base needs what the core is made of
cdef class Runtime(Core):
    """Tracks the memory that one resource hands out on one device: the operations of `DeviceRuntime`.

    Parameters
    ----------
    stream_pool : StreamPool
        The pool of this runtime's streams.  A pool serves one runtime.
    resource : DeviceMemoryResource
        The resource that provides the bytes.
    policy : {"adaptive", "precise", "lazy"}
        When a commit records an event at once.
    """

    def allocate(self, nbytes, stream=None, *, str tag=None, resource=None):
        """Allocate device memory, ordered on a stream.

        Parameters
        ----------
        nbytes : int, or str
            Bytes wanted: a whole number, or a text such as ``"1GiB"``.  0 is a block of no bytes, for which neither the
            resource nor the driver is called.
        stream : stream, or xlogmem.host, optional
            The memory may be used on this stream at once, and on others through `use`; the default is the pool's
            default stream.  Foreign streams are registered on first use; see `register_stream`.  `xlogmem.host`: the
            host may use the memory at once, and it belongs to no stream.
        tag : str, optional
            A label for messages, logs and snapshots; the default is that of the `scope`, if one is open.
        resource : DeviceMemoryResource, optional
            The resource that provides the bytes, such as a pool of pinned memory; the default is the runtime's own.
            The first allocation that names a resource binds it to the runtime, which holds it until the runtime ends;
            see `resources`.

        Returns
        -------
        DeviceBlock

        Raises
        ------
        ValueError, TypeError, OverflowError
            `nbytes` is negative, not a whole number, or not a size; or it does not fit in 64 bits; or `resource` is no
            resource, or has memory that the host cannot reach, for `xlogmem.host`.
        DriverError
            The driver refused.
        OutOfDeviceMemoryError
            No memory is left, even after the host waited for pending frees and the resource was trimmed.  If a wait for
            the whole context, which would end graph captures, might release more, the text says so.
        StreamMisuseError
            The stream belongs to another runtime, was unregistered, or is capturing a graph.  Or the resource is on
            another device, is a pool of another runtime, or does not declare how its frees are ordered.
        DeviceLostError
            The device was lost to an earlier error.

        Warns
        -----
        RuntimeWarning
            The resource handed out memory of a live block, whose handle is stale from then on.  Warned once for each
            runtime; ``counters()["evictions"]`` counts all of them.

        Notes
        -----
        Thread-safe; the GIL is released where the driver may have to wait.  The memory is not initialised.

        A pool has memory for the host that the host knows to be idle; else it queries its oldest; else it takes new
        memory, up to twice the bytes that were in use at most, or 64 MiB; else the host waits for the oldest.

        Examples
        --------
        >>> pinned = xlogmem.PoolMemoryResource(xlogmem.PinnedMemoryResource())
        >>> staging = runtime.allocate(4096, xlogmem.host, resource=pinned)     # doctest: +SKIP
        >>> with xlogmem.use(xlogmem.host, write=staging):                      # doctest: +SKIP
        ...     ctypes.memset(staging.ptr, 1, staging.nbytes)
        >>> with xlogmem.use(stream, read=staging, write=x):                    # doctest: +SKIP
        ...     copy_to_device_async(x, staging, stream)
        >>> staging.free()                              # doctest: +SKIP
        """
        return allocate_block(self, nbytes, stream, tag, resource)

    def allocate_many(self, sizes, stream=None, *, str tag=None):
        """Allocate several blocks on one stream, all or none: for a table of many columns.

        Each block is as one of `allocate`.  What stands around an allocation is done once for all of them.

        Parameters
        ----------
        sizes : iterable of int or str
            Bytes of each block, as for `allocate`.  0 is a block of no bytes.
        stream : stream, optional
            As for `allocate`.
        tag : str, optional
            A label for each of them, as for `allocate`.

        Returns
        -------
        list of DeviceBlock
            In the order of the sizes.

        Raises
        ------
        ValueError, TypeError, OverflowError
            As for `allocate`, or `sizes` is not an iterable.  Nothing was allocated.
        DriverError, OutOfDeviceMemoryError, StreamMisuseError, DeviceLostError
            As for `allocate`, of the first block that could not be allocated.  Those before it were freed again; a note
            of the error says which one it is.
        MemoryError
            The host has no memory for so many blocks.

        Notes
        -----
        Thread-safe.  Other threads go on between groups of 64 blocks.  The GIL is kept for up to 256 blocks that a pool
        has memory for at once, and else is released once.

        Examples
        --------
        >>> columns = runtime.allocate_many([rows * 8] * 1_000, stream)         # doctest: +SKIP
        >>> runtime.deallocate_many(columns)                                    # doctest: +SKIP
        """
        return allocate_blocks(self, sizes, stream, tag)

    def deallocate_many(self, blocks, stream=None):
        """Free several blocks, each after every use of it; see `deallocate`.

        Parameters
        ----------
        blocks : iterable of DeviceBlock
            Blocks of this runtime, each once.
        stream : stream, optional
            The stream on which the frees are queued.  The default is that of each block, as for `deallocate`.

        Raises
        ------
        UseAfterFreeError
            A block was freed before.  None was freed by this call, unless another thread, or another library by its
            address, freed the block during the call: then all others were.
        ValueError, TypeError, StreamMisuseError
            A block is named twice, or is not a block, or belongs to another runtime.  None was freed.
        DriverError
            Some waits or frees could not be queued.  These blocks stay live and may be freed again, by `close` of each
            block for example; all others were freed.  Further failures are notes of the exception.

        Notes
        -----
        All blocks are looked at before the first is freed.  Thread-safe.  Other threads go on between groups of 64
        blocks.  The GIL is kept for up to 256 blocks that go into a pool, and else is released once.
        """
        free_handles(self, blocks, stream)

    def deallocate(self, DeviceBlock block not None, stream=None):
        """Free a block after every use of it.

        The free is queued on the device, and the memory goes back to the resource that it came from.  The host waits
        only where that resource frees at once (`DirectMemoryResource`, `PinnedMemoryResource`), for memory adopted
        without a stream, and for work on another thread's default stream.

        Parameters
        ----------
        block : DeviceBlock
            A block of this runtime.
        stream : stream, optional
            The stream on which the free is queued.  The default is the stream of the allocation (its successor, if that
            stream was unregistered).  Where that stream would have to wait for others, the free is queued on the stream
            of a user that is ordered after these already, if there is one, behind everything on the former.

        Raises
        ------
        UseAfterFreeError
            The block was freed before.
        DriverError
            A wait or the free could not be queued.  The block stays live and the call may be repeated.

        Notes
        -----
        While a window is open on the block, the last close carries out the free; the state is ``RETIRED`` until then.
        On a stream that is capturing, the first call after the capture carries it out; a free into a pool is carried
        out at once, because it makes no driver call.  For adopted memory the owner is dropped instead, once the stream,
        or without one the host, is ordered after every use.  Thread-safe; the GIL is released where the driver may have
        to wait.
        """
        if block.core is self:
            free_handle(self, block, stream)
        elif is_empty_of(block, self):
            free_empty(block)
        else:
            raise StreamMisuseError(f"{block!r} belongs to another runtime than {self!r}")

    def adopt(self, ptr, nbytes=None, stream=None, *, owner=None, str tag=None):
        """Track foreign memory, so that it can be used like a block.

        Parameters
        ----------
        ptr : object
            The memory: any object that `use` takes and that gives its size, or a device address.  Nested lists, tuples
            and dicts of these are adopted one by one.
        nbytes : int, optional
            Bytes, from the address of `ptr`; required for an address.  The default is the size that the object gives.
        stream : stream, optional
            The stream on which the owner's work on the memory was queued so far: the first use elsewhere is ordered
            after that work.  Without a stream the memory has to be ready on every stream.  The memory itself does not
            show where work was queued: all work that was queued on this stream so far counts, and no work that was
            queued elsewhere.
        owner : object, optional
            Held until the handle is freed or dropped and every use is ordered before the stream's further work (without
            a stream: complete).  The default is the object that names the memory; for an address nothing is held.
        tag : str, optional
            A label.

        Returns
        -------
        DeviceBlock
            Inside a block that is tracked already: another handle of that block, which owns nothing.  For a list, tuple
            or dict: handles in the same arrangement.

        Raises
        ------
        TypeError, ValueError
            The argument is host memory that is not page-locked, or no memory, or a range that makes no sense or goes
            beyond its allocation; or its size is not known; or the driver knows no allocation at the address.
        StreamMisuseError
            The range overlaps a tracked block in part, or is on another device.  If one of several is refused, the ones
            adopted before it are released again.

        Notes
        -----
        Thread-safe.  The memory is tracked as long as the handle lives; `use` with ``untracked="adopt"`` tracks it as
        long as its owner does.

        Examples
        --------
        >>> runtime = xlogmem.get_runtime()
        >>> stream = runtime.acquire_stream()
        >>> memory = xlogmem.DirectMemoryResource().allocate(1000, stream.handle)
        >>> tracked = runtime.adopt(memory, 1000, stream, tag="of another library")
        >>> with xlogmem.use(stream, read=memory):
        ...     pass
        >>> tracked.free()
        """
        if PyLong_CheckExact(ptr) and nbytes is not None:
            return adopt_range(self, ptr, nbytes, stream, owner, tag)
        if nbytes is not None:
            return adopt_named(self, ptr, nbytes, (stream, owner, tag))
        return for_each(ptr, lambda what: adopt_named(self, what, None, (stream, owner, tag)), b" in adopt")

    def reap_pending(self, *, bint blocking=True):
        """Release the bytes of frees that the device has completed.

        Parameters
        ----------
        blocking : bool
            Wait on the host for every queued free (default), or only query which frees are complete.  A blocking call
            also frees blocks whose export was released without a stream, and the remains of ended runtimes of this
            device: for these the host waits for the whole context.

        Raises
        ------
        DriverError
            A wait for a stream failed, or a free inside another call failed and still does.  Every stream was visited;
            whatever failed stays pending, and the next call tries it again.  Further failures are notes of the
            exception.
        StreamMisuseError
            The call is blocking, and a stream on which blocks were freed is capturing a graph.  The bytes of these
            frees stay pending until the capture has ended, and other calls do not report that.

        Notes
        -----
        Thread-safe; no lock and no GIL is held while waiting.

        Examples
        --------
        >>> runtime = xlogmem.DeviceRuntime()
        >>> runtime.allocate(1000).free()
        >>> runtime.reap_pending()
        >>> runtime.pending_bytes
        0
        """
        cdef vector[Failure] failures
        collect_exports()
        if blocking and (ended or kept_whole):
            finish_ended(self.ordering.context)
        with nogil:
            reap(&self.state, blocking, True, &failures)
        self.drop_owners()
        if not failures.empty():
            self.fail_all(&failures, "reaping pending frees")
        if blocking and ended:
            warn_of_ended(self.ordering.context)

    def synchronize(self):
        """Wait on the host until all work so far is complete, recorded or not, on every stream that the runtime knows.

        Raises
        ------
        StreamMisuseError
            A stream is capturing a graph.
        DriverError
            The driver refused, or work on the device has failed.

        Notes
        -----
        Thread-safe; the GIL is released.  The host waits for these streams alone, unless one of them was destroyed, may
        be, or is another thread's default stream: then it may wait for the context.  Pending frees stay pending until
        they are reaped.
        """
        cdef Failure failure
        cdef int failed
        collect_exports()
        with nogil:
            failed = wait_for_streams(&self.state, &failure)
        if failed:
            self.fail(&failure, "waiting for all streams")
        self.drop_owners()

    @property
    def ready(self):
        """True if all work that `synchronize` waits for is complete.  The device is queried, without a wait.

        Makes one query for each stream, and none after the first stream that is not complete.  False where no query is
        possible.  Errors are those of `synchronize`.
        """
        cdef Failure failure
        cdef bint ready = False
        cdef int failed
        collect_exports()
        with nogil:
            failed = look_at_streams(&self.state, &ready, &failure)
        if failed:
            self.fail(&failure, "looking at all streams")
        self.drop_owners()
        return ready

    def find_block(self, ptr):
        """The identity of the live block that contains the memory of an argument, or None.

        Parameters
        ----------
        ptr : object
            A device address, or anything else that `use` takes for one block.

        Returns
        -------
        BlockId or None
            None also for an object without elements, and for an array that is not inside one block.  For nested lists,
            tuples and dicts: identities in the same arrangement.

        Raises
        ------
        TypeError, ValueError
            The argument is host memory, or no memory.
        StreamMisuseError
            The argument is a block of another runtime.

        Notes
        -----
        O(log n) in the number of blocks; no driver call.  Thread-safe.

        Examples
        --------
        >>> runtime = xlogmem.get_runtime()
        >>> block = runtime.allocate(1000)
        >>> runtime.find_block(block.ptr + 999) == block.id
        True
        >>> runtime.find_block(block.ptr + 4096) is None
        True
        """
        if PyLong_CheckExact(ptr) and 0 <= ptr <= UINT64_MAX:
            return self.identity_at(ptr, 0)
        return for_each(ptr, lambda what: self.find_one(what, "find_block"), b" in find_block")

    cdef BlockId find_one(self, object what, str where):
        cdef Found found
        cdef Extent extent
        cdef Resolved resolved
        refuse_several(what, "name each of them")
        resolved = self.resolve(what, &found, &extent, where)
        if resolved not in (TRACKED, READ_ONLY_HERE):
            return None
        if isinstance(what, BlockView):
            what = (<BlockView>what).block
        if isinstance(what, DeviceBlock):
            return self.identity_at((<DeviceBlock>what).address, found.generation)
        return self.identity_at((<BlockId>what).ptr if isinstance(what, BlockId) else extent.ptr, found.generation)

    cdef BlockId identity_at(self, uint64_t address, uint64_t generation):
        """Return the identity of the block that contains an address, if the block has this generation (0: any)."""
        cdef Found found
        if not self.find_held(address, &found):
            return None
        try:
            if generation not in (0, found.generation) or self.has_ended(found.generation):
                return None
            home = handle_of(self.ordering, found.stream) if found.stream != NULL else None
            return self.identity(found.ptr, found.generation, found.slot, home)
        finally:
            if found.stream != NULL:
                found.stream.handles.fetch_sub(1)

    # ------------------------------------------------------------------------------------------ streams
    def register_stream(self, stream, *, str discipline=None):
        """Return the handle of a foreign stream, which is registered on first use.

        Parameters
        ----------
        stream : object
            An int (the ``CUstream``), or a stream of CuPy, Numba, PyTorch, RMM, cuda.core or cuda.bindings: anything
            with ``__cuda_stream__``.  The object is held while the stream is registered; an object that only names a
            stream that it does not own (an ``ExternalStream``) counts as an int.
        discipline : {"ordinary", "opaque", "sealed"}, optional
            See `Stream.discipline`.  The default is ordinary, and opaque for the legacy and the per-thread default
            streams.  A registered stream changes its discipline and stays the same registration; waits still cover all
            work that the old discipline allowed.  Other streams are ordered after the work on a stream that became
            opaque as far as a block was used there, or will be freed there; the opaque stream waits for them (the
            hand-back) from the next use on.

        Returns
        -------
        Stream

        Raises
        ------
        TypeError, ValueError
            This is not a stream.
        StreamMisuseError
            The stream is on another device or is capturing a graph; or it would have to change its discipline, and is
            one of the pool's own, was unregistered, or has a window open.

        Warns
        -----
        BlockingStreamWarning
            The stream and the legacy default stream wait for each other.

        Notes
        -----
        Every argument that is a stream is registered this way.  The driver's id of the stream identifies a
        registration: a handle that the driver reused is another stream.  Handles 0 and 1 are the legacy default stream;
        handle 2 is a different stream in every thread.  Streams whose only reference is xlogmem's are eventually
        unregistered.  Thread-safe.
        """
        if discipline is not None:
            with nogil:
                drain_if_abandoned(&self.state)
            self.drop_owners()
            return self.streams.register(stream, discipline)
        return self.streams.find(stream)

    def unregister_stream(self, stream, *, successor=None):
        """Unregister a foreign stream before its owner destroys it.

        Parameters
        ----------
        stream : object
            The stream.
        successor : stream, optional
            The stream on which the blocks that were allocated on `stream` are freed from now on; the default is the
            pool's default stream.

        Raises
        ------
        StreamMisuseError
            The stream is not registered, is one of the pool's own, is in use (a window or a call is open on it), is
            capturing a graph, or the successor was unregistered or is the same stream.
        DriverError
            The last event could not be recorded; the stream stays registered.
        """
        with nogil:
            drain_if_abandoned(&self.state)
        self.drop_owners()
        self.streams.unregister(self.streams.known_as(stream), self.stream_of(successor))

    def stream_count(self):
        """Count the streams that the tables hold: registered streams, and unregistered streams that waits still
        need."""
        cdef size_t count
        with nogil:
            self.state.order.lock.lock()
            count = self.state.order.streams.size()
            self.state.order.lock.unlock()
        return count

    # ------------------------------------------------------------------------------------------ work without a window
    def record_block_use(self, block, stream):
        """File work of unknown access that is queued already and was not prepared.

        The work counts as a write: later readers and writers are ordered after it, and so is the free.  Nothing
        protects the work itself; use `use` for that.

        Parameters
        ----------
        block : object
            Anything that `use` takes for one block.
        stream : stream
            The stream of the work.

        Raises
        ------
        UseAfterFreeError
            The block was freed.  While a window keeps its memory, the work is filed all the same.
        StreamMisuseError
            The argument is not memory of the runtime, or the stream was unregistered or is capturing a graph: then
            nothing is filed.
        """
        self._file(block, stream, UNKNOWN_ACCESS)

    def _file(self, what, stream, int access):
        cdef Found found
        cdef Request request
        cdef Stream used = self.stream_for_use(stream)
        cdef StreamState* state = used.state
        cdef Failure failure
        cdef int failed
        if self._identify(what, &found) == NOTHING:
            return
        request.slot = found.slot
        request.generation = found.generation
        request.access = access
        with nogil:
            failed = record_use(&self.state, &request, state, &failure)
        if failed:
            self.fail(&failure, f"recording a use on {used!r}")
        self.drop_owners()

    def _stream_for_use(self, stream):
        """Return the handle of a stream on which blocks are used; it may be on another device."""
        return self.stream_for_use(stream)

    cdef Resolved _identify(self, object what, Found* found) except? UNTRACKED:
        """Find the one block that an argument names, or return NOTHING."""
        cdef Extent extent
        cdef Resolved resolved
        refuse_several(what, "name it in use(), or give one block")
        resolved = self.resolve(what, found, &extent, "block")
        if resolved == UNTRACKED:
            raise StreamMisuseError(f"block: {in_words(what)} is not tracked by {self!r}")
        if resolved == BEYOND:
            raise StreamMisuseError(f"block: {kind_of(what)} is not in one block: {describe_beyond(found, &extent)}")
        return TRACKED if resolved == READ_ONLY_HERE else resolved

    def _generation_of(self, what):
        """Return the generation of the one block that an argument names; 0 if there is nothing to touch."""
        cdef Found found
        return found.generation if self._identify(what, &found) == TRACKED else 0
