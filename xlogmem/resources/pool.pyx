"""A pool whose free memory carries a frontier: the positions that its next owner is ordered after.

Memory comes from any other resource, *upstream*, in *chunks*, which are cut into *spans*.  A free span keeps the
frontier that it was freed with: the positions that its next owner's stream has to be ordered after.  So a free makes no
driver call and delays no stream, and the memory of a stream that has gone quiet is as good as any.  An allocation
prefers memory that its stream is ordered after already; otherwise its stream waits, on the device, for the former users
of the memory.

Free spans are found by size through two levels of bits, as in TLSF: a row for each power of two, 32 columns in each
row, and a ring of spans in each column.  The pool takes the tightest of a few spans of a column, and of equal spans the
lowest.  That is a best fit in all but crowded columns, at a cost that does not grow with the number of spans (RMM's
pool walks a list), and bookkeeping touches no device memory.  There is one such *free list* for each stream, with the
spans that depend on that stream alone, which the stream can take without a look at any clock; one for spans without
dependencies; and one for spans that depend on several streams.

Splitting a span copies its frontier; coalescing two takes the newest position of each stream.  Free neighbours are
coalesced at once if they depend on the same streams.  Otherwise one stream's memory would come to wait for another's,
so the *pair* is noted, and coalesced when nothing else fits; after that the pool expands.  A pair is also noted if only
one of its spans *needs the host to wait*, because its stream is unowned and no fence covers it: coalesced, both would.
The rest of a new chunk carries a position of the stream on which the chunk was requested.  A chunk that is idle can be
returned to upstream, on a stream that is ordered after its frontier.

Without a maximum, memory that needs no wait comes first, new memory included (ahead.pxi): the host runs ahead of the
device, and streams that take what was freed last would wait for each other in turn.  Where a stream has to wait after
all, it waits for the oldest memory, and fences recorded now and then (marks.pxi) keep it from waiting for younger work
as well.

Taking ordered memory first and leaving neighbours apart saves waits and costs memory.  *Under pressure*, while several
streams have more than half of a maximum in use, memory counts more than waits: ordered memory is taken if it is at most
half larger than the request, and before a larger span is split, pairs are coalesced and the tightest fit is taken,
ordered or not.  In all cases memory that needs the host to wait comes last, after expanding.

Everything here is guarded by the lock of the one runtime that has the pool, because positions mean nothing to another.
The lock is dropped around driver calls and calls upstream; the span that such a call works on is held and on no free
list.  A frontier names streams by index: a registration that gets the index of an unregistered stream goes on counting
where the former stream stopped, so old positions keep their meaning.
"""

cimport cython

from cuda.bindings cimport cydriver as cy
from libc.stdint cimport uint32_t, uint64_t

from xlogmem import _driver
from xlogmem._base.signatures import Signed
from xlogmem._base.units import bytes_in_words, parse_device_id, parse_size
from xlogmem.errors import StreamMisuseError
from xlogmem.resources.async_ import AsyncMemoryResource
from xlogmem.resources.direct import DirectMemoryResource
from xlogmem.resources.layers import described, layers_of
from xlogmem.resources.limiting import LimitingResourceAdaptor
from xlogmem._base.cpp cimport make_new, vector
from xlogmem._base.failures cimport NO_FAILURE, Failure, raise_failure
from xlogmem._base.sections cimport Section
from xlogmem._driver cimport Scope, enter_context, leave_context, process_is_closing, total_memory
from xlogmem.resources.base cimport STREAM_ORDERED, refuse_upstream


__all__ = ["PoolMemoryResource"]

cdef extern from *:
    """
    static inline uint32_t xlogmem_highest(uint64_t bits) { return 63 - __builtin_clzll(bits); }
    static inline uint32_t xlogmem_lowest(uint64_t bits) { return __builtin_ctzll(bits); }
    """
    uint32_t highest "xlogmem_highest"(uint64_t bits) noexcept nogil
    uint32_t lowest "xlogmem_lowest"(uint64_t bits) noexcept nogil
    const size_t NO_LIMIT "SIZE_MAX"

cdef enum:
    SCAN_LIMIT = 16                             # spans of a size class, of which the best is taken
    COLUMN_BITS = 5
    CACHE_SHARE = 8                             # of a pool: what the streams may have in caches together
    CACHE_PRESSURE = 16                         # none is cached with more than maximum / CACHE_PRESSURE in use
    PRESSURE = 2                                # a pool is under pressure with more than maximum / PRESSURE in use
    WASTE = 2                                   # there a span may be larger than the request by request / WASTE
    AHEAD = 2                                   # times the peak: so far a pool expands rather than let a stream wait
    LEAST_AHEAD = 32                            # but at least a 32nd of the device
    MOST_AHEAD = 2                              # and at most the half
    MARKS = 16                                  # marks while as many bytes are freed as a large pool has
    RING_AHEAD = 8                              # fences that each stream keeps, so that the oldest mark is there
    AHEAD_SHARE = 4                             # of a large pool: what it expands by at most for this
    SOME_PAIRS = 64                             # pairs that an allocation visits before it lets its stream wait
    FREES_PER_FENCE = 16                        # frees on an unowned stream; of a pool that may expand
    AUDIT = 64                                  # spans in use of a chunk up to which builds with checks visit them all

cdef size_t LARGEST_REQUEST = <size_t>1 << 50   # bytes; a maximum of this is none
cdef size_t LEAST_CHUNK = <size_t>32 << 20      # bytes of a chunk, where no chunk_size was given
cdef size_t HOST_AHEAD = <size_t>64 << 20       # bytes up to which a pool always expands rather than let the host wait
cdef size_t LEAST_MARKED = <size_t>64 << 20     # bytes freed between two marks: more of them cost more than they save
cdef size_t MOST_CACHED = <size_t>32 << 20      # bytes in the cache of a stream
cdef size_t MOST_CHUNK = <size_t>1 << 30
cdef const char* REAP_HELPS = "but reap_pending() may wait for more"


cdef inline size_t rounded(size_t nbytes) noexcept nogil:
    return (nbytes + ALIGNMENT - 1) & ~(<size_t>ALIGNMENT - 1)

include "pool/frontiers.pxi"   # frontiers of free spans
include "pool/marks.pxi"       # fences behind frees
include "pool/free_lists.pxi"  # free spans by size and by dependency
include "pool/fit.pxi"         # choice of a free span for an allocation
include "pool/ahead.pxi"       # memory without a wait, for several streams without a maximum
include "pool/pairs.pxi"       # adjacent free spans that are not coalesced yet
include "pool/spans.pxi"       # splitting, coalescing, reserving, releasing
include "pool/calls.pxi"       # upstream calls in flight, and threads that wait for them
include "pool/expand.pxi"      # chunks from upstream
include "pool/release.pxi"     # chunks back to upstream
include "pool/resource.pxi"    # the resource interface of the pool
include "pool/figures.pxi"     # statistics


# ---------------------------------------------------------------------------------------------- the pool in Python
cdef object parse_bytes(str name, object value):
    nbytes = parse_size(name, value)
    if nbytes > LARGEST_REQUEST:
        raise ValueError(f"{name} must be a number of bytes, at least 0 and below 2**63, got {value!r}")
    return nbytes


cdef int refuse_beyond_device(DeviceMemoryResource upstream, object initial) except -1:
    """Raise if a pool is to begin with more than the device has.  Resources that are not xlogmem's may have memory of
    the host, too."""
    cdef object total
    for bottom in layers_of(upstream):
        pass
    if not initial or not isinstance(bottom, (AsyncMemoryResource, DirectMemoryResource)):
        return 0
    total = total_memory(upstream.context.device_id)
    if initial > total:
        raise ValueError(f"initial_pool_size is {bytes_in_words(initial)}, and device {upstream.context.device_id} has "
                         f"{bytes_in_words(total)}: give less, or leave it out, and the pool grows as it is used")
    return 0


cdef bint expands_last(DeviceMemoryResource upstream):
    """True if memory counts more than waits: it comes out of a budget, which others may have a share in, or the host
    reaches it, and the device's memory says nothing about how much there is."""
    return upstream.table.host_accessible or any(
        isinstance(layer, LimitingResourceAdaptor) for layer in layers_of(upstream))


@cython.no_gc_clear                         # __dealloc__ needs the resource upstream and the streams
@cython.auto_pickle(False)                  # none is copied: see the base class
cdef class PoolMemoryResource(DeviceMemoryResource):
    """A pool over another resource: allocating and freeing make no driver call once it has grown.

    Free memory keeps the positions that its next owner has to be ordered after, so a free delays no stream, and the
    memory of a stream that has gone quiet is not kept back.  An allocation prefers memory that its stream is ordered
    after; otherwise its stream waits, on the device, for former users.  Without a `maximum_pool_size`, a pool that
    serves several streams first expands, to twice the bytes that were in use at most (but a 32nd of the device's memory
    at least, and half of it at most).
    With one, while several streams have more than half of it in use, an allocation waits rather than split ordered
    memory of more than one and a half times its size.

    Parameters
    ----------
    upstream : DeviceMemoryResource, optional
        The resource that provides chunks: of the device, or of a `PinnedMemoryResource`.  The default is an
        `AsyncMemoryResource` where the device has memory pools and a `DirectMemoryResource` where it has none.
    initial_pool_size : int or str, optional
        Bytes taken from upstream when a runtime takes the pool; by default none (RMM's takes half of the device).
    maximum_pool_size : int or str, optional
        The most bytes that the pool may have from upstream at any time; by default no limit.  With twice the bytes that
        are in use at a time, waits are as few as without a maximum; with less, memory counts more than waits.
    chunk_size : int or str, optional
        The least number of bytes by which the pool expands; a larger request gets a chunk of its own size.  By default
        half of the maximum and then the rest, beside an initial chunk in multiples of the request; without a maximum
        as much as the pool has, between 32 MiB and 1 GiB.
    stream_cache_size : int or str, optional
        The most freed bytes that each stream, and the host, may keep for its own next allocations of the same sizes,
        which then take no lock of the runtime; 0 turns the caches off.  By default the streams share an eighth of the
        pool, 32 MiB at most for each, while a sixteenth of `maximum_pool_size` is in use at most, and the host has
        32 MiB.  Others get that memory before the pool expands or lets them wait.
    device_id : int
        The device, where no upstream is given.

    Attributes
    ----------
    upstream : DeviceMemoryResource
        As given.

    Raises
    ------
    ValueError
        A size is negative, or the sizes contradict each other, or the initial size is more than the device has.
    TypeError
        Upstream is not a `DeviceMemoryResource`.
    StreamMisuseError
        Upstream does not declare how its frees are ordered.

    Notes
    -----
    Pass the pool to a runtime, ``DeviceRuntime(resource=PoolMemoryResource())``, or to an allocation,
    ``runtime.allocate(nbytes, stream, resource=pool)``.  It belongs to that runtime, because its free memory refers to
    positions of that runtime's streams, and memory is handed out through the runtime only.  A free into a pool of host
    memory waits for nothing either: the next owner's stream is ordered after the former uses, and the host accesses the
    memory inside ``with xlogmem.use(xlogmem.host, ...)``.  For a block that the host fills first, allocate on
    `xlogmem.host`: that memory is idle, and the host rarely has to wait for it.  A pool of host memory does not expand
    rather than let a stream wait.
    Sizes and addresses are multiples of 256 bytes.  Thread-safe: an allocation that finds no memory while other threads
    take chunks from upstream, or return them, waits for these calls before it is out of memory.

    Examples
    --------
    >>> pool = xlogmem.PoolMemoryResource(xlogmem.AsyncMemoryResource(), initial_pool_size="64MiB")
    >>> runtime = xlogmem.DeviceRuntime(resource=pool)
    >>> runtime.allocate("1MiB").free()             # no driver call
    >>> pool.pool_size()
    67108864
    """

    __signature__ = Signed("upstream=None, initial_pool_size=None, maximum_pool_size=None, *, chunk_size=None, "
                           "stream_cache_size=None, device_id=0")

    def __init__(self, upstream=None, initial_pool_size=None, maximum_pool_size=None, *, chunk_size=None,
                 stream_cache_size=None, device_id=0):
        if self.upstream is not None:
            raise RuntimeError("a resource is initialised once")
        initial = parse_bytes("initial_pool_size", 0 if initial_pool_size is None else initial_pool_size)
        maximum = parse_bytes("maximum_pool_size", LARGEST_REQUEST if maximum_pool_size is None else maximum_pool_size)
        chunk = parse_bytes("chunk_size", 0 if chunk_size is None else chunk_size)
        if stream_cache_size is not None:
            stream_cache_size = parse_bytes("stream_cache_size", stream_cache_size)
        if maximum < ALIGNMENT:
            raise ValueError(f"maximum_pool_size must be at least {ALIGNMENT} bytes, got {maximum}")
        if initial > maximum:
            raise ValueError(f"initial_pool_size is {bytes_in_words(initial)}, which is more than maximum_pool_size, "
                             f"{bytes_in_words(maximum)}")
        if upstream is None:
            device_id = parse_device_id(device_id)
            upstream = (AsyncMemoryResource(device_id) if _driver.supports_memory_pools(device_id)
                        else DirectMemoryResource(device_id))
        refuse_upstream(upstream, "a pool on it")
        refuse_beyond_device(upstream, initial)
        self.upstream = upstream
        self.context = self.upstream.context
        self.state.upstream = &self.upstream.table
        self.state.maximum = maximum & ~(<size_t>ALIGNMENT - 1)
        self.state.initial = min(rounded(initial), self.state.maximum)
        self.state.chunk_size = rounded(chunk)
        self.state.ready = make_new[FreeList]()
        self.state.mixed = make_new[FreeList]()
        self.functions.allocate = allocate_unlocks
        self.functions.allocate_at_once = allocate_at_once_locked
        self.functions.deallocate = deallocate_locked
        self.functions.trim = trim_unlocks
        self.functions.end = release_all
        self.state.cache_size = LARGEST_REQUEST
        if stream_cache_size is not None:
            self.state.cache_size = min(stream_cache_size, LARGEST_REQUEST - 1)
        self.functions.grain = ALIGNMENT if self.state.cache_size else 0
        self.functions.host_room = min(self.state.cache_size, MOST_CACHED)
        self.functions.frees_per_fence = FREES_PER_FENCE if self.state.maximum == LARGEST_REQUEST else 1
        self.table.self = &self.state
        self.table.order = STREAM_ORDERED
        self.table.guard = self.upstream.table.guard
        self.table.host_accessible = self.upstream.table.host_accessible
        self.table.frontiers = &self.functions

    def __del__(self):
        """Return the chunks while an upstream that is written in Python is whole."""
        if not process_is_closing():
            with nogil:
                release_unless_foreign(&self.state)

    def __dealloc__(self):
        if not process_is_closing():
            with nogil:
                release_unless_foreign(&self.state)
        delete_tables(&self.state)

    cdef int bind(self, StreamPool stream_pool) except -1:
        cdef Failure failure
        cdef Section section
        cdef Scope scope
        cdef int failed
        section.begin(self)
        if self.stream_pool is stream_pool:
            return 0
        if self.upstream is None:
            raise StreamMisuseError("the pool was never initialised")
        if self.stream_pool is not None:
            raise StreamMisuseError("the memory pool belongs to another runtime; give each runtime a pool of its own")
        if self.state.maximum == LARGEST_REQUEST:
            total = 0 if expands_last(self.upstream) else total_memory(self.context.device_id)
            self.state.least_ahead, self.state.most_ahead = total // LEAST_AHEAD, total // MOST_AHEAD
        self.upstream.bind(stream_pool)
        self.stream_pool = stream_pool
        self.state.order = &stream_pool.ordering.state
        if self.state.maximum == LARGEST_REQUEST or self.table.host_accessible:
            with nogil:                                 # other threads may use the streams by now
                self.state.order.lock.lock()
                self.state.order.ring = max(self.state.order.ring, <uint32_t>RING_AHEAD)
                self.state.order.lock.unlock()
        if self.state.initial == 0:
            return 0
        with nogil:
            failed = enter_context(self.state.order.context, &scope, &failure)
            if not failed:
                failed = preload(&self.state, self.state.initial, &failure)
                leave_context(&scope)
        if failed:
            self.stream_pool = None
            self.state.order = NULL
            raise_failure(&failure, f"taking the first {bytes_in_words(self.state.initial)} of a pool from "
                                    f"{self.upstream!r}")

    cdef cy.CUstream handle_on_device(self, object stream, str method) except? <cy.CUstream>-1:
        raise StreamMisuseError(f"{type(self).__name__} does not support {method} (unsupported) by itself: its free "
                                "memory refers to positions of a runtime's streams. Give it to a DeviceRuntime and "
                                "allocate there")

    def trim(self, bytes_to_keep=0):
        """Return idle chunks (chunks that are free as a whole) to the resource upstream.

        Parameters
        ----------
        bytes_to_keep : int
            The pool does not get smaller than this.

        Returns
        -------
        int
            Bytes returned.

        Raises
        ------
        DriverError
            A chunk could not be returned and stays in the pool; the others were tried.
        StreamMisuseError
            The same, because a stream is capturing a graph.

        Notes
        -----
        The free of a chunk is ordered, on the device, after all uses of its memory; only with an upstream that takes no
        stream (`DirectMemoryResource`) the host waits.  Thread-safe.
        """
        cdef PoolState* pool = &self.state
        cdef vector[Failure] failures
        cdef Failure failure
        cdef Scope scope
        cdef size_t keep = parse_bytes("bytes_to_keep", bytes_to_keep)
        cdef size_t released = 0
        if pool.order == NULL:
            return 0
        with nogil:
            if enter_context(pool.order.context, &scope, &failure):
                failures.push_back(failure)
            else:
                pool.order.lock.lock()
                empty_own_caches_locked(pool, NULL)
                released = pool.size
                release_idle_unlocks(pool, keep, NULL, &failures)
                released -= pool.size
                pool.order.lock.unlock()
                if pool.upstream.trim != NULL and pool.upstream.trim(pool.upstream.self, &failure):
                    failures.push_back(failure)
                leave_context(&scope)
        if failures.empty():
            return released
        failure = failures[0]
        failures[0].kind = NO_FAILURE
        with nogil:
            drop_failures(&failures)
        raise_failure(&failure, "returning chunks of the pool", pool.order.lost)

    def pool_size(self):
        """Bytes that the pool has from upstream.  Thread-safe."""
        return figures_of(&self.state)["pool_size"]

    @property
    def is_device_accessible(self):
        """As of the resource upstream."""
        return self.upstream.is_device_accessible

    @property
    def is_managed(self):
        """As of the resource upstream."""
        return self.upstream.is_managed

    @property
    def upstream_mr(self):
        """The RMM resource below; an AttributeError where there is none."""
        return self.upstream.upstream_mr

    def statistics(self):
        """Statistics of the pool's memory and of its operations.

        Returns
        -------
        dict
            ``pool_size`` is the number of bytes from upstream.  Of these, ``used_bytes`` are handed out (``peak_bytes``
            is their peak) and ``free_bytes`` are not.  The free bytes are in ``free_spans`` places, the largest of
            which has ``largest_free_bytes``.  ``idle_bytes`` are in chunks that are free as a whole; there are
            ``chunks`` chunks in all.  ``fragmentation`` is the share of the free bytes outside of the largest place.

            ``allocations``, ``splits`` and ``joins`` count operations, ``grown`` and ``released`` the chunks taken from
            upstream and returned.  ``waited`` counts the allocations whose stream had to wait for a former user of
            the memory.

        Notes
        -----
        Visits every span of the pool under the lock of its runtime.  Thread-safe.
        """
        return figures_of(&self.state)

    def memory_summary(self):
        """Return the figures of `statistics` as text, for a person to read."""
        return f"{self!r}\n{summary_of(&self.state)}"

    def __repr__(self):
        return described(self)
