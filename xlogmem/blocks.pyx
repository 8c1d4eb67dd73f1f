"""What Python holds of the core: the tracking core of a runtime, blocks, and their identities.

Thin shells.  They check what they are given, release the GIL, call one of `_core`'s operations and turn a failure
into an exception; the rules are there.
"""
import enum
import weakref

cimport cython

from cpython.dict cimport PyDict_GetItem
from cpython.number cimport PyIndex_Check, PyNumber_Index
from cpython.ref cimport Py_DECREF, Py_INCREF, Py_XDECREF, PyObject
from libc.stdint cimport UINT64_MAX, uint8_t, uint64_t

from xlogmem._core cimport (
    FREED,
    LIVE,
    READ,
    READ_WRITE,
    CoreCounters,
    Entry,
    add_export,
    adopt,
    allocate,
    block_at,
    drain_if_needed,
    drop,
    end_export,
    find_by_address_locked,
    free_block,
    reap,
    record_use,
    tear_down,
)
from xlogmem._cpp cimport atomic, check, push, vector
from xlogmem._driver cimport PER_THREAD, give_event, process_is_closing
from xlogmem._failures cimport BLOCK_IS_CONTESTED, PYTHON_RAISED, raise_failure
from xlogmem._index cimport destroy
from xlogmem._order cimport (
    ADAPTIVE,
    ALLOCATED,
    HAS_READ,
    LAZY,
    PRECISE,
    WRITTEN,
    OrderCounters,
    OrderState,
)
from xlogmem.resources.base cimport UNDECLARED
from xlogmem.streams cimport handle_of, parse

from xlogmem._stream_owners import find_owner
from xlogmem.errors import DriverError, StreamMisuseError, UseAfterFreeError

__all__ = ["Access", "BlockId", "BlockState", "Core", "DeviceBlock", "register_resolver"]

cdef dict resolvers = {}                    # by type: how objects that are no block, address or array are read


def register_resolver(kind, resolver):
    """Say how `use` finds the memory of objects of a type, and of its subclasses.

    Parameters
    ----------
    kind : type
        The type.  A registration for it replaces an earlier one, None as `resolver` takes it back.
    resolver : callable
        ``resolver(what, hold)`` gives what `what` consists of: an iterable of anything that `use` takes, other objects
        with a resolver among them; empty for nothing to touch.  ``hold(thing)`` keeps a thing until the use is filed or
        cancelled, a lock for instance that keeps the memory where it is.

    Notes
    -----
    Meant for types whose attributes have side effects, or which are made of several blocks: an object with a resolver
    is not asked for anything else.  The resolver runs while the use is recorded, before the preflight.
    """
    if not isinstance(kind, type):
        raise TypeError(f"register_resolver: {kind!r} is no type")
    if resolver is None:
        resolvers.pop(kind, None)
    elif callable(resolver):
        resolvers[kind] = resolver
    else:
        raise TypeError(f"register_resolver: {resolver!r} cannot be called")


cdef object resolver_of(object what):
    """How an object is read; None if it speaks for itself."""
    cdef PyObject* found
    if not resolvers or isinstance(what, int):
        return None
    for kind in type(what).__mro__:
        found = PyDict_GetItem(resolvers, kind)
        if found != NULL:
            return <object>found
    return None


cdef object refuse_many(object what):
    if resolver_of(what) is not None:
        raise TypeError(f"{type(what).__name__} may consist of several blocks: name it in use(), or give one block")


cdef object id_of(Core core, object what):
    """The generation that an argument names, 0 for nothing to touch."""
    cdef Found found
    refuse_many(what)
    cdef int known = core.resolve(what, &found, "block")
    if known == 0:
        raise StreamMisuseError(f"{type(what).__name__} is not memory of {core!r}")
    return found.generation if known == 1 else 0


cdef inline bint look_up_locked(CoreState* core, uint64_t ptr, Found* found, bint hold) noexcept nogil:
    check(core.order.lock.held(), "the lock is held")
    cdef bint there = find_by_address_locked(core, ptr, found)
    if there and hold and found.stream != NULL:
        found.stream.handles.fetch_add(1)
    return there


# ---------------------------------------------------------------------------------------------- exports
cdef extern from "Python.h":
    int Py_AddPendingCall(int (*function)(void*) noexcept, void* argument) nogil

cdef cppclass ReleasedExports:
    atomic[Export*] exports                     # given back, newest first
    atomic[uint32_t] scheduled                  # the interpreter was asked to collect them

cdef ReleasedExports* released_exports = new ReleasedExports()    # never destroyed: threads may outlive the interpreter's end


cdef void release_export(Export* export) noexcept nogil:
    """For deleters: any thread, with or without the GIL, at any time; no lock, no driver call, nothing waited for.  The
    interpreter's main thread collects when it comes to it, or the next call that needs memory.  At the end of the
    process nobody does, and the process gives everything back."""
    push(released_exports.exports, export)
    if process_is_closing():
        return
    if released_exports.scheduled.exchange(1) == 0 and Py_AddPendingCall(collect_pending, NULL):
        released_exports.scheduled.store(0)             # its queue is full: the next export asks again


cdef int collect_pending(void* _) noexcept:
    released_exports.scheduled.store(0)
    if not process_is_closing():
        collect_exports()
    return 0


cdef int collect_exports() except -1:
    """File the uses of what was given back, and let go of it.  With the GIL."""
    cdef Export* export
    cdef Export* following
    cdef Core core
    cdef DeviceBlock block
    if released_exports.exports.load() == NULL:
        return 0
    export = released_exports.exports.exchange(NULL)
    while export != NULL:
        following = export.next
        if export.block != NULL:
            block = <DeviceBlock>export.block
            core = block.core
            with nogil:
                end_export(&core.state, block.block, block.generation, export.stream, export.access)
                if export.event != NULL:
                    give_event(export.events, export.event)
            Py_DECREF(block)
            block = core = None
        export.destroy(export.shell)
        export = following
    return 0


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
                "neither that its frees are ordered on a stream nor that they take effect at once. Set order = "
                "'stream' or order = 'host' in the class")
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
        self.streams = StreamRegistry.__new__(StreamRegistry, self.ordering)
        self.opened = {}
        resource.bind(stream_pool)

    def __del__(self):
        """What was dropped is freed while the resource is whole.  One that is written in Python and refers to its
        runtime is in a cycle with it, and the collector empties it before `__dealloc__`."""
        if self.state.order != NULL and not process_is_closing():
            with nogil:
                tear_down(&self.state)
            self.drop_owners()

    def __dealloc__(self):
        """No handle is left, so every block that is still live was dropped or failed to be freed."""
        cdef size_t i
        if self.state.order != NULL and not process_is_closing():
            with nogil:
                tear_down(&self.state)
        self.drop_owners()
        if self.state.unreported_failure.kind == PYTHON_RAISED:
            Py_XDECREF(<PyObject*>self.state.unreported_failure.exception)
        for i in range(self.state.blocks.size()):
            Py_XDECREF(<PyObject*>self.state.blocks[i].owner)
            del self.state.blocks[i]
        destroy(&self.state.index)

    cdef Stream stream_of(self, object stream):
        """The handle of a stream argument: ours (W12), or somebody else's, registered at first sight; None is the
        pool's default stream."""
        if stream is None:
            return self.stream_pool.default
        return self.streams.find(stream)

    cdef int fail(self, Failure* failure, str what) except -1:
        self.drop_owners()
        raise_failure(failure, what)

    cdef int drop_owners(self) except -1:
        """Drop the owners of adopted memory that the last operations let go.  Never under the lock: a finalizer may do
        anything."""
        cdef vector[void*] pending_decrefs
        cdef size_t i
        if not self.state.has_pending_decrefs:
            return 0
        with nogil:
            self.state.order.lock.lock()
            pending_decrefs = self.state.pending_decrefs
            self.state.pending_decrefs.clear()
            self.state.has_pending_decrefs.store(False)
            self.state.order.lock.unlock()
        for i in range(pending_decrefs.size()):
            Py_XDECREF(<PyObject*>pending_decrefs[i])
        return 0

    cdef bint find(self, uint64_t ptr, Found* found, bint hold=False) noexcept:
        """The live block that contains an address.  `hold` counts as a handle of its stream, which could be deleted as
        soon as the lock is released; the caller takes it off again."""
        cdef bint there
        if self.state.order.lock.try_lock():
            there = look_up_locked(&self.state, ptr, found, hold)
            self.state.order.lock.unlock()
            return there
        with nogil:
            self.state.order.lock.lock()
            there = look_up_locked(&self.state, ptr, found, hold)
            self.state.order.lock.unlock()
        return there

    cdef int export_block(self, DeviceBlock block, StreamState* stream, bint write, Export* export) except -1:
        """Inside a window on the block: somebody else gets it, until he gives the export back (NULL: until it is freed).

        A stream whose handle nobody is known to keep alive is not looked at again: what is given back from there is
        freed by a blocking reap.
        """
        cdef bint exported
        if stream != NULL and stream.unowned and stream.thread == 0:
            stream = NULL
        with nogil:
            self.state.order.lock.lock()
            exported = add_export(block.block, block.generation, stream, export != NULL)
            self.state.order.lock.unlock()
        if not exported:
            raise UseAfterFreeError(block.generation)
        if export != NULL:
            export.block = <void*>block
            export.stream = stream
            export.access = READ_WRITE if write else READ
            Py_INCREF(block)
        return 0

    cdef Stream owned_stream(self, object handle):
        """The registration of a stream that is known to live on: ours, a default stream, one whose object is held here
        or can be found.  None for another one's handle."""
        cdef Stream own
        if not isinstance(handle, int) or handle <= PER_THREAD:
            return self.stream_of(handle)
        own = self.streams.own(parse(handle), False)
        if own is not None:
            return own
        if not self.streams.owns(parse(handle)):
            handle = find_owner(handle, self.ordinal)
        return self.stream_of(handle) if handle is not None else None

    cdef Stream writer_of(self, DeviceBlock block):
        """Where the newest use that wrote the block was filed, None if nobody wrote or that stream is gone."""
        cdef OrderState* order = self.state.order
        cdef StreamState* found = NULL
        cdef uint64_t writer = 0
        cdef size_t i
        with nogil:
            order.lock.lock()
            if block.block.generation == block.generation:
                writer = block.block.writer
            for i in range(order.streams.size() if writer else 0):
                if order.streams[i].number + 1 == writer and order.streams[i].alive:
                    found = order.streams[i]
                    found.handles.fetch_add(1)          # nobody deletes it meanwhile
                    break
            order.lock.unlock()
        if found == NULL:
            return None
        try:
            return handle_of(self.ordering, found)
        finally:
            found.handles.fetch_sub(1)

    cdef int resolve(self, object what, Found* found, str where) except -1:
        """What `what` names: 1 and the identity in `found`, 0 for memory that is not tracked here, 2 for nothing to
        touch at all (W24).  Blocks of other runtimes are refused; whether a block is alive is the core's
        question."""
        cdef DeviceBlock block
        cdef BlockId identity
        if isinstance(what, DeviceBlock):
            block = <DeviceBlock>what
            if block.core is not self:
                raise StreamMisuseError(f"{where}: {block!r} belongs to another runtime than {self!r}")
            found.slot = block.block.slot
            found.generation = block.generation
            return 1
        if isinstance(what, BlockId):
            identity = <BlockId>what
            if identity.ordering is not self.ordering:
                raise StreamMisuseError(f"{where}: {identity!r} belongs to another runtime than {self!r}")
            found.slot = identity.slot
            found.generation = identity.generation
            return 1
        if isinstance(what, BlockView):
            if (<BlockView>what).core is not self:
                raise StreamMisuseError(f"{where}: {what!r} belongs to another runtime than {self!r}")
            (<BlockView>what).refuse_stale()
            block = (<BlockView>what).block
            if block is None:
                return 2
            found.slot = block.block.slot
            found.generation = block.generation
            return 1
        interface = None if isinstance(what, int) else getattr(what, "__cuda_array_interface__", None)
        if interface is not None:
            address = interface["data"][0]
            if 0 in interface["shape"]:
                return 2
        elif PyIndex_Check(what):
            address = PyNumber_Index(what)
        else:
            raise TypeError(f"{where}: {type(what).__name__} is no block, address or CUDA array (it has no "
                            "__cuda_array_interface__), nor a list or tuple of these")
        return 0 <= address <= UINT64_MAX and self.find(address, found)

    cdef DeviceBlock handle(self, Block* block, Found* found, Stream stream, str tag):
        """The handle of what was found; the block itself may be another one by now."""
        cdef DeviceBlock handle = DeviceBlock.__new__(DeviceBlock)
        handle.core = self
        handle.block = block
        handle.released = False
        handle.stream = stream
        handle.tag = tag
        handle.generation = found.generation
        handle.ptr = found.ptr
        handle.nbytes = found.nbytes
        return handle

    # ------------------------------------------------------------------------------------------ memory
    def allocate(self, nbytes, stream=None, *, str tag=None):
        """Allocate device memory, ordered on a stream.

        Parameters
        ----------
        nbytes : int
            Bytes wanted, at least 1.
        stream : stream, optional
            The memory may be used on this stream at once, and on others through `use`; the default is the pool's
            default stream.  Foreign streams are registered at first sight; see `register_stream_locked`.
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
            The stream belongs to another runtime (contract 38), was unregistered, or is capturing a graph.
        DeviceLostError
            The device was lost to an earlier error.

        Notes
        -----
        Thread-safe; the GIL is released.  The memory is not initialised.
        """
        cdef Stream ordered
        cdef StreamState* state
        cdef Block* block = NULL
        cdef Found found
        cdef Failure failure
        cdef size_t wanted
        cdef int failed
        nbytes = PyNumber_Index(nbytes)
        if nbytes < 0:
            raise ValueError(f"nbytes must not be negative, got {nbytes}")
        if nbytes == 0:
            raise DriverError("a zero-byte allocation is not supported: ask for at least one byte")
        collect_exports()
        wanted = nbytes
        ordered = self.stream_of(stream)
        state = ordered.state
        with nogil:
            failed = allocate(&self.state, wanted, state, &block, &failure)
        if failed:
            self.fail(&failure, f"allocating {nbytes} bytes on {ordered!r}")
        self.drop_owners()
        found.generation = block.generation             # nobody else can name the block yet
        found.ptr = block.ptr
        found.nbytes = wanted
        return self.handle(block, &found, ordered, tag)

    def deallocate(self, DeviceBlock block not None, stream=None):
        """Free a block after every use of it, without waiting on the host.

        Parameters
        ----------
        block : DeviceBlock
            A block of this runtime.
        stream : stream, optional
            Where the free is queued; the default is the stream of the allocation, or its successor if that was unregistered.

        Raises
        ------
        UseAfterFreeError
            The block was freed before (contract 48).
        DriverError
            A wait or the free could not be queued.  The block stays live and the call may be repeated (W31).

        Notes
        -----
        While a window is open on the block the free is carried out by the last close; the state is ``RETIRED`` until
        then.  On a stream that is capturing, it is carried out by the first call after the capture; into a pool it is
        carried out at once, because that makes no driver call.  Adopted memory is let go instead: its owner is dropped
        once the stream, or without one the host, is ordered after every use.
        Thread-safe; the GIL is released.
        """
        cdef StreamState* home = NULL
        cdef Stream given
        cdef Failure failure
        cdef int failed
        if block.core is not self:
            raise StreamMisuseError(f"{block!r} belongs to another runtime than {self!r}")
        if block.released:
            raise UseAfterFreeError(block.generation)
        if stream is not None:
            given = self.stream_of(stream)
            home = given.state
        with nogil:
            failed = free_block(&self.state, block.block.slot, block.generation, home, &failure)
        if failed:
            self.fail(&failure, f"freeing {block!r}")
        block.released = True
        self.drop_owners()

    def adopt(self, ptr, nbytes, stream=None, *, owner=None, str tag=None):
        """Track memory that somebody else allocated, so that it can be used like a block.

        Parameters
        ----------
        ptr, nbytes : int
            The range.
        stream : stream, optional
            Where the owner's work on the memory was queued so far: the first use elsewhere is ordered after that.
            Without one the caller says that the memory is ready for everybody.
        owner : object, optional
            Held until the memory is let go: until the handle is freed or dropped and every use is ordered before the
            stream's further work (without a stream: complete).
        tag : str, optional
            A label.

        Returns
        -------
        DeviceBlock
            Inside a block that is tracked already: another handle of that block, which owns nothing.

        Raises
        ------
        StreamMisuseError
            The range overlaps a tracked block in part.
        """
        cdef Found found
        cdef Failure failure
        cdef Stream home = None
        cdef StreamState* state = NULL
        cdef DeviceBlock block
        cdef uint64_t address
        cdef size_t length
        cdef void* held = NULL
        cdef int failed
        ptr, nbytes = PyNumber_Index(ptr), PyNumber_Index(nbytes)
        if not 0 < ptr <= UINT64_MAX or nbytes < 1 or ptr + nbytes > UINT64_MAX:
            raise ValueError(f"no range of device memory: {nbytes} bytes at {ptr}")
        address, length = ptr, nbytes
        if stream is not None:
            home = self.stream_of(stream)
            state = home.state
        if owner is not None:
            held = <void*>owner
            Py_INCREF(owner)
        with nogil:
            failed = adopt(&self.state, address, length, state, held, &found, &failure)
        if held != NULL and (failed or not found.adopted):
            Py_DECREF(owner)
        if failed and failure.kind == BLOCK_IS_CONTESTED:
            raise StreamMisuseError(f"the range of {nbytes} bytes overlaps the tracked block of generation "
                                    f"{failure.generation} in part: adopt the whole of it, or a part that is inside it")
        if failed:
            self.fail(&failure, f"adopting {nbytes} bytes")
        self.drop_owners()
        block = self.handle(block_at(&self.state, found.slot), &found, home, tag)
        block.released = not found.adopted
        return block

    def reap_pending(self, *, bint blocking=True):
        """Release the bytes of frees that the device has completed.

        Parameters
        ----------
        blocking : bool
            Wait on the host for every free that is queued (default), or only look which are complete.  Blocks that
            somebody was lent and gave back without saying where he used them are freed too: for those the host waits
            for the whole context.

        Raises
        ------
        DriverError
            A stream could not be waited for, or a free inside another call failed and still does.  Every stream was
            visited; what failed stays pending and is tried again by the next call.  Further failures are notes of the
            exception (W28).

        Notes
        -----
        Thread-safe; no lock and no GIL is held while waiting.
        """
        cdef vector[Failure] failures
        cdef size_t i
        collect_exports()
        with nogil:
            reap(&self.state, blocking, &failures)
        self.drop_owners()
        if failures.empty():
            return
        try:
            raise_failure(&failures[0], "reaping pending frees")
        except Exception as error:
            for i in range(1, failures.size()):
                try:
                    raise_failure(&failures[i])
                except Exception as other:
                    error.add_note(f"and: {other}")
            raise

    def find_block(self, ptr):
        """The identity of the live block that contains an address, or None.  O(log n) in the number of blocks."""
        cdef Found found
        ptr = PyNumber_Index(ptr)
        if not 0 <= ptr <= UINT64_MAX or not self.find(ptr, &found, True):
            return None
        try:
            return self.identity(&found)
        finally:
            if found.stream != NULL:
                found.stream.handles.fetch_sub(1)

    cdef BlockId identity(self, Found* found):
        cdef BlockId identity = BlockId.__new__(BlockId)
        identity.ptr = found.ptr
        identity.generation = found.generation
        identity.alloc_stream = handle_of(self.ordering, found.stream) if found.stream != NULL else None
        identity.device_ordinal = self.ordering.context.ordinal
        identity.slot = found.slot
        identity.ordering = self.ordering
        return identity

    # ------------------------------------------------------------------------------------------ streams
    def register_stream(self, stream, *, str discipline=None):
        """The handle of somebody else's stream, which the runtime learns to know at first sight.

        Parameters
        ----------
        stream : object
            An int (the ``CUstream``), or a stream of CuPy, Numba, PyTorch, RMM, cuda.core or cuda.bindings:
            anything with ``__cuda_stream__``.  The object is held while the stream is registered; one that only names
            somebody's stream (an ``ExternalStream``) is as good as an int.
        discipline : {"ordinary", "opaque", "sealed"}, optional
            See `Stream.discipline`.  The default is ordinary, and opaque for the legacy and the per-thread default
            streams. A stream that is known changes its discipline and stays the same registration. What the old one
            allowed is waited for all the same. From then on others are ordered after what is queued on a stream that
            became opaque as far as a block was used there, or will be freed there; it is made to wait for them (the
            hand-back) from the next use on.

        Raises
        ------
        TypeError, ValueError
            This is no stream.
        StreamMisuseError
            The stream is on another device or is capturing a graph; or it would have to change its discipline, and is
            one of the pool's own, was unregistered, or has a window open.

        Warns
        -----
        BlockingStreamWarning
            The stream and the legacy default stream wait for each other (W14).

        Notes
        -----
        Everything that takes a stream registers it.  A registration is known by the driver's own number of the
        stream: a handle that the driver used again is another stream.  Handles 0 and 1 are the legacy default
        stream; handle 2 is a different stream in every thread.  Streams whose object nobody else holds are
        unregistered in time.  Thread-safe.
        """
        if discipline is not None:
            with nogil:
                drain_if_needed(&self.state)
            self.drop_owners()
            return self.streams.register(stream, discipline)
        return self.streams.find(stream)

    def unregister_stream(self, stream, *, successor=None):
        """Forget a foreign stream before its owner destroys it.

        Parameters
        ----------
        stream : object
            The stream.
        successor : stream, optional
            Where the blocks that were allocated there are freed from now on; the default is the pool's default stream.

        Raises
        ------
        StreamMisuseError
            The stream is not registered, is one of the pool's own, is in use (a window or a call is open on it), is
            capturing a graph, or the successor is dead or the same.
        DriverError
            The last event could not be recorded; the stream stays registered.
        """
        with nogil:
            drain_if_needed(&self.state)
        self.drop_owners()
        self.streams.unregister(self.streams.known_as(stream), self.stream_of(successor))

    def stream_count(self):
        """How many places the tables of streams have: those registered, and dead ones that are still waited for."""
        cdef size_t count
        with nogil:
            self.state.order.lock.lock()
            count = self.state.order.streams.size()
            self.state.order.lock.unlock()
        return count

    # ------------------------------------------------------------------------------------------ single uses
    def record_block_use(self, block, stream):
        """File work of unknown access that is queued already, with no prepare.

        It counts as a write: later readers and writers are ordered after it, and so is the free (W5).  Nothing protects
        the work itself; use `use` for that.

        Raises
        ------
        UseAfterFreeError
            The block was freed.  While a window keeps its memory, the work is filed all the same.
        """
        self._file(block, stream, 0)

    def prepare_block_use(self, block, stream, access):
        """Open a window on one block: queue the waits that a use on `stream` dependencies (contract 28).

        `access` is an `Access`.  Close it with `finish_block_use`; for launches that touch several blocks, `use` is one
        window and one position for all of them.
        """
        from xlogmem.launch import LaunchRecorder

        recorder = LaunchRecorder(self.stream_of(stream))
        getattr(recorder, method_of(access))(block)
        recorder.preflight()
        if recorder.recorded_count:
            self.opened.setdefault((id_of(self, block), recorder.stream.id), []).append(recorder)
        else:
            recorder.commit()                           # nothing to touch (W24)

    def finish_block_use(self, block, stream, access):
        """File the use that `prepare_block_use` opened (contract 30).

        Without one, the use is filed for those who come later and removes nothing (W4).
        """
        method_of(access)
        key = (id_of(self, block), self.stream_of(stream).id)
        recorders = self.opened.get(key)
        if not recorders:
            self._file(block, stream, access.value)
            return
        recorder = recorders.pop()
        if not recorders:
            del self.opened[key]
        recorder.commit()

    def _file(self, what, stream, int access):
        cdef Found found
        cdef Stream used = self.stream_of(stream)
        cdef StreamState* state = used.state
        cdef Failure failure
        cdef int failed
        refuse_many(what)
        cdef int known = self.resolve(what, &found, "block")
        if known == 2:
            return                                      # nothing to touch (W24)
        if known == 0:
            raise StreamMisuseError(f"{type(what).__name__} is not memory of {self!r}")
        with nogil:
            failed = record_use(&self.state, found.slot, found.generation, state, access, &failure)
        if failed:
            self.fail(&failure, f"recording a use on {used!r}")
        self.drop_owners()

    @property
    def lost(self):
        """Whether the device was lost to an error that nothing but a new process cures (W36)."""
        return self.state.lost.load() != 0

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
            "abandoned": counted.abandoned, "conflicts": counted.conflicts, "live_blocks": blocks,
            "records": ordered.records, "waits": ordered.waits,
            "host_waits": ordered.host_waits, "known": ordered.elided, "covered": ordered.covered,
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


METHODS = {Access.READ: "read", Access.WRITE: "write", Access.READ_WRITE: "read_write"}


cdef str method_of(object access):
    """The recorder's method for an access."""
    if not isinstance(access, Access) or access not in METHODS:
        raise TypeError(f"access must be Access.READ, Access.WRITE or Access.READ_WRITE, got {access!r}")
    return METHODS[access]


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
        stream = self.alloc_stream.id if self.alloc_stream is not None else None
        return f"<BlockId generation={self.generation} device={self.device_ordinal} stream={stream}>"


@cython.final
@cython.no_gc_clear                         # __dealloc__ needs the core
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

    def free(self, stream=None):
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
        identity.ordering = self.core.ordering
        return identity

    @property
    def device_ordinal(self):
        """The device."""
        return self.core.ordering.context.ordinal if self.core is not None else None

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
        return BlockState.LIVE if state == LIVE else BlockState.RETIRED

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
                for i in range(entries.size()):
                    entries[i].stream = order.streams[entries[i].stream].number
            order.lock.unlock()
        kinds = {ALLOCATED: "allocated", WRITTEN: "written", HAS_READ: "has-read"}
        return {(kinds[entries[i].kind], entries[i].stream): entries[i].position for i in range(entries.size())}

    def __repr__(self):
        if self.core is None:
            return "<DeviceBlock that was never allocated>"
        return (f"<DeviceBlock generation={self.generation} nbytes={self.nbytes} "
                f"stream={self.stream.id if self.stream is not None else None}"
                f"{f' tag={self.tag}' if self.tag else ''} {self.state.value}>")


# ---------------------------------------------------------------------------------------------- parts of blocks
cdef class BlockView:
    """A part of a block that others hold; what users hold is `Buffer`."""

    def __init__(self):
        raise TypeError("views are made by xlogmem itself")

    def __reduce__(self):
        raise TypeError("a part of a block cannot be copied to somewhere else")

    cdef int refuse_stale(self) except -1:
        """Raise if the memory must not be used any more."""
        raise NotImplementedError
