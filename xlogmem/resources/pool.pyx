"""A pool whose free memory knows who still uses it.

Memory comes from any other resource in *chunks*, which are cut into *spans*.  A free span keeps the frontier that it
was freed with: the positions that its next owner has to be ordered after.  So a free makes no driver call and delays
no stream, and memory is never kept back for a stream that has gone quiet: an allocation takes, by preference, memory
that its stream knows already, and otherwise its stream waits, on the device, for what it takes.

Spans know their neighbours, so splitting and joining take constant time.  Free spans are found by size through two
levels of bits, as in TLSF: a row for each power of two, 32 columns in each, and a ring of spans in each column.  From
a column the best of a few is taken, the lowest of equals, so the fit is as tight as a best fit in all but crowded
columns, at a cost that does not grow with the number of spans (RMM's pool walks a list), and no memory of the device
is raised_to for bookkeeping.  There is such a *free_list* for each stream, with the spans that only that stream has to be
waited for, which it can take without a look at anybody's knowledge; one for spans that nobody has to wait for; and one
for those that several streams have to be waited for.

A split copies the frontier, a join takes the newest position of each stream.  Free neighbours are joined at once if the
same streams have to be waited for; other joins would make one stream's memory wait for another's, so they are put off:
the *pair* between the two is noted, and joined when nothing else fits.  Then the pool grows; the rest of a new chunk
carries a position of the stream that it was asked for on.  A stream that waited for several others to have a part of
what they freed answers for them in the rest.  A chunk that is free as a whole can be given back, on a stream that is
ordered after its frontier.

Known memory first, and neighbours left apart: that saves waits and costs memory.  So it is not so while several streams
have more than half of a maximum in use.  Then the pool is *tight*: known memory is taken up to half more than is asked
for, and before a larger span is cut, free neighbours are joined and the tightest of all is taken, known or not.

Everything here is guarded by the lock of the one runtime that has the pool, because its positions mean nothing to
another.  The lock is released around driver calls and calls to the resource upstream; what such a call works on belongs
to nobody else meanwhile.  A frontier names streams by their place: what is given a dead stream's place goes on counting
where that stopped, so old positions stay true.
"""
cimport cython

from cpython.number cimport PyNumber_Index
from cuda.bindings cimport cydriver as cy
from libc.stdint cimport UINT64_MAX, uint32_t, uint64_t
from libc.stdio cimport snprintf

from xlogmem._cpp cimport check, checked, larger, vector
from xlogmem._driver cimport Scope, enter_context, leave_context, process_is_closing
from xlogmem._failures cimport (
    PYTHON_RAISED,
    RESOURCE_FAILED,
    SOURCE_IS_CAPTURING,
    STREAM_IS_CAPTURING,
    Failure,
    drop_exception,
    is_out_of_memory,
    raise_failure,
)
from xlogmem._order cimport (
    ALLOCATED,
    ENTRY_KINDS,
    Dependency,
    StreamState,
    host_wait_or_sync_unlocks,
    is_ordered_after_locked,
    may_be_destroyed,
    order_after_unlocks,
    order_or_sync_unlocks,
    needs_context_sync_locked,
    refuse_if_capturing_unlocks,
    advance,
)
from xlogmem.resources.base cimport HOST_SYNCHRONOUS, STREAM_ORDERED, UNDECLARED

from xlogmem import _driver
from xlogmem.errors import StreamMisuseError
from xlogmem.resources.async_ import AsyncMemoryResource
from xlogmem.resources.direct import DirectMemoryResource

__all__ = ["PoolMemoryResource", "format_bytes"]

cdef extern from *:
    """
    static inline uint32_t xlogmem_highest(uint64_t bits) { return 63 - __builtin_clzll(bits); }
    static inline uint32_t xlogmem_lowest(uint64_t bits) { return __builtin_ctzll(bits); }
    """
    uint32_t highest "xlogmem_highest"(uint64_t bits) noexcept nogil
    uint32_t lowest "xlogmem_lowest"(uint64_t bits) noexcept nogil

cdef enum:
    SCAN_LIMIT = 16                            # spans of a column, of which the best is taken
    COLUMN_BITS = 5
    PRESSURE = 2                              # a pool is tight while more than its maximum divided by this is in use
    WASTE = 2                               # there a span may be larger than is asked for by that divided by this
    AUDIT = 64                              # spans in use of a chunk, up to which a debug build requests_since_retry at all of them

cdef size_t LARGEST = <size_t>1 << 50       # bytes that anybody may ask for
cdef size_t LEAST_STEP = <size_t>32 << 20   # bytes of a chunk, if nobody says how many
cdef size_t MOST_STEP = <size_t>1 << 30


cdef inline size_t rounded(size_t nbytes) noexcept nogil:
    return (nbytes + ALIGNMENT - 1) & ~(<size_t>ALIGNMENT - 1)

include "pool/free_lists.pxi"           # free spans by size and by what has to be waited for
include "pool/spans.pxi"                # splitting and coalescing
include "pool/chunks.pxi"               # memory from upstream and back
include "pool/resource.pxi"             # as the core calls it


# ---------------------------------------------------------------------------------------------- as Python sees it
cdef int preload(PoolState* pool, size_t nbytes, Failure* failure) except -1 nogil:
    """The first chunk, before there is anybody whom a wait on the host could keep waiting."""
    cdef StreamState* stream = pool.order.streams[0]
    cdef Failure ignored
    cdef uint64_t ptr = 0
    cdef void* resource_block = NULL
    cdef Span* span
    cdef int failed
    pool.order.lock.lock()
    stream.busy += 1
    pool.size += nbytes
    failed = allocate_upstream_unlocks(pool, nbytes, stream, &ptr, &resource_block, failure)
    if failed:
        pool.size -= nbytes
    else:
        pool.counters.grown += 1
        span = new_chunk_locked(pool, ptr, nbytes, resource_block)
        if pool.upstream.order != HOST_SYNCHRONOUS:
            add_position_locked(pool, span, stream.index, advance(stream))
            if not wait_for_unlocks(pool, span, NULL, &ignored):        # else whoever takes it waits
                clear(span)
        release_span_locked(pool, span)
    stream.busy -= 1
    pool.order.lock.unlock()
    return failed


cdef bint has_live_foreign_streams_locked(PoolState* pool) noexcept nogil:
    """Somebody's streams that the runtime could not bury when it ended: they may be destroyed by now."""
    check(pool.order.lock.held(), "the lock is held")
    cdef size_t i
    for i in range(pool.order.streams.size()):
        if pool.order.streams[i].driver_id and pool.order.streams[i].alive:
            return True
    return False


cdef int release_all(PoolMemoryResource self) except -1 nogil:
    """At the end: the blocks were freed, so all chunks are idle."""
    cdef PoolState* pool = &self.state
    cdef vector[Failure] failures
    cdef Failure ignored
    cdef Scope scope
    cdef size_t i
    if pool.order == NULL or pool.chunks.empty() or enter_context(pool.order.context, &scope, &ignored):
        return 0
    pool.order.lock.lock()
    if not has_live_foreign_streams_locked(pool):
        release_idle_unlocks(pool, 0, NULL, &failures)
    pool.order.lock.unlock()
    for i in range(failures.size()):
        drop_exception(&failures[i])
    leave_context(&scope)
    return 0


cdef object parse_bytes(str name, object value):
    value = PyNumber_Index(value)
    if not 0 <= value <= LARGEST:
        raise ValueError(f"{name} must be a number of bytes, got {value}")
    return value


@cython.no_gc_clear                         # __dealloc__ needs the resource upstream and the streams
cdef class PoolMemoryResource(DeviceMemoryResource):
    """A pool over another resource: allocating and freeing make no driver call once it has grown.

    Memory that is freed keeps what its next owner has to be ordered after, so a free delays no stream, and memory that
    was used on a stream which has gone quiet is not kept back.  An allocation takes memory that its stream knows if
    there is some, and otherwise has its stream wait, on the device, for former owners.  While several streams have more
    than half of `maximum_pool_size` in use, it waits also rather than cut a span of more than one and a half times its
    size.

    Parameters
    ----------
    upstream : DeviceMemoryResource, optional
        Where chunks come from.  The default is an `AsyncMemoryResource` where the device has memory pools and a
        `DirectMemoryResource` where it has none.
    initial_pool_size : int, optional
        Bytes taken from upstream when a runtime takes the pool; by default none (RMM's takes half of the device).
    maximum_pool_size : int, optional
        Bytes that it may have from upstream at any time; by default no limit.  With twice what is in use at a time,
        waits are as few as without; with less, memory counts more than waits.
    chunk_size : int, optional
        Bytes that it grows by, at least; what is larger gets a chunk of its own size.  By default half of the
        maximum and then the rest, and without a maximum as much as it has already, between 32 MiB and 1 GiB.
    ordinal : int
        The device, where no upstream is given.

    Attributes
    ----------
    upstream : DeviceMemoryResource
        As given.

    Raises
    ------
    ValueError
        The sizes contradict each other.
    StreamMisuseError
        Upstream does not say how its frees are ordered.

    Notes
    -----
    Give it to a runtime, ``DeviceRuntime(resource=PoolMemoryResource())``; it belongs to that one, because what it
    remembers are positions of its streams, and memory is handed out through it only.  Sizes and addresses are
    multiples of 256 bytes.  Thread-safe.
    """

    def __init__(self, upstream=None, initial_pool_size=None, maximum_pool_size=None, *, chunk_size=None, ordinal=0):
        if self.upstream is not None:
            raise RuntimeError("a resource is initialised once")
        initial = parse_bytes("initial_pool_size", 0 if initial_pool_size is None else initial_pool_size)
        most = parse_bytes("maximum_pool_size", LARGEST if maximum_pool_size is None else maximum_pool_size)
        step = parse_bytes("chunk_size", 0 if chunk_size is None else chunk_size)
        if most < ALIGNMENT:
            raise ValueError(f"maximum_pool_size must be at least {ALIGNMENT} bytes, got {most}")
        if initial > most:
            raise ValueError(f"initial_pool_size ({initial}) is more than maximum_pool_size ({most})")
        if upstream is None:
            upstream = (AsyncMemoryResource(ordinal) if _driver.supports_memory_pools(ordinal)
                        else DirectMemoryResource(ordinal))
        if not isinstance(upstream, DeviceMemoryResource):
            raise TypeError(f"upstream must be a DeviceMemoryResource of xlogmem, not {type(upstream).__name__} (for "
                            "one of RMM's: xlogmem.rmm.RmmMemoryResource)")
        if (<DeviceMemoryResource>upstream).table.order == UNDECLARED:
            raise StreamMisuseError(
                f"{type(upstream).__name__} does not support a pool on it (unsupported): it declares neither that its "
                "frees are ordered on a stream nor that they take effect at once. Set order = 'stream' or order = "
                "'host' in the class")
        self.upstream = upstream
        self.context = self.upstream.context
        self.state.upstream = &self.upstream.table
        self.state.maximum = most & ~(<size_t>ALIGNMENT - 1)
        self.initial = min(rounded(initial), self.state.maximum)
        self.state.step = rounded(step)
        self.state.ready = new FreeList()
        self.state.mixed = new FreeList()
        self.functions.allocate = allocate
        self.functions.deallocate = deallocate
        self.functions.trim = trim
        self.table.self = &self.state
        self.table.order = STREAM_ORDERED
        self.table.ordered = &self.functions

    def __del__(self):
        """While an upstream that is written in Python is whole."""
        if not process_is_closing():
            with nogil:
                release_all(self)

    def __dealloc__(self):
        cdef PoolState* pool = &self.state
        cdef Span* span
        cdef Span* above
        cdef size_t i
        if not process_is_closing():
            with nogil:
                release_all(self)
        for i in range(pool.chunks.size()):             # what could not be given back is lost
            span = pool.chunks[i].first
            while span != NULL:
                above = span.above
                del span
                span = above
            del pool.chunks[i]
        for i in range(pool.spare.size()):
            del pool.spare[i]
        for i in range(pool.free_lists.size()):
            del pool.free_lists[i]
        del pool.ready
        del pool.mixed

    cdef int bind(self, StreamPool stream_pool) except -1:
        cdef Failure failure
        cdef Scope scope
        cdef int failed
        if self.stream_pool is stream_pool:
            return 0
        if self.upstream is None:
            raise StreamMisuseError("the pool was never initialised")
        if self.stream_pool is not None:
            raise StreamMisuseError("the memory pool belongs to another runtime; give each runtime a pool of its own")
        self.upstream.bind(stream_pool)
        self.stream_pool = stream_pool
        self.state.order = &stream_pool.ordering.state
        if self.initial == 0:
            return 0
        with nogil:
            failed = enter_context(self.state.order.context, &scope, &failure)
            if not failed:
                failed = preload(&self.state, self.initial, &failure)
                leave_context(&scope)
        if failed:
            self.stream_pool = None
            self.state.order = NULL
            raise_failure(&failure, f"taking the first {self.initial} bytes of a pool from {self.upstream!r}")

    cdef cy.CUstream check(self, object stream, str method) except? <cy.CUstream>-1:
        raise StreamMisuseError(f"{type(self).__name__} does not support {method} (unsupported) by itself: its free "
                                "memory remembers positions of a runtime's streams. Give it to a DeviceRuntime and "
                                "allocate there")

    def trim(self, bytes_to_keep=0):
        """Give chunks that are free as a whole back to the resource upstream.

        Parameters
        ----------
        bytes_to_keep : int
            The pool does not get smaller than this.

        Returns
        -------
        int
            Bytes given back.

        Raises
        ------
        DriverError
            A chunk could not be given back and stays in the pool; the others were tried.
        StreamMisuseError
            So it was because of a stream that is capturing a graph.

        Notes
        -----
        The free of a chunk is ordered after everybody who used its memory, on the device; only an upstream that requests_since_retry
        at no stream (`DirectMemoryResource`) makes the host wait.
        """
        cdef PoolState* pool = &self.state
        cdef vector[Failure] failures
        cdef Failure failure
        cdef Scope scope
        cdef size_t keep = parse_bytes("bytes_to_keep", bytes_to_keep)
        cdef size_t released = 0, i
        if pool.order == NULL:
            return 0
        with nogil:
            if enter_context(pool.order.context, &scope, &failure):
                failures.push_back(failure)
            else:
                pool.order.lock.lock()
                released = pool.size
                release_idle_unlocks(pool, keep, NULL, &failures)
                released -= pool.size
                pool.order.lock.unlock()
                if pool.upstream.trim != NULL and pool.upstream.trim(pool.upstream.self, &failure):
                    failures.push_back(failure)
                leave_context(&scope)
        if failures.empty():
            return released
        for i in range(1, failures.size()):
            with nogil:
                drop_exception(&failures[i])
        raise_failure(&failures[0], "giving chunks of the pool back")

    def pool_size(self):
        """Bytes that the pool has from upstream."""
        return self.figures()["pool_size"]

    @property
    def upstream_mr(self):
        """The RMM resource below; where there is none, there is no such attribute."""
        return self.upstream.upstream_mr

    def statistics(self):
        """What the pool has and what it has done, as a dictionary.

        ``pool_size`` is the bytes from upstream: ``used_bytes`` are handed out (at most ``peak_bytes`` so blocked),
        ``free_bytes`` are not, in ``free_spans`` places, the largest of ``largest_free_bytes``; ``idle_bytes`` are in
        chunks that are free as a whole.  ``fragmentation`` is the share of the free bytes outside of the largest place.
        ``waited`` counts the allocations whose stream had to wait for a former owner of the memory.
        """
        return self.figures()

    def memory_summary(self):
        """The state of the pool as a text for a person."""
        cdef dict figures = self.figures()

        def size(name):
            return format_bytes(figures[name])

        return (f"{self!r}\n"
                f"  from upstream   {size('pool_size'):>12} in {figures['chunks']} chunks, limit "
                f"{'none' if self.state.maximum >= LARGEST else format_bytes(self.state.maximum)}\n"
                f"  in use          {size('used_bytes'):>12}, at most {size('peak_bytes')} so far\n"
                f"  free            {size('free_bytes'):>12} in {figures['free_spans']} places, the largest "
                f"{size('largest_free_bytes')} (fragmentation {figures['fragmentation']:.0%})\n"
                f"  idle chunks     {size('idle_bytes'):>12}, which trim() would give back\n"
                f"  allocations     {figures['allocations']:>12}, {figures['waited']} had to wait for another stream's "
                "use of the memory\n"
                f"  chunks          {figures['grown']:>12} taken, {figures['released']} given back")

    cdef dict figures(self):
        cdef PoolState* pool = &self.state
        cdef PoolCounters counters
        cdef size_t size = 0, used = 0, peak = 0, most = 0, idle = 0, chunks = 0, spans = 0, i
        cdef size_t together                            # neighbours that are free, joined or not
        cdef Span* span
        if pool.order != NULL:
            with nogil:
                pool.order.lock.lock()
                counters = pool.counters
                size, used, peak, chunks = pool.size, pool.used, pool.peak, pool.chunks.size()
                for i in range(chunks):
                    idle += pool.chunks[i].nbytes if pool.chunks[i].taken == 0 else 0
                    span = pool.chunks[i].first
                    together = 0
                    while span != NULL:
                        together = together + span.nbytes if span.free_list != NULL else 0
                        spans += together != 0 and together == span.nbytes
                        most = larger(most, together)
                        span = span.above
                pool.order.lock.unlock()
        else:
            counters = pool.counters
        return {"pool_size": size, "used_bytes": used, "peak_bytes": peak, "free_bytes": size - used,
                "largest_free_bytes": most,
                "fragmentation": 1 - <double>most / <double>(size - used) if size > used else 0.0,
                "idle_bytes": idle, "chunks": chunks, "free_spans": spans,
                "allocations": counters.allocations, "waited": counters.waited, "grown": counters.grown,
                "released": counters.released, "splits": counters.splits, "joins": counters.joins}

    def __repr__(self):
        return f"<{type(self).__name__} device={self.device_ordinal} over {type(self.upstream).__name__}>"


def format_bytes(size_t nbytes):
    """A number of bytes, as a person says it."""
    cdef double number = nbytes
    for unit in ("B", "KiB", "MiB", "GiB"):
        if number < 1024:
            break
        number /= 1024
    else:
        unit = "TiB"
    return f"{nbytes} B" if unit == "B" else f"{number:.1f} {unit}"
