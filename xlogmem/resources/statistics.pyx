"""Statistics: an adaptor that counts bytes and calls, in total and by tag and stream.

The counters, and the effects of pushing and popping on them, are RMM's.  A free is booked on the rows of its
allocation: the stream of a free may be another stream, and a tag beyond the last row may get a row later.  So each
allocation has a record of the rows on which it counts (`outstanding`).
"""
cimport cython

from libc.stdint cimport int64_t, uint64_t

from xlogmem._base.cpp cimport vector
from xlogmem._base.failures cimport Failure
from xlogmem._base.locks cimport mutex, read_under
from xlogmem._driver cimport LEAF_LOCK, forget_at_forks, take_at_forks
from xlogmem.resources.adaptor cimport ResourceAdaptor
from xlogmem.resources.base cimport Allocation
from xlogmem.resources.outstanding cimport (
    Outstanding,
    Record,
    add_record,
    begin_free,
    end_free,
    name_of_stream,
    start_record,
    undo_free,
)
from xlogmem.resources.tally cimport (
    Row,
    Tally,
    add_to,
    forget_all,
    key_of_rest,
    read_rows,
    restore_to,
    row_of,
    row_within,
    take_from,
)

from xlogmem._base.signatures import Signed
from xlogmem._base.texts import printable
from xlogmem._base.units import counted, format_bytes

__all__ = ["StatisticsResourceAdaptor"]

cdef enum:
    ROWS = 4096                 # tags, and streams, that have a row of their own
    SHOWN = 5                   # of them in a summary


cdef struct Counter:
    int64_t value
    int64_t peak
    int64_t total


cdef struct Counters:
    Counter nbytes
    Counter calls


cdef cppclass Counts:
    mutex lock                  # a leaf, of everything below
    vector[Counters] pushed     # the last ones count; never empty
    uint64_t pending            # bytes that are freed and not settled
    uint64_t failures
    Outstanding outstanding
    Tally by_tag
    Tally by_stream


# ---------------------------------------------------------------------------------------------- counters
cdef inline void add(Counter* counter, int64_t more, bint is_new) noexcept nogil:
    counter.value += more
    counter.peak = counter.value if counter.value > counter.peak else counter.peak
    if is_new:
        counter.total += more


cdef void add_popped(Counter* counter, Counter* popped) noexcept nogil:
    """Add a popped counter to the counter below it."""
    cdef int64_t peak = counter.value + popped.peak
    counter.peak = peak if peak > counter.peak else counter.peak
    counter.value += popped.value
    counter.total += popped.total


# ---------------------------------------------------------------------------------------------- hooks
cdef void count_allocated(void* self, Allocation* made) noexcept nogil:
    cdef Counts* counts = <Counts*>self
    cdef Record record, replaced
    cdef Row* row
    start_record(&record, made)
    counts.lock.lock()
    row = row_within(&counts.by_tag, <uint64_t>made.tag, made.tag, ROWS)
    add_to(row, made.nbytes)
    record.number = row.key
    row = row_within(&counts.by_stream, record.stream, NULL, ROWS)
    add_to(row, made.nbytes)
    record.stream = row.key
    add(&counts.pushed.back().nbytes, made.nbytes, True)
    add(&counts.pushed.back().calls, 1, True)
    if add_record(&counts.outstanding, &record, &replaced) and replaced.freeing == NULL:
        take_out(counts, &replaced)                      # the runtime drops the block, and settles its bytes
    counts.lock.unlock()


cdef void count_failed(void* self, Allocation* wanted, Failure* failure) noexcept nogil:
    cdef Counts* counts = <Counts*>self
    counts.lock.lock()
    counts.failures += 1
    counts.lock.unlock()


cdef void take_out(Counts* counts, Record* record) noexcept nogil:
    """Take freed memory out of the counters; it is pending."""
    cdef Counters* now
    take_from(row_of(&counts.by_tag, record.number, NULL), record.nbytes)
    take_from(row_of(&counts.by_stream, record.stream, NULL), record.nbytes)
    now = &counts.pushed.back()
    now.nbytes.value -= <int64_t>record.nbytes
    now.calls.value -= 1
    counts.pending += record.nbytes


cdef void count_freeing(void* self, Allocation* freed) noexcept nogil:
    cdef Counts* counts = <Counts*>self
    cdef Record* record
    counts.lock.lock()
    record = begin_free(&counts.outstanding, freed)
    if record != NULL:
        take_out(counts, record)
    counts.lock.unlock()


cdef void forget_freed(void* self, Allocation* freed) noexcept nogil:
    cdef Counts* counts = <Counts*>self
    cdef Record removed
    counts.lock.lock()
    end_free(&counts.outstanding, freed, &removed)
    counts.lock.unlock()


cdef void count_not_freed(void* self, Allocation* freed, Failure* failure) noexcept nogil:
    cdef Counts* counts = <Counts*>self
    cdef Record* record
    counts.lock.lock()
    record = undo_free(&counts.outstanding, freed)
    if record != NULL:
        restore_to(row_of(&counts.by_tag, record.number, NULL), record.nbytes)
        restore_to(row_of(&counts.by_stream, record.stream, NULL), record.nbytes)
        add(&counts.pushed.back().nbytes, record.nbytes, False)
        add(&counts.pushed.back().calls, 1, False)
        counts.pending -= record.nbytes
    counts.lock.unlock()


cdef void count_settled(void* self, uint64_t nbytes) noexcept nogil:
    cdef Counts* counts = <Counts*>self
    counts.lock.lock()
    counts.pending -= nbytes if nbytes < counts.pending else counts.pending    # unknown memory was freed by hand
    counts.lock.unlock()


# ---------------------------------------------------------------------------------------------- in Python
cdef object statistics_class():
    from xlogmem.resources.counts import Statistics     # not before it is needed: dataclasses take long to import
    return Statistics


cdef object statistics_of(Counters* counters):
    return statistics_class()(counters.nbytes.value, counters.calls.value, counters.nbytes.peak, counters.calls.peak,
                              counters.nbytes.total, counters.calls.total)


@cython.auto_pickle(False)                  # none is copied: see the base class
cdef class StatisticsResourceAdaptor(ResourceAdaptor):
    """Counts allocations from the resource below: now, at most, and in total; by tag and by stream too.

    Parameters
    ----------
    upstream : DeviceMemoryResource
        The resource.

    Attributes
    ----------
    upstream : DeviceMemoryResource
        As given.

    Raises
    ------
    TypeError
        Upstream is not a `DeviceMemoryResource`.

    Notes
    -----
    The requested bytes count, whatever upstream rounds sizes to, from the allocation until the free was queued.  A free
    that fails does not count as a free.  All figures of one call are of one moment.  For calls in flight in other
    threads, an allocation counts once upstream has answered, and a free from before upstream is called.  An allocation
    takes 128 to 256 bytes on the host.  `xlogmem.statistics` has context managers and a profiler.  Runtimes of one
    device may share the adaptor, and count together.  Thread-safe.

    Examples
    --------
    >>> counted = xlogmem.StatisticsResourceAdaptor(xlogmem.AsyncMemoryResource())
    >>> runtime = xlogmem.DeviceRuntime(resource=counted)
    >>> runtime.allocate(1000).free()
    >>> counted.allocation_counts.total_bytes
    1000
    """

    cdef Counts counts

    def __cinit__(self):
        self.counts.pushed.resize(1)                     # zeros

    __signature__ = Signed("upstream")

    def __init__(self, upstream):
        self.take_upstream(upstream)
        self.state.books.allocated = count_allocated
        self.state.books.failed = count_failed
        self.state.books.freeing = count_freeing
        self.state.books.freed = forget_freed
        self.state.books.not_freed = count_not_freed
        self.state.books.settled = count_settled
        self.counts.by_tag.keeps_totals = self.counts.by_stream.keeps_totals = True
        take_at_forks(&self.counts.lock, LEAF_LOCK)
        self.open_books(&self.counts)

    def __dealloc__(self):
        forget_at_forks(&self.counts.lock)
        forget_all(&self.counts.by_tag)

    @property
    def allocation_counts(self):
        """The counters since the last push, as `xlogmem.statistics.Statistics`."""
        cdef Counters now
        self.refuse_unmade()
        with nogil:
            self.counts.lock.lock()
            now = self.counts.pushed.back()
            self.counts.lock.unlock()
        return statistics_of(&now)

    def push_counters(self):
        """Begin to count from zero, until `pop_counters`.

        Returns
        -------
        Statistics
            The counters before the push.

        Notes
        -----
        All threads count on the same counters.
        """
        cdef Counters before
        cdef Counters zero
        self.refuse_unmade()
        zero.nbytes.value = zero.nbytes.peak = zero.nbytes.total = 0
        zero.calls = zero.nbytes
        with nogil:
            self.counts.lock.lock()
            before = self.counts.pushed.back()
            self.counts.pushed.push_back(zero)
            self.counts.lock.unlock()
        return statistics_of(&before)

    def pop_counters(self):
        """Pop the counters that `push_counters` pushed, and add them to the counters below.

        Returns
        -------
        Statistics
            The counters since the push.

        Raises
        ------
        IndexError
            There was no push.
        """
        cdef Counters popped
        cdef bint was_pushed
        self.refuse_unmade()
        with nogil:
            self.counts.lock.lock()
            was_pushed = self.counts.pushed.size() > 1
            if was_pushed:
                popped = self.counts.pushed.back()
                self.counts.pushed.pop_back()
                add_popped(&self.counts.pushed.back().nbytes, &popped.nbytes)
                add_popped(&self.counts.pushed.back().calls, &popped.calls)
            self.counts.lock.unlock()
        if not was_pushed:
            raise IndexError("pop_counters() without a push_counters() before it: the first counters stay")
        return statistics_of(&popped)

    def counters(self, *, by):
        """Counters of each tag, or of each stream, since the adaptor was made.

        Parameters
        ----------
        by : {"tag", "stream"}
            ``"tag"``: None stands for all memory without a tag.  ``"stream"``: the stream of the allocation, as
            `Stream.id`; for a call without a runtime, or on no stream of a runtime, the handle in hexadecimal, as logs
            show it.  Streams of several runtimes that have the same id count together.

        Returns
        -------
        dict of Statistics
            The largest `Statistics.current_bytes` first.  The first 4,096 tags, and streams, have an entry of their
            own, which they keep; all others are summed under ``"(others)"`` (``"((others))"`` where that is a tag).
        """
        cdef dict found = {}
        cdef Tally* tally
        self.refuse_unmade()
        if by not in ("tag", "stream"):
            raise ValueError(f"by={by!r} is unknown; choose 'tag' or 'stream'")
        tally = &self.counts.by_tag if by == "tag" else &self.counts.by_stream
        rest = None
        for key, tag, figures in read_rows(tally, &self.counts.lock):
            if key == key_of_rest():
                rest = statistics_class()(*figures)
            else:
                found[tag if by == "tag" else name_of_stream(key)] = statistics_class()(*figures)
        if rest is not None:
            name = "(others)"
            while name in found:                        # a program may use that as a tag
                name = f"({name})"
            found[name] = rest
        return dict(sorted(found.items(), key=lambda entry: (-entry[1].current_bytes, -entry[1].peak_bytes)))

    @property
    def pending_bytes(self):
        """Bytes of frees that are not complete as far as the host has seen."""
        self.refuse_unmade()
        return read_under(&self.counts.lock, &self.counts.pending)

    @property
    def failed_allocations(self):
        """The number of calls in which the resource below had no memory, or failed.  A runtime that finds no memory
        tries again after it has looked for completed frees, so one request may count more than once."""
        self.refuse_unmade()
        return read_under(&self.counts.lock, &self.counts.failures)

    def memory_summary(self):
        """The figures as text, for a person to read."""
        now = self.allocation_counts
        lines = [f"{self!r}",
                 f"  allocated       {format_bytes(now.current_bytes):>12} in "
                 f"{counted(now.current_count, 'allocation')}",
                 f"  at most         {format_bytes(now.peak_bytes):>12} in {now.peak_count}",
                 f"  in total        {format_bytes(now.total_bytes):>12} in {now.total_count}; "
                 f"{self.failed_allocations} failed",
                 f"  pending         {format_bytes(self.pending_bytes):>12}, freed, and not complete yet"]
        for tag, figures in list(self.counters(by="tag").items())[:SHOWN]:
            lines.append(f"    {format_bytes(figures.current_bytes):>12}, at most "
                         f"{format_bytes(figures.peak_bytes):>10}  "
                         + (printable(tag) if tag is not None else "without a tag"))
        return "\n".join(lines)
