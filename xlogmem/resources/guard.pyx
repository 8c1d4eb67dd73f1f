"""A guard: an adaptor that finds writes past the ends of memory, writes after a free, and second frees.

Every allocation gets a *canary* on both sides, bytes that no program may write, and is filled with *poison*, so that a
program that reads memory before it writes it, or after it frees it, sees the same wrong values every time.  A free
compares the canaries, poisons the memory again and keeps it in *quarantine*; when the memory leaves the quarantine,
poison and canaries are compared once more.  Two kernels do all of this, in stream order, and no call waits for them.

There are no false alarms.  The fill at an allocation is queued on the stream of the call before the core takes the
position that later users are ordered after.  The core calls the guard for a free when the free's stream, or the host,
is ordered after every use (the guard keeps no frontiers, so it is not called before).  Memory leaves the quarantine on
a stream of the guard's own, which waits for an event behind the poison.  Canaries are compared without a free only if
the host has seen their fill complete: no rightful work touches them.

Around a pool the guard watches the pool's blocks, and returns them with the position behind its own work.  Below a pool
it sees chunks.
"""

cimport cython

from cpython.exc cimport PyErr_CheckSignals
from libc.stdint cimport uint64_t

from xlogmem._base.signatures import Signed
from xlogmem._base.units import parse_bytes, parse_number
from xlogmem.errors import MemoryCorruptionError
from xlogmem.resources.sinks import called_at_once
from xlogmem._base.failures cimport Failure, raise_failure
from xlogmem._base.labels cimport parse_depth
from xlogmem._base.locks cimport read_under
from xlogmem._base.sections cimport Section
from xlogmem._driver cimport (
    LEAF_LOCK,
    Scope,
    enter_context,
    forget_at_forks,
    leave_context,
    process_is_closing,
    stream_create,
    stream_destroy,
    take_at_forks,
    total_memory,
)
from xlogmem._order cimport ORDINARY
from xlogmem.resources.base cimport HOST_SYNCHRONOUS, DeviceMemoryResource
from xlogmem.streams cimport Stream, StreamPool


__all__ = ["GuardResourceAdaptor"]

cdef enum:
    ALIGNMENT = 256                 # of what users get
    LARGEST_CANARY = 1 << 20
    KEPT = 1000                     # violations

cdef size_t LARGEST = <size_t>1 << 50

KINDS = {WRITTEN_BEFORE: "underrun", WRITTEN_INSIDE: "write after free", WRITTEN_BEHIND: "overrun",
         FREED_TWICE: "double free"}

include "guard/memory.pxi"      # records of guarded allocations; the quarantine list
include "guard/checks.pxi"      # check kernels and their results
include "guard/quarantine.pxi"  # release from quarantine, checks on demand
include "guard/room.pxi"        # eviction from quarantine under memory pressure
include "guard/resource.pxi"    # the resource interface of the guard
include "guard/ending.pxi"      # kernels of a context, the end of a guard, findings as Python objects
include "guard/reports.pxi"     # logging, storage and raising of violations

cdef int parse_canary(object canary) except -1:
    cdef int parsed = parse_number("canary", canary, ALIGNMENT, LARGEST_CANARY, "a number of bytes")
    if parsed % ALIGNMENT:
        raise ValueError(f"canary must be a multiple of {ALIGNMENT} bytes, got {canary}")
    return parsed


cdef object parse_on_violation(object on_violation):
    """The function to call for each violation; None if there is none."""
    if isinstance(on_violation, str) and on_violation in ("raise", "warn"):
        return _warn if on_violation == "warn" else None
    if not callable(on_violation):
        raise ValueError(f"on_violation must be 'raise', 'warn' or a callable, got {on_violation!r}")
    return called_at_once("on_violation", on_violation)


@cython.no_gc_clear                         # __dealloc__ needs the resource upstream and the streams
@cython.auto_pickle(False)                  # none is copied: see the base class
cdef class GuardResourceAdaptor(ResourceAdaptor):
    """Finds writes past either end of memory, writes after a free, and second frees.

    Every allocation gets canaries on both sides and is poisoned, when it is allocated (0xCD) and when it is freed
    (0xDD).  Freed memory stays in quarantine for a while.  Kernels compare canaries and poison at each free, when
    memory leaves the quarantine, and in `check` and a blocking `DeviceRuntime.reap_pending`.

    Parameters
    ----------
    upstream : DeviceMemoryResource
        The resource.
    canary : int
        Bytes on each side, a multiple of 256.  An allocation takes twice that and at most 255 bytes more.
    quarantine_bytes : int, str or float
        The amount of freed memory to keep, canaries included: bytes, a text with a unit, or a share of the device's
        memory.  The oldest memory leaves first.
    quarantine_age : int, optional
        Memory leaves after this number of further frees at the latest.  By default there is no limit.
    poison : bool
        True to poison memory.  Without poison, writes after a free go unseen.
    depth : int
        Frames of the Python stacks of allocation and free that are kept, 0 to 256.
    on_violation : {"raise", "warn"} or callable
        Each violation is logged to ``"xlogmem"`` as an error.  Then ``"raise"``: the next `reap_pending` or `check`
        raises `MemoryCorruptionError`.  ``"warn"``: a `MemoryGuardWarning` is given.  A callable gets the
        `GuardViolation`, from any thread; its exceptions are logged.  A free never raises for a violation, nor for an
        exception while a violation is reported: an interrupt comes when the call is over.

    Attributes
    ----------
    upstream : DeviceMemoryResource
        As given.

    Raises
    ------
    ValueError
        A number is out of its range, or there is a guard below already.
    TypeError
        Upstream is not a `DeviceMemoryResource`.
    DriverError
        The kernels could not be loaded.

    Notes
    -----
    Fills and checks are queued on the stream of the call, or on a stream of the guard's own, and cost the host two or
    three driver calls for an allocation and four to seven for a free; the host waits for none of them, unless upstream
    takes no streams (`DirectMemoryResource`).  A capturing stream gets no kernel: a call there is refused, and under a
    runtime carried out after the capture.  Later calls see the findings of checks.

    For a runtime, and a budget above the guard, memory in quarantine is free; a budget below the guard counts it, with
    the canaries.  Memory in quarantine is returned when upstream is out of memory, by `trim`, and when the runtime
    ends.  A freed block is ``QUARANTINED`` meanwhile.  Over a pool the guard has one of the runtime's streams.
    Thread-safe.

    Examples
    --------
    >>> guard = xlogmem.GuardResourceAdaptor(xlogmem.AsyncMemoryResource())
    >>> runtime = xlogmem.DeviceRuntime(resource=guard)
    >>> block = runtime.allocate(1000)
    >>> guard.check()                               # what was written past an end, or after a free
    []
    """

    __signature__ = Signed("upstream, *, canary=256, quarantine_bytes='64MiB', quarantine_age=None, poison=True, "
                           "depth=16, on_violation='raise'")

    def __init__(self, upstream, *, canary=256, quarantine_bytes="64MiB", quarantine_age=None, poison=True, depth=16,
                 on_violation="raise"):
        cdef GuardState* guard = &self.guard
        depth = parse_depth(depth)
        if isinstance(upstream, DeviceMemoryResource) and (<DeviceMemoryResource>upstream).table.guard != NULL:
            raise ValueError("there is a guard below already: a second one would take its canaries for memory in use, "
                             "and find nothing more")
        self.take_upstream(upstream)
        self.found, self.news, self.left_out = [], [], 0
        self.report = parse_on_violation(on_violation)
        self.raises = isinstance(on_violation, str) and self.report is None
        guard.upstream = &self.upstream.table
        guard.context = self.context.handle
        guard.events = &self.context.events
        guard.owner = <void*>self
        guard.canary = parse_canary(canary)
        guard.most = parse_bytes("quarantine_bytes", quarantine_bytes, lambda: total_memory(self.context.device_id))
        guard.age = 0 if quarantine_age is None else parse_number("quarantine_age", quarantine_age, 1, (1 << 63) - 1,
                                                                  "a number of frees")
        guard.poisons = bool(poison)
        guard.on_host = guard.upstream.order == HOST_SYNCHRONOUS
        take_at_forks(&guard.lock, LEAF_LOCK)
        guard.tools = tools_of(self.context)
        if guard.upstream.frontiers == NULL:
            self.open_stream()
        self.fill_table(depth)

    cdef int fill_table(self, int depth) except -1:
        """Fill in the functions of the guard.  Unlike other adaptors a guard queues work, so it keeps no frontiers."""
        self.open_books(NULL)
        self.guard_functions.self = &self.guard
        self.guard_functions.reap = reap
        self.guard_functions.end = end
        self.guard_functions.keeps = keeps
        self.guard_functions.refused = refused
        self.table.self = &self.guard
        self.table.allocate = allocate
        self.table.deallocate = deallocate
        self.table.trim = trim
        self.table.settled = NULL                       # upstream hears of it when it gets the bytes
        self.table.frontiers = NULL
        self.table.finds_device = False
        self.table.guard = &self.guard_functions
        self.table.stack_depth = max(depth, self.table.stack_depth)
        return 0

    cdef int open_stream(self) except -1:
        cdef Failure failure
        cdef Scope scope
        cdef int failed
        with nogil:
            failed = enter_context(self.guard.context, &scope, &failure)
            if not failed:
                failed = stream_create(0, &self.guard.stream, &failure)
                leave_context(&scope)
        if failed:
            raise_failure(&failure, "creating the stream of a guard")
        return 0

    cdef int bind(self, StreamPool stream_pool) except -1:
        """Bind the guard to a runtime.  Over a pool, positions of the guard's stream go upstream, so the stream has to
        be one of the runtime's."""
        cdef Stream stream
        if self.upstream is None or self.guard.upstream.frontiers == NULL or self.stream_pool is not None:
            return ResourceAdaptor.bind(self, stream_pool)
        stream = stream_pool.make(ORDINARY, 0)          # first: what upstream has bound stays bound
        ResourceAdaptor.bind(self, stream_pool)
        stream.state.handles.fetch_add(1)               # a handle would refer to the runtime, and so to this
        self.stream_pool = stream_pool
        self.guard.order = &stream_pool.ordering.state
        self.guard.stream_state = stream.state
        self.guard.stream = stream.state.handle
        return 0

    def __del__(self):
        """Return the memory in quarantine while an upstream that is written in Python is still whole."""
        if not process_is_closing():
            with nogil:
                end_guard(&self.guard)
            publish(self)

    def __dealloc__(self):
        cdef GuardState* guard = &self.guard
        cdef Failure ignored
        cdef Scope scope
        forget_at_forks(&guard.lock)
        if guard.tools == NULL or process_is_closing():
            return
        with nogil:
            end_guard(guard)
            delete_guard(guard)
            if guard.stream_state != NULL:
                guard.stream_state.handles.fetch_sub(1)
            elif guard.stream != NULL and not enter_context(guard.context, &scope, &ignored):
                stream_destroy(guard.stream, &ignored)
                leave_context(&scope)

    cdef int keep(self, object violation) except -1:
        """Keep a violation for `violations`, and to be raised.  Only a limited number is kept."""
        cdef Section section
        section.begin(self)
        if len(self.found) < KEPT:
            self.found.append(violation)
        if len(self.news) < KEPT:
            self.news.append(violation)
        else:
            self.left_out += 1
        return 0

    def check(self, *, bint blocking=True):
        """Compare the canaries of all memory, and the poison of memory in quarantine.

        Parameters
        ----------
        blocking : bool
            Wait on the host until the comparison is complete (default).  Otherwise the comparison is queued, and a
            later call sees its result.

        Returns
        -------
        list of GuardViolation
            The violations found since the last call.

        Raises
        ------
        MemoryCorruptionError
            Violations were found, and `on_violation` is ``"raise"``.
        DriverError
            A kernel could not be queued.

        Notes
        -----
        Memory whose allocation the device has not reached is left out.  The host waits for the frees of memory in
        quarantine and for nothing else.  Thread-safe; the GIL is released.
        """
        cdef GuardState* guard = &self.guard
        cdef Failure failure
        cdef Scope scope
        cdef int failed
        self.refuse_unmade()
        if guard.stream == NULL:                        # over a pool, before there is a runtime
            return []
        with nogil:
            failed = enter_context(guard.context, &scope, &failure)
            if not failed:
                failed = check_all(guard, blocking, &failure)
                leave_context(&scope)
            gather(guard, <size_t>-1)
        publish(self)
        if failed:
            raise_failure(&failure, "checking guarded memory")
        PyErr_CheckSignals()                            # before the list is handed over: an interrupt would lose it
        news = take_news(self)
        if isinstance(news, MemoryCorruptionError):
            raise news
        return news

    def trim(self):
        """Check all memory in quarantine, and return it to the resource upstream.

        Returns
        -------
        int
            Bytes returned, canaries included.

        Raises
        ------
        DriverError
            Some memory could not be returned, and stays in quarantine.

        Notes
        -----
        The host does not wait, unless upstream takes no streams.  Thread-safe.
        """
        cdef GuardState* guard = &self.guard
        cdef Failure failure
        cdef Scope scope
        cdef uint64_t before, after
        cdef int failed
        self.refuse_unmade()
        if guard.stream == NULL:
            return 0
        before = read_under(&guard.lock, &guard.quarantined)
        with nogil:
            failed = enter_context(guard.context, &scope, &failure)
            if not failed:
                failed = empty_quarantine(guard, &failure)
                leave_context(&scope)
        if failed:
            raise_failure(&failure, "returning what is in quarantine")
        after = read_under(&guard.lock, &guard.quarantined)
        return before - min(before, after)

    def violations(self):
        """All violations found, at most the first 1,000."""
        self.refuse_unmade()
        publish(self)
        return list(self.found)

    @property
    def canary(self):
        """Bytes of a canary."""
        self.refuse_unmade()
        return self.guard.canary

    @property
    def quarantined_bytes(self):
        """Bytes in quarantine, canaries included."""
        self.refuse_unmade()
        return read_under(&self.guard.lock, &self.guard.quarantined)

    @property
    def quarantined_blocks(self):
        """The number of allocations in quarantine."""
        self.refuse_unmade()
        return read_under(&self.guard.lock, &self.guard.quarantined_count)
