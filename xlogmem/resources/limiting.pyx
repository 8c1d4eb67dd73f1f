"""A budget: an adaptor that admits no more than a number of bytes.

A budget counts the bytes that others cannot use: bytes of live blocks, and of freed blocks until the device has
completed the free.  So the bytes are charged before upstream is called, in one atomic step, and discharged if upstream
fails, and when the runtime reports that the bytes are settled.  The sum is what the runtime calls outstanding,
whatever upstream rounds sizes to.
"""
cimport cython

from libc.stdint cimport uint64_t

from xlogmem._base.cpp cimport atomic
from xlogmem._base.failures cimport OUT_OF_BUDGET, Budget, Failure, UnderWay, put_back, set_aside
from xlogmem._base.labels cimport held
from xlogmem._base.locks cimport mutex
from xlogmem._base.sections cimport Section
from xlogmem._driver cimport (
    LEAF_LOCK,
    forget_at_forks,
    relax_capture,
    restore_capture,
    take_at_forks,
    total_memory,
)
from xlogmem.resources.adaptor cimport AdaptorState, ResourceAdaptor
from xlogmem.resources.base cimport Allocation
from xlogmem.resources.tally cimport Row, Tally, add_to, forget_all, read_rows, row_of, take_from
from xlogmem.streams cimport StreamPool

import weakref

from cuda.bindings cimport cydriver as cy

from xlogmem._base.signatures import Signed
from xlogmem._base.texts import printable
from xlogmem._base.units import format_bytes, parse_bytes

__all__ = ["LimitingResourceAdaptor"]

cdef enum:
    HOLDERS = 5                 # that an error names

cdef cppclass Limit:
    uint64_t limit
    atomic[uint64_t] charged    # bytes; never above the limit
    mutex lock                  # of the rest; a leaf
    Tally by_tag                # live blocks
    atomic[uint64_t] sharers    # runtimes
    void* owner                 # the Python object


cdef int admit(void* self, Allocation* wanted, Failure* failure) noexcept nogil:
    cdef Limit* limit = <Limit*>self
    cdef uint64_t current = limit.charged.load()
    while wanted.nbytes <= limit.limit - current:
        if limit.charged.compare_exchange_weak(current, current + wanted.nbytes):
            return 0
    return refuse(limit, wanted.nbytes, current, failure)


cdef int refuse(Limit* limit, uint64_t nbytes, uint64_t current, Failure* failure) noexcept nogil:
    cdef Budget* budget = &failure.budget
    cdef uint64_t live
    failure.kind = OUT_OF_BUDGET
    failure.code = cy.CUDA_ERROR_OUT_OF_MEMORY
    budget.requested = nbytes
    budget.current = current
    budget.limit = limit.limit
    budget.holding_count = 0
    limit.lock.lock()
    live = find_holders_locked(limit, budget)
    limit.lock.unlock()
    budget.pending = current - live if current > live else 0
    return 1


cdef uint64_t find_holders_locked(Limit* limit, Budget* budget) noexcept nogil:
    """Find the largest holders, in their order, by insertion into a short list.  Returns the bytes of all holders."""
    cdef uint64_t live = 0
    cdef size_t i
    cdef int place
    cdef Row* row
    for i in range(limit.by_tag.rows.size()):
        row = &limit.by_tag.rows[i]
        live += row.nbytes
        place = budget.holding_count if budget.holding_count < HOLDERS else HOLDERS - 1
        if row.nbytes == 0 or (budget.holding_count == HOLDERS and budget.holdings[place].nbytes >= row.nbytes):
            continue
        while place > 0 and budget.holdings[place - 1].nbytes < row.nbytes:
            budget.holdings[place] = budget.holdings[place - 1]
            place -= 1
        budget.holdings[place].tag = row.tag
        budget.holdings[place].nbytes = row.nbytes
        budget.holding_count += budget.holding_count < HOLDERS
    for place in range(budget.holding_count):
        held(budget.holdings[place].tag)
    return live


cdef void count_live(void* self, Allocation* made) noexcept nogil:
    cdef Limit* limit = <Limit*>self
    limit.lock.lock()
    add_to(row_of(&limit.by_tag, <uint64_t>made.tag, made.tag), made.nbytes)
    limit.lock.unlock()


cdef void discharge_failed(void* self, Allocation* wanted, Failure* failure) noexcept nogil:
    (<Limit*>self).charged.fetch_sub(wanted.nbytes)


cdef void count_freed(void* self, Allocation* freed) noexcept nogil:
    cdef Limit* limit = <Limit*>self
    limit.lock.lock()
    take_from(row_of(&limit.by_tag, <uint64_t>freed.tag, freed.tag), freed.nbytes)
    limit.lock.unlock()


cdef void count_not_freed(void* self, Allocation* freed, Failure* failure) noexcept nogil:
    count_live(self, freed)


cdef void discharge(void* self, uint64_t nbytes) noexcept nogil:
    (<Limit*>self).charged.fetch_sub(nbytes)


cdef void count_evicted(void* self, Allocation* lost) noexcept nogil:
    """Count an evicted block as freed.  Its bytes are settled: the resource below has given them to another block, and
    no free of the evicted block will come."""
    count_freed(self, lost)


# ---------------------------------------------------------------------------------------------- runtimes that share it
cdef int trim(void* self, Failure* failure) except -1 nogil:
    """Make room for a runtime that is out of memory and has waited for its own frees: wait for the frees of the other
    runtimes that share the budget, and then have upstream release the memory that it keeps."""
    cdef AdaptorState* state = <AdaptorState*>self
    cdef Limit* limit = <Limit*>state.self
    cdef cy.CUstreamCaptureMode mode
    cdef UnderWay exception
    if limit.sharers.load() > 1:
        mode = relax_capture()
        with gil:
            set_aside(&exception)
            wait_for_sharers(<LimitingResourceAdaptor>limit.owner)
            put_back(&exception)
        restore_capture(mode)
    return state.upstream.trim(state.upstream.self, failure) if state.upstream.trim != NULL else 0


cdef void wait_for_sharers(LimitingResourceAdaptor budget) noexcept:
    """Have the runtimes that share a budget wait for their pending frees; they wait without the GIL, and report
    nothing.  The core's call goes on whatever is raised here."""
    for reference in list(budget.runtimes):
        runtime = reference()
        if runtime is not None:
            runtime._wait_for_pending()


@cython.auto_pickle(False)                  # none is copied: see the base class
cdef class LimitingResourceAdaptor(ResourceAdaptor):
    """Admits no more than a number of bytes to the resource below.

    A request that does not fit is refused before upstream is called.  Under a runtime, completed frees are looked for
    first, then pending ones waited for on the host, and the request is tried once more.

    Parameters
    ----------
    upstream : DeviceMemoryResource
        The resource.
    limit : int, str or float
        Bytes; a text with a unit, ``"8GiB"`` or ``"500 MB"``; or a share of the device's memory above 0 and up to 1.

    Attributes
    ----------
    limit : int
        In bytes.
    upstream : DeviceMemoryResource
        As given.

    Raises
    ------
    ValueError
        The limit is not a number of bytes, or not a share.
    TypeError
        Upstream is not a `DeviceMemoryResource`.
    OutOfBudgetError
        By an allocation: see there.

    Notes
    -----
    The requested bytes count, from the allocation until the device has completed the free; for a free into a pool,
    until the free.  Below a pool chunks count, until their free was queued.  At every moment the sum is exact and not
    above the limit, and it is 0 when nothing is allocated or pending.  A free that fails stays charged.  Runtimes of
    one device may share a budget: a runtime that is out of budget waits for the pending frees of the others too.
    Thread-safe.

    Examples
    --------
    >>> budget = xlogmem.LimitingResourceAdaptor(xlogmem.AsyncMemoryResource(), "1MiB")
    >>> runtime = xlogmem.DeviceRuntime(resource=budget)
    >>> index = runtime.allocate("768KiB", tag="index")
    >>> try:
    ...     runtime.allocate("512KiB", tag="join")
    ... except xlogmem.OutOfBudgetError as error:
    ...     print(error.holders)
    [('index', 786432)]
    """

    cdef Limit limit_state
    cdef list runtimes          # weak references to those that allocate from here

    __signature__ = Signed("upstream, limit")

    def __init__(self, upstream, limit=None):
        if limit is None:
            raise TypeError("limit is missing: LimitingResourceAdaptor(upstream, \"8GiB\"), or a number of bytes, or a "
                            "share of the device's memory such as 0.5")
        self.take_upstream(upstream)
        self.limit_state.limit = parse_bytes("limit", limit, lambda: total_memory(self.context.device_id))
        self.limit_state.owner = <void*>self
        self.runtimes = []
        self.state.books.admit = admit
        self.state.books.allocated = count_live
        self.state.books.failed = discharge_failed
        self.state.books.freeing = count_freed
        self.state.books.not_freed = count_not_freed
        self.state.books.settled = discharge
        self.state.books.evicted = count_evicted
        take_at_forks(&self.limit_state.lock, LEAF_LOCK)
        self.open_books(&self.limit_state)
        self.table.trim = trim

    cdef int bind(self, StreamPool stream_pool) except -1:
        cdef Section section
        ResourceAdaptor.bind(self, stream_pool)
        section.begin(self)
        self.runtimes = [known for known in self.runtimes if known() is not None]
        self.runtimes.append(weakref.ref(stream_pool.ordering.core()))
        self.limit_state.sharers.store(len(self.runtimes))
        return 0

    def __dealloc__(self):
        forget_at_forks(&self.limit_state.lock)
        forget_all(&self.limit_state.by_tag)

    @property
    def limit(self):
        """The limit in bytes."""
        self.refuse_unmade()
        return self.limit_state.limit

    @property
    def current_bytes(self):
        """Bytes that count: of live blocks, and of frees that are not complete as far as the host has seen."""
        self.refuse_unmade()
        return self.limit_state.charged.load()

    @property
    def remaining_bytes(self):
        """Bytes that the limit still admits now."""
        self.refuse_unmade()
        return self.limit_state.limit - self.limit_state.charged.load()

    def holders(self):
        """Bytes of live blocks by tag, the largest first; None stands for all blocks without a tag."""
        self.refuse_unmade()
        rows = read_rows(&self.limit_state.by_tag, &self.limit_state.lock)
        return dict(sorted(((tag, figures[0]) for _, tag, figures in rows if figures[0]), key=lambda row: -row[1]))

    def memory_summary(self):
        """The figures as text, for a person to read."""
        rows = [f"{self!r}", f"  limit           {format_bytes(self.limit):>12}",
                f"  counted         {format_bytes(self.current_bytes):>12}, of live blocks and pending frees"]
        rows += [f"    {format_bytes(nbytes):>12}  {printable(tag) if tag is not None else 'without a tag'}"
                 for tag, nbytes in list(self.holders().items())[:HOLDERS]]
        return "\n".join(rows)
