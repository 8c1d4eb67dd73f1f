"""Tracking: an adaptor that lists outstanding allocations with the Python code that made them.

Each allocation has a record with its tag and the stack of its call, until upstream has the memory again.  Stacks are
interned (`_base/labels`): a record holds a reference, and is made without the GIL.
"""
cimport cython

from libc.stdint cimport uint64_t

from xlogmem._base.cpp cimport vector
from xlogmem._base.failures cimport Failure
from xlogmem._base.labels cimport held, object_of, parse_depth, release
from xlogmem._base.locks cimport mutex, read_under
from xlogmem._driver cimport LEAF_LOCK, forget_at_forks, take_at_forks
from xlogmem.resources.adaptor cimport ResourceAdaptor
from xlogmem.resources.base cimport Allocation
from xlogmem.resources.outstanding cimport (
    Outstanding as Records,
    Record,
    add_record,
    begin_free,
    end_free,
    name_of_stream,
    start_record,
    undo_free,
)


from xlogmem._base.log import WARNING, logger
from xlogmem._base.signatures import Signed
from xlogmem._base.units import counted, format_bytes

__all__ = ["TrackingResourceAdaptor"]

cdef enum:
    SHOWN = 5                   # stacks in a summary


cdef cppclass Tracker:
    bint takes_stacks
    mutex lock                  # of the rest; a leaf
    Records records
    uint64_t nbytes             # outstanding
    uint64_t made               # so far: numbers the records


cdef void drop_labels(Record* record) noexcept nogil:
    release(record.tag)
    release(record.stack)


cdef void keep_allocated(void* self, Allocation* made) noexcept nogil:
    cdef Tracker* tracker = <Tracker*>self
    cdef Record record, replaced
    start_record(&record, made)
    record.tag = held(made.tag)
    record.stack = held(made.stack) if tracker.takes_stacks else NULL
    tracker.lock.lock()
    tracker.made += 1
    record.number = tracker.made
    tracker.nbytes += record.nbytes
    if add_record(&tracker.records, &record, &replaced):
        if replaced.freeing == NULL:                    # the resource below has handed out memory twice
            tracker.nbytes -= replaced.nbytes
        drop_labels(&replaced)                          # where it is being freed, its free finds no record
    tracker.lock.unlock()


cdef void mark_freeing(void* self, Allocation* freed) noexcept nogil:
    cdef Tracker* tracker = <Tracker*>self
    cdef Record* record
    tracker.lock.lock()
    record = begin_free(&tracker.records, freed)
    if record != NULL:
        tracker.nbytes -= record.nbytes
    tracker.lock.unlock()


cdef void drop_freed(void* self, Allocation* freed) noexcept nogil:
    cdef Tracker* tracker = <Tracker*>self
    cdef Record removed
    tracker.lock.lock()
    if end_free(&tracker.records, freed, &removed):
        drop_labels(&removed)
    tracker.lock.unlock()


cdef void keep_not_freed(void* self, Allocation* freed, Failure* failure) noexcept nogil:
    cdef Tracker* tracker = <Tracker*>self
    cdef Record* record
    tracker.lock.lock()
    record = undo_free(&tracker.records, freed)
    if record != NULL:
        tracker.nbytes += record.nbytes
    tracker.lock.unlock()


cdef object counts():
    """The module `counts`, imported late: dataclasses take longer to import than the rest of xlogmem."""
    from xlogmem.resources import counts
    return counts


cdef void copy_outstanding(Tracker* tracker, vector[Record]* found) noexcept nogil:
    """Copy the records of outstanding memory, with references to their labels."""
    cdef Record* record
    cdef size_t i
    tracker.lock.lock()
    for i in range(tracker.records.places.size()):
        record = &tracker.records.places[i]
        if record.ptr and record.freeing == NULL:
            held(record.tag)
            held(record.stack)
            found.push_back(record[0])
    tracker.lock.unlock()


@cython.auto_pickle(False)                  # none is copied: see the base class
cdef class TrackingResourceAdaptor(ResourceAdaptor):
    """Lists memory that was allocated from the resource below and not freed, with the Python stack of each call.

    Parameters
    ----------
    upstream : DeviceMemoryResource
        The resource.
    depth : int, optional
        Frames of each stack, the innermost first; 0: none.  If another adaptor in the stack of resources wants more
        frames, stacks have more.
    report_at_exit : bool, optional
        At the end of the process, log the memory that is outstanding then as a warning of the logger ``"xlogmem"`` (to
        stderr, if the program has not set up logging): summed by stack, the largest first.

    Attributes
    ----------
    upstream : DeviceMemoryResource
        As given.

    Raises
    ------
    TypeError
        Upstream is not a `DeviceMemoryResource`.
    ValueError
        The depth is not from 0 to 256.

    Notes
    -----
    Memory is outstanding from its allocation until the free was queued; a free that fails does not count as a free.
    The stack is that of the thread that allocates, through RMM's C++ and the C table too; there is no stack if the
    thread runs no Python code, and none for the chunks of a pool above.  On an H200's host a pair of allocate and free
    takes about 30 ns more without stacks, and about 0.7 us more with stacks of 16 frames, which are read in both calls
    and need the GIL (``xlogmem bench --family adaptors``).  An allocation takes 128 to 256 bytes on the host, and each
    distinct stack one object.  Thread-safe.

    Examples
    --------
    >>> tracking = xlogmem.TrackingResourceAdaptor(xlogmem.AsyncMemoryResource())
    >>> runtime = xlogmem.DeviceRuntime(resource=tracking)
    >>> block = runtime.allocate(1000, tag="join")
    >>> [(record.nbytes, record.tag) for record in tracking.outstanding_allocations()]
    [(1000, 'join')]
    """

    cdef Tracker tracker
    cdef object __weakref__

    __signature__ = Signed("upstream, *, depth=16, report_at_exit=False")

    def __init__(self, upstream, *, depth=16, report_at_exit=False):
        cdef int frames
        frames = parse_depth(depth)
        self.take_upstream(upstream)
        self.state.books.allocated = keep_allocated
        self.state.books.freeing = mark_freeing
        self.state.books.freed = drop_freed
        self.state.books.not_freed = keep_not_freed
        self.tracker.takes_stacks = frames > 0
        take_at_forks(&self.tracker.lock, LEAF_LOCK)
        self.open_books(&self.tracker)
        self.table.stack_depth = max(self.table.stack_depth, frames)
        if report_at_exit:
            counts().report_at_exit(self)

    def __dealloc__(self):
        cdef size_t i
        forget_at_forks(&self.tracker.lock)
        for i in range(self.tracker.records.places.size()):
            if self.tracker.records.places[i].ptr:
                drop_labels(&self.tracker.records.places[i])

    @property
    def outstanding_bytes(self):
        """The sum of `outstanding_allocations`, in bytes."""
        self.refuse_unmade()
        return read_under(&self.tracker.lock, &self.tracker.nbytes)

    def outstanding_allocations(self):
        """All outstanding memory at one moment: a list of `xlogmem.resources.Outstanding`, the oldest first."""
        cdef vector[Record] records
        cdef size_t i
        cdef list found = []
        cdef object made = counts().Outstanding
        self.refuse_unmade()
        with nogil:
            copy_outstanding(&self.tracker, &records)
        try:
            for i in range(records.size()):
                found.append((records[i].number, made(
                    records[i].ptr, records[i].nbytes, object_of(records[i].tag), records[i].generation or None,
                    name_of_stream(records[i].stream), object_of(records[i].stack))))
        finally:
            for i in range(records.size()):
                drop_labels(&records[i])
        found.sort(key=lambda numbered: numbered[0])
        return [record for _, record in found]

    def outstanding_text(self):
        """`outstanding_allocations` as text, each with its stack; empty if there are none."""
        return counts().outstanding_as_text(self.outstanding_allocations())

    def log_outstanding(self, level=WARNING):
        """Write `outstanding_text` to the logger ``"xlogmem"``; nothing if no memory is outstanding.

        Parameters
        ----------
        level : int
            The level of the message.
        """
        text = self.outstanding_text()
        if text:
            logger().log(level, "Outstanding Allocations:\n%s", text)

    def memory_summary(self):
        """The figures as text, for a person to read: the sum, and the stacks with the most bytes."""
        records = self.outstanding_allocations()
        nbytes = format_bytes(sum(record.nbytes for record in records))
        lines = [f"{self!r}", f"  outstanding     {nbytes:>12} in {counted(len(records), 'allocation')}"]
        return "\n".join(lines + [f"    {line}" for line in counts().leaks_as_text(records, SHOWN).splitlines()])
