# `Core`: the parts of a runtime, and the way to them from other rooms.
#
# It resolves arguments (streams, blocks by handle, identity or address) and turns failures into exceptions.  The
# operations that users call are `Runtime`'s, in runtime.pxi.

import warnings

cimport cython

from cpython.exc cimport PyErr_SetInterrupt
from cpython.ref cimport PyObject, Py_INCREF
from libc.stdint cimport uint32_t, uint64_t

from xlogmem._driver import ProcessLock
from xlogmem._foreign.stream_owners import find_owner
from xlogmem.errors import StaleBufferError, StreamMisuseError, XlogmemError
from xlogmem._base.cpp cimport vector
from xlogmem._base.failures cimport (
    BLOCK_IS_AWAITED,
    BLOCK_IS_ON_DEVICE,
    BLOCK_IS_CONTESTED,
    BLOCK_IS_STALE,
    LOST,
    WAIT_IS_CIRCULAR,
    raise_failure,
)
from xlogmem._base.labels cimport label_of_tag, stack_for
from xlogmem._base.sections cimport Section
from xlogmem._core cimport (
    READ,
    READ_WRITE,
    CoreCounters,
    Figures,
    OpenUse,
    add_export_locked,
    add_resource,
    begin_peak,
    count_all_locked,
    drain_by_itself,
    encode_for_check,
    export_in_use_locked,
    fence_export,
    find_by_address_locked,
    find_from_locked,
    find_open_use_locked,
    find_site_for_check,
    is_still_locked,
    look,
    peak_of,
    set_resource,
    settle_pending,
    start_calls,
    tear_down,
    use_caches,
    wait_for_pending,
    watched,
)
from xlogmem._driver cimport LEAF_LOCK, PER_THREAD, forget_at_forks, process_is_closing, take_at_forks
from xlogmem._foreign.named cimport Extent, name_memory
from xlogmem._foreign.objects cimport StreamRegistry
from xlogmem._order cimport (
    ADAPTIVE,
    LAZY,
    PRECISE,
    OrderCounters,
    OrderState,
    StreamState,
    count_cached_locked,
    has_no_owner,
)
from xlogmem.resources.base cimport Allocation, DeviceMemoryResource, ResourceTable, refuse_undeclared
from xlogmem.streams cimport StreamPool, counted_handle, parse


POLICIES = {"lazy": LAZY, "precise": PRECISE, "adaptive": ADAPTIVE}

cdef extern from "Python.h":
    Py_ssize_t Py_REFCNT(PyObject*)

cdef object binding_lock = ProcessLock()    # of pools, and of resources that allocations name for the first time


@cython.no_gc_clear                         # __dealloc__ needs what the core is made of
cdef class Core:
    """The streams, the resource and the tables of one runtime.  `DeviceRuntime` is what users hold.

    Parameters
    ----------
    stream_pool : StreamPool
        The pool of the streams that this core knows.  A pool serves one core.
    resource : DeviceMemoryResource
        The resource that provides the bytes.
    policy : {"adaptive", "precise", "lazy"}
        When a commit records an event at once.
    """

    def __cinit__(self, StreamPool stream_pool not None, DeviceMemoryResource resource not None, *,
                  str policy="adaptive", bint may_wait=True):
        if policy not in POLICIES:
            raise ValueError(f"policy {policy!r} is unknown; choose one of {', '.join(POLICIES)}")
        if stream_pool.ordering is None:
            raise StreamMisuseError("the stream pool was never initialised")
        refuse_undeclared(resource, "cross-stream use tracking")
        if resource.context is not stream_pool.ordering.context:
            raise StreamMisuseError(
                f"the stream pool is on device {stream_pool.ordering.context.device_id}, the resource on device "
                f"{resource.context.device_id}")
        with binding_lock:
            self.begin(stream_pool, resource, policy)
        self.streams = StreamRegistry.__new__(StreamRegistry, self.ordering)
        if may_wait:                                    # not while a graph is captured
            finish_ended(self.ordering.context)
        resource.bind(stream_pool)
        use_caches(&self.state)

    cdef int begin(self, StreamPool stream_pool, DeviceMemoryResource resource, str policy) except -1:
        """Take the pool, unless another runtime has it."""
        if stream_pool.ordering.core is not None and stream_pool.ordering.core() is not None:
            raise StreamMisuseError("the stream pool belongs to another runtime; give each runtime a pool of its own")
        self.stream_pool = stream_pool
        self.ordering = stream_pool.ordering
        self.resource = resource
        self.others = ()
        self.adoptions = {}
        self.state.order = &self.ordering.state
        self.state.order.policy = POLICIES[policy]
        self.state.order.lost = &self.state.marks
        set_resource(&self.state, watched(self.state.order, &resource.table))
        start_calls(&self.state)
        take_at_forks(&self.state.windows_lock, LEAF_LOCK)
        return self.ordering.begin_core(self)

    def __del__(self):
        """Free dropped blocks while the resource is whole.  A resource that is written in Python and refers to its
        runtime is in a cycle with the runtime, and the collector empties the resource before `__dealloc__`."""
        cdef bint more
        self.owners_live = Py_REFCNT(<PyObject*>self) == 1         # else a collector is at it, and may end them first
        self.adoptions = None                           # no owner ends anything here any more
        for recorders in getattr(self, "_prepared", {}).values():
            recorders.clear()                           # a collector may end these lists when their runtime is gone
        if self.state.order != NULL and not process_is_closing():
            self.ordering.end_core()
            if self.streams is not None:
                self.streams.disown_elsewhere()
            with nogil:
                more = tear_down(&self.state, False, self.owners_live, False)
            if more and not self.owners_live:
                keep_whole(self)
            self.drop_owners()

    def __dealloc__(self):
        """Free everything.  No handle is left: blocks that are still live were dropped, failed to be freed, or belong
        to the C table."""
        cdef bint more = False
        if kept_whole:
            keep_no_longer(self)
        if self.state.order != NULL and not process_is_closing():
            with nogil:
                more = tear_down(&self.state, True, self.owners_live, False)
        if self.state.order != NULL:
            self.state.order.lost = NULL                # the pool may have another core by and by
        self.drop_owners()
        if more:
            keep_remains(self)
        elif self.state.order != NULL:                  # their free is queued, and nothing will look for its end
            settle_pending(&self.state)
        forget_at_forks(&self.state.windows_lock)
        delete_tables(&self.state)

    # ------------------------------------------------------------------------------------------ failures
    cdef int fail(self, Failure* failure, str what, str where="") except -1:
        """Raise the failure that an operation reported; `where` begins the message."""
        self.drop_owners()
        if failure.kind in (BLOCK_IS_STALE, BLOCK_IS_CONTESTED, BLOCK_IS_AWAITED, WAIT_IS_CIRCULAR,
                            BLOCK_IS_ON_DEVICE):
            words = described(self, failure.generation, f"block {failure.generation}")
            lines = recorded_lines(failure.generation)
            try:
                raise_failure(failure, what, &self.state.marks, where, words)
            except XlogmemError as error:
                error.args = (f"{error}{lines}",)
                raise
        raise_failure(failure, what, &self.state.marks)

    cdef int fail_all(self, vector[Failure]* failures, str what) except -1:
        """Raise the first failure, with the others as its notes; an interrupt among these is raised too."""
        cdef size_t i
        try:
            raise_failure(&failures[0][0], what, &self.state.marks)
        except BaseException as error:
            for i in range(1, failures.size()):
                try:
                    raise_failure(&failures[0][i])
                except BaseException as other:
                    error.add_note(f"and: {other}")
                    if isinstance(other, KeyboardInterrupt):
                        PyErr_SetInterrupt()
            raise
        return 0

    def _wait_for_pending(self):
        """Wait for pending frees on behalf of another runtime that has exhausted a budget which both share."""
        with nogil:
            wait_for_pending(&self.state)
        self.drop_owners()

    @cython.final                           # called directly, and compiled into its callers
    cdef inline int drop_owners(self) except -1:
        """Drop the owners of adopted memory that the last operations freed."""
        if self.state.has_pending_decrefs:
            drop_owners_of(&self.state)
        return 0

    cdef int warn_of_eviction(self) except -1:
        """Warn, once, that the resource handed out memory of a live block."""
        self.state.has_evicted.store(False)
        warnings.warn(
            f"{self.resource!r} handed out memory of a live block, {bytes_in_words(self.state.evicted_nbytes)} at "
            f"{self.state.evicted_ptr:#x}. That block's handle is stale now; work on it may corrupt the new owner's "
            "data. The resource is broken, or the block was freed, or adopted after a free, without its knowledge. "
            "Further ones are counted, in counters()['evictions']", RuntimeWarning, stacklevel=1)
        return 0

    # ------------------------------------------------------------------------------------------ resources
    cdef ResourceTable* known_table(self, object resource) noexcept:
        """Return the table of the resource that an allocation names (None: the runtime's own); NULL if the resource is
        not bound yet."""
        cdef Section section
        cdef size_t i
        if resource is None or resource is self.resource:
            return self.state.resource
        section.begin(self)
        for i in range(len(self.others)):
            if self.others[i] is resource:
                return self.state.others[i]
        return NULL

    cdef ResourceTable* table_of(self, object resource) except NULL:
        """Return that table; the resource is bound at its first use."""
        cdef ResourceTable* known = self.known_table(resource)
        return known if known != NULL else self.bind_other(resource)

    cdef DeviceMemoryResource checked_resource(self, object given):
        """Return the resource that an allocation names; raises if it cannot be used here."""
        cdef DeviceMemoryResource resource
        if not isinstance(given, DeviceMemoryResource):
            raise TypeError("resource must be a DeviceMemoryResource of xlogmem, such as PinnedMemoryResource(), not "
                            f"{given!r}")
        resource = given
        try:
            refuse_undeclared(resource, "allocations of a runtime")
        except StreamMisuseError as error:
            raise StreamMisuseError(f"resource: {error}") from None
        if resource.context is not self.ordering.context:
            raise StreamMisuseError(f"resource: it is on device {resource.context.device_id}, and the runtime on "
                                    f"device {self.device_id}: make it with device_id={self.device_id}")
        return resource

    cdef ResourceTable* bind_other(self, object given) except NULL:
        """Bind a resource besides the runtime's own.  It is held until the runtime ends."""
        cdef DeviceMemoryResource resource = self.checked_resource(given)
        try:
            with binding_lock:
                if not any([other is resource for other in self.others]):   # another thread may have bound it
                    resource.bind(self.stream_pool)
                    self.add(resource, (*self.others, resource))
        except StreamMisuseError as error:
            raise StreamMisuseError(f"resource: {error}") from None
        return self.table_of(resource)

    cdef int add(self, DeviceMemoryResource resource, tuple others) except -1:
        cdef Section section
        section.begin(self)
        add_resource(&self.state, watched(self.state.order, &resource.table))
        self.others = others
        return 0

    cdef DeviceMemoryResource resource_with(self, ResourceTable* table):
        """Return the resource of this runtime that has a table."""
        cdef Section section
        cdef size_t i
        section.begin(self)
        for i in range(len(self.others)):
            if self.state.others[i] == table:
                return self.others[i]
        return self.resource

    # ------------------------------------------------------------------------------------------ streams
    cdef Stream stream_of(self, object stream):
        """Return the handle of a stream argument: a foreign stream is registered on first use; None means the pool's
        default."""
        if stream is None:
            return self.stream_pool.default
        return self.streams.find(stream)

    cdef Stream stream_for_use(self, object stream):
        """Return the handle of a stream on which blocks are used; it may be on another device."""
        if stream is None:
            return self.stream_pool.default
        return self.streams.find_for_use(stream)

    cdef Stream owned_stream(self, object handle):
        """Return the registration of a stream that is known to stay alive: an own stream, a default stream, or a stream
        whose owner is held here or can be found.  None for another handle."""
        cdef Stream own
        if not isinstance(handle, int) or handle <= PER_THREAD:
            return self.stream_of(handle)
        own = self.streams.own(parse(handle), False)
        if own is not None:
            return own
        if not self.streams.owns(parse(handle)):
            handle = find_owner(handle, self.device_id)
        return self.stream_of(handle) if handle is not None else None

    cdef Stream writer_of(self, DeviceBlock block):
        """Return the stream on which the newest write of the block was filed; None if there is none, or if its stream
        was unregistered."""
        cdef OrderState* order = self.state.order
        cdef StreamState* found = NULL
        cdef uint64_t writer = 0
        cdef size_t i
        with nogil:
            order.lock.lock()
            if is_still_locked(&self.state, block.block, block.generation):
                writer = block.block.writer
            for i in range(order.streams.size() if writer else 0):
                if order.streams[i].number + 1 == writer and order.streams[i].alive:
                    found = order.streams[i]
                    found.handles.fetch_add(1)          # it is neither deleted nor handed out meanwhile
                    break
            order.lock.unlock()
        return self.streams.at_home(counted_handle(self.ordering, found)) if found != NULL else None

    # ------------------------------------------------------------------------------------------ blocks
    cdef bint find(self, uint64_t ptr, Found* found) noexcept:
        """Find the live block that contains an address.  Its stream may be deleted as soon as the lock is released."""
        cdef bint there
        if self.state.order.lock.try_lock():
            there = find_by_address_locked(&self.state, ptr, found)
            self.state.order.lock.unlock()
            return there
        with nogil:
            self.state.order.lock.lock()
            there = find_by_address_locked(&self.state, ptr, found)
            self.state.order.lock.unlock()
        return there

    cdef bint find_held(self, uint64_t ptr, Found* found) noexcept:
        """Find a block as `find` does.  Its stream gets one more handle, which the caller removes again."""
        cdef bint there
        with nogil:
            self.state.order.lock.lock()
            there = find_by_address_locked(&self.state, ptr, found)
            if there and found.stream != NULL:
                found.stream.handles.fetch_add(1)
            self.state.order.lock.unlock()
        return there

    cdef int free_dropped(self) except -1:
        """Free blocks that were dropped: their library may have handed out the address again."""
        if self.state.dropped.load() != NULL:
            with nogil:
                drain_by_itself(&self.state)
        return 0

    cdef bint find_from(self, uint64_t ptr, uint64_t last, Found* found) except -1:
        """Find the live block that contains an address, or else the first that begins above it, up to `last`."""
        cdef bint there
        self.free_dropped()
        with nogil:
            self.state.order.lock.lock()
            there = find_from_locked(&self.state, ptr, last, found)
            self.state.order.lock.unlock()
        return there

    cdef Resolved resolve(self, object what, Found* found, Extent* extent, str where) except? UNTRACKED:
        """Resolve an argument: TRACKED or READ_ONLY_HERE, with the identity in `found`; UNTRACKED, NOTHING, SEVERAL; or
        BEYOND, with the block in which an array begins in `found`, and the array's bytes in `extent`.  Blocks of other
        runtimes are refused; the operation checks if a block is alive."""
        cdef DeviceBlock block
        cdef BlockId identity
        if isinstance(what, DeviceBlock):
            block = <DeviceBlock>what
            if block.core is not self:
                if is_empty_of(block, self):
                    return NOTHING
                raise StreamMisuseError(f"{where}: {block!r} belongs to another runtime than {self!r}")
            found.slot = block.block.slot
            found.generation = block.generation
            return TRACKED
        if isinstance(what, BlockId):
            identity = <BlockId>what
            if identity.ordering is not self.ordering:
                raise StreamMisuseError(f"{where}: {identity!r} belongs to another runtime than {self!r}")
            if identity.ptr == 0:                       # of no bytes
                return NOTHING
            found.slot = identity.slot
            found.generation = identity.generation
            return TRACKED
        if isinstance(what, BlockView):
            if (<BlockView>what).core is not self:
                raise StreamMisuseError(f"{where}: {what!r} belongs to another runtime than {self!r}")
            (<BlockView>what).refuse_stale()
            block = (<BlockView>what).held()
            if block is None:
                (<BlockView>what).refuse_stale()        # another thread has released it meanwhile
                return NOTHING
            found.slot = block.block.slot
            found.generation = block.generation
            return TRACKED
        return self.resolve_named(what, found, extent, where)

    cdef Resolved resolve_named(self, object what, Found* found, Extent* extent, str where) except? UNTRACKED:
        """Resolve an argument of a type that is not xlogmem's; `extent` gets the memory that it names."""
        if isinstance(what, (list, tuple, dict)):
            return SEVERAL
        if not name_memory(what, where, extent):
            return NOTHING
        return self.find_extent(extent, found)

    cdef int label(self, Allocation* wanted, str tag, int depth) except -1:
        """Set the tag of a block, and as many frames of the stack of this call as the resource wants; the caller
        releases both."""
        if tag is not None:
            wanted.tag = label_of_tag(tag)
            encode_for_check(wanted.tag)
        find_site_for_check()
        wanted.stack = stack_for(depth)
        return 0

    cdef Resolved find_extent(self, Extent* extent, Found* found) except? UNTRACKED:
        """Find the block in which the memory begins."""
        self.free_dropped()
        if not self.find(extent.ptr, found) or self.has_ended(found.generation):
            return UNTRACKED
        inside = extent.first >= found.ptr and extent.last - found.ptr < found.nbytes
        if not inside:
            return BEYOND
        return READ_ONLY_HERE if extent.read_only else TRACKED

    cdef bint has_ended(self, uint64_t generation) except -1:
        """True if a block is foreign memory whose owner is gone: other memory may have its address now."""
        return bool(self.adoptions) and adoption_has_ended(self.adoptions, generation)

    cdef BlockId identity(self, uint64_t ptr, uint64_t generation, uint32_t slot, Stream stream):
        cdef BlockId identity = BlockId.__new__(BlockId)
        identity.ptr = ptr
        identity.generation = generation
        identity.alloc_stream = stream
        identity.device_id = self.ordering.context.device_id
        identity.slot = slot
        identity.ordering = self.ordering
        return identity

    cdef int export_block(self, DeviceBlock block, StreamState* stream, bint write, Export* export) except -1:
        """Export a block to a consumer, until the consumer releases the export (NULL: until the block is freed).
        Called inside a window on the block.

        A stream without a known owner is not used again: a block whose export is released there is freed by a blocking
        reap.
        """
        if block is None:                               # released by another thread
            raise StaleBufferError("consumed")
        cdef bint exported
        if stream != NULL and has_no_owner(stream):
            stream = NULL
        if self.state.order.lock.try_lock():
            exported = add_export_locked(&self.state, block.block, block.generation, stream, export != NULL)
            self.state.order.lock.unlock()
        else:
            with nogil:
                self.state.order.lock.lock()
                exported = add_export_locked(&self.state, block.block, block.generation, stream, export != NULL)
                self.state.order.lock.unlock()
        if not exported:
            raise stale_handle(block)
        if export != NULL:
            export.block = <void*>block
            export.stream = stream
            export.access = READ_WRITE if write else READ
            Py_INCREF(block)
        return 0

    cdef bint export_in_use(self, DeviceBlock block, ByteRange* part, OpenUse* use, Export* export) except -1:
        """Export a block to a consumer on the stream of the use that this thread is inside of.  False if the use does
        not name the bytes, and if there is none: then nothing was done, and `use` has the stream."""
        cdef OrderState* order = self.state.order
        cdef bint exported
        if order.lock.try_lock():
            exported = export_in_use_locked(&self.state, block.block, block.generation, part, use)
            order.lock.unlock()
        else:
            with nogil:
                order.lock.lock()
                exported = export_in_use_locked(&self.state, block.block, block.generation, part, use)
                order.lock.unlock()
        if exported:
            export.block = <void*>block
            export.stream = use.stream
            export.access = use.access
            Py_INCREF(block)
        return exported

    cdef bint is_named_in_use(self, DeviceBlock block, ByteRange* part, OpenUse* use):
        """True if the use that this thread is inside of names the bytes of a block; `use` says how."""
        self.find_open_use(block, part, use)
        return use.access != 0 and not use.several

    cdef void find_open_use(self, DeviceBlock block, ByteRange* part, OpenUse* use) noexcept:
        """Find the use that this thread is inside of, and its access to bytes of a block (None: to none)."""
        cdef OrderState* order = self.state.order
        cdef Block* named = block.block if block is not None else NULL
        cdef uint64_t generation = block.generation if block is not None else 0
        if order.lock.try_lock():
            find_open_use_locked(&self.state, named, generation, part, use)
            order.lock.unlock()
        else:
            with nogil:
                order.lock.lock()
                find_open_use_locked(&self.state, named, generation, part, use)
                order.lock.unlock()

    cdef int cover_export(self, Stream consumer) except -1:
        """Fence an export on this stream, after the window of the export."""
        if consumer.state.unowned:                      # others need none
            with nogil:
                fence_export(&self.state, consumer.state)
        return 0

    # ------------------------------------------------------------------------------------------ properties
    @property
    def resources(self):
        """The resources that blocks of the runtime come from, as a tuple: the runtime's own first, then those that
        allocations have named, in that order.  They are held until the runtime ends."""
        cdef Section section
        section.begin(self)
        return (self.resource, *self.others)

    @property
    def lost(self):
        """True if the device was lost to an error after which only a new process helps."""
        return self.state.marks.load() & LOST != 0

    @property
    def device_id(self):
        """The number of the device."""
        return self.ordering.context.device_id

    @property
    def policy(self):
        """``"adaptive"``, ``"precise"`` or ``"lazy"``: when a commit records an event at once."""
        return {value: name for name, value in POLICIES.items()}[self.state.order.policy]

    @property
    def live_bytes(self):
        """Bytes of the blocks that are not freed."""
        return self._bytes(False)[0]

    @property
    def pending_bytes(self):
        """Freed bytes whose free the device has not completed.  The device is queried, without a wait."""
        return self._bytes(True)[1]

    @property
    def bytes_outstanding(self):
        """Live and pending bytes together, read in one step."""
        return sum(self._bytes(True))

    @property
    def peak_bytes(self):
        """The peak of live bytes since the runtime was made or `reset_peak_bytes` was called.

        With a pool, memory that streams keep in caches for further allocations counts too: at most
        ``stream_cache_size`` for each stream.
        """
        cdef uint64_t peak
        with nogil:
            peak = peak_of(&self.state, NULL)
        return peak

    def reset_peak_bytes(self):
        """Restart the peak from the bytes that are live now.  Thread-safe; scopes go on."""
        with nogil:
            begin_peak(&self.state, NULL)

    cdef tuple _bytes(self, bint query):
        cdef Figures figures
        cdef uint64_t pending
        with nogil:
            if query:
                look(&self.state)
            self.state.order.lock.lock()
            count_all_locked(&self.state, &figures)
            pending = self.state.pending_bytes
            self.state.order.lock.unlock()
        return figures.live_bytes, pending

    def counters(self):
        """Counts of the runtime's operations since it was made, as a dictionary.

        ``records``, ``waits`` and ``host_waits`` are driver calls; ``known`` counts needed orderings that held already,
        ``covered`` those for which an event recorded before was enough.  ``cached`` counts the allocations that got
        memory which the same stream, or the host, had freed, without a call of the resource.
        """
        cdef OrderState* order = self.state.order
        cdef OrderCounters ordered
        cdef uint64_t cached
        cdef CoreCounters counted
        cdef Figures figures
        with nogil:
            order.lock.lock()
            ordered = order.counters
            count_all_locked(&self.state, &figures)
            cached = count_cached_locked(order, NULL)
            order.lock.unlock()
        counted = figures.counters
        return {
            "allocations": counted.allocations, "cached": cached, "frees": counted.frees,
            "deferred_frees": counted.deferred_frees, "failed_frees": counted.failed_frees,
            "uses": counted.uses, "cancelled": counted.cancelled, "abandoned": counted.abandoned,
            "conflicts": counted.conflicts, "conflict_waits": counted.conflict_waits, "evictions": counted.evictions,
            "live_blocks": figures.live_blocks, "records": ordered.records, "waits": ordered.waits,
            "host_waits": ordered.host_waits, "known": ordered.elided, "covered": ordered.covered,
        }

    def __reduce__(self):
        raise TypeError("a runtime cannot be copied: it owns its memory")

    def __repr__(self):
        return (f"<{type(self).__name__} device={self.device_id} resource={type(self.resource).__name__} "
                f"policy={self.policy}>")
