"""A fake CUDA driver that can say exactly which operations are ordered.

Nothing in this module knows the rules of xlogmem.  It stands for the GPU, and for the work that programs enqueue, and
it answers one question: *is operation x ordered before everything that will be enqueued on stream T from now on?*  The
rules are right if the answer is yes wherever safety needs it.

Each stream has a vector clock: for each stream, the number of its operations that come before the next one here.

* Enqueuing an operation on T raises T's own component.
* Recording an event copies T's clock into the event.  A wait merges the clock that the event has *at the moment of the
  call* into the clock of the waiting stream; a later record of the same event does not disturb the wait.
* A synchronization merges the event's clock into the host's clock, from which every later operation starts.

No schedule is simulated: what is not ordered is a race, whether or not it would show.

The fake driver imitates these facts, all seen on an H200: handles of streams are reused after a destroy, and the
driver's ids are not; an address that was freed on a stream is handed out again at once, ordered after that free alone;
a wait for an event that was never recorded succeeds and does nothing; every call can fail, without an effect; an event
that is recorded in a capture belongs to the graph.
"""
from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

Clock = dict[int, int]


class DriverError(Exception):
    """A driver call failed.  It has enqueued nothing."""


class Violation(AssertionError):
    """The rules made a call that no correct runtime makes: on a dead handle, for a captured event, a second free."""


@dataclass(frozen=True)
class Op:
    """Operation number `n` of a stream."""

    stream: int
    n: int
    what: str


@dataclass(eq=False)
class Event:
    clock: Clock | None = None          # None: never recorded
    captured: bool = False


@dataclass(eq=False)
class DriverStream:
    """`id` is the answer of cuStreamGetId, which is unique for ever; the driver reuses `handle`."""

    id: int
    handle: int
    clock: Clock = field(default_factory=dict)
    alive: bool = True
    capturing: bool = False


def merge(into: Clock, other: Clock) -> None:
    """Raise each component to the newer of the two."""
    for stream, n in other.items():
        if into.get(stream, 0) < n:
            into[stream] = n


class Driver:
    """The calls that the runtime makes, `launch` for the work of programs, and the question about the order."""

    def __init__(self, cells: int = 64) -> None:
        self.calls: Counter[str] = Counter()
        self.trace: list[str] = []
        self.tracing = False
        self.host: Clock = {}                           # what the host has seen complete
        self.cells = cells                              # the device memory, in equal cells
        self.failures: Counter[str] = Counter()         # name of a call: so many of its next calls fail
        self._streams = 0
        self._handles: list[int] = []                   # handles that may be reused
        self._free_cells: dict[int, Clock] = {cell: {} for cell in range(cells)}    # with the clock of the last free
        self._allocations: dict[int, int] = {}          # address: number of cells

    def fail_next(self, call: str) -> None:
        self.failures[call] += 1

    def _enter(self, call: str, stream: DriverStream | None = None) -> None:
        """Each call begins here: it is counted, and may fail."""
        self.calls[call] += 1
        if stream is not None and not stream.alive:
            raise Violation(f"{call} on the dead handle of stream {stream.id}")
        if self.failures[call] > 0:
            self.failures[call] -= 1
            raise DriverError(call)
        if self.tracing:
            self.trace.append(call if stream is None else f"{call} S{stream.id}")

    def _enqueue(self, stream: DriverStream, what: str) -> Op:
        if not stream.alive:
            raise Violation(f"{what} enqueued on the dead stream {stream.id}")
        merge(stream.clock, self.host)
        n = stream.clock.get(stream.id, 0) + 1
        stream.clock[stream.id] = n
        if self.tracing:
            self.trace.append(f"    [{what}] S{stream.id}#{n}")
        return Op(stream.id, n, what)

    # ------------------------------------------------------------------------------------ streams and events
    def stream_create(self) -> DriverStream:
        self._streams += 1
        return DriverStream(self._streams, self._handles.pop() if self._handles else 0x1000 + self._streams)

    def stream_destroy(self, stream: DriverStream) -> None:
        """A busy stream may be destroyed: its work goes on, and its handle may come back."""
        stream.alive = False
        self._handles.append(stream.handle)

    def event_create(self) -> Event:
        self.calls["event_create"] += 1
        return Event()

    def event_record(self, event: Event, stream: DriverStream) -> None:
        self._enter("record", stream)
        event.captured = stream.capturing
        event.clock = {**stream.clock}
        merge(event.clock, self.host)

    def stream_wait(self, stream: DriverStream, event: Event) -> None:
        if event.captured != stream.capturing:
            raise Violation("a wait mixes a capture with ordinary work (error 905, or the stream joins the capture)")
        self._enter("wait", stream)
        merge(stream.clock, event.clock or {})

    def event_synchronize(self, event: Event) -> None:
        if event.captured:
            raise Violation("synchronization of a captured event (error 907)")
        self._enter("sync")
        merge(self.host, event.clock or {})

    def event_query(self, event: Event) -> bool:
        """Is the event complete?  Here it always is; then the host knows."""
        merge(self.host, event.clock or {})
        return True

    # ------------------------------------------------------------------------------------ memory
    def mem_alloc(self, stream: DriverStream, cells: int) -> int:
        """First fit.  The new owner is ordered after the *frees* of the cells, and not after their readers."""
        self._enter("alloc", stream)
        address = self._first_fit(cells)
        if address is None:
            raise DriverError("out of memory")
        for cell in range(address, address + cells):
            merge(stream.clock, self._free_cells.pop(cell))
        self._allocations[address] = cells
        self._enqueue(stream, f"alloc {address}+{cells}")
        return address

    def mem_free(self, stream: DriverStream, address: int) -> Op:
        if address not in self._allocations:
            raise Violation(f"free of {address}, which is not allocated")
        self._enter("free", stream)
        op = self._enqueue(stream, f"free {address}")
        for cell in range(address, address + self._allocations.pop(address)):
            self._free_cells[cell] = {**stream.clock}
        return op

    def _first_fit(self, cells: int) -> int | None:
        free = 0
        for cell in range(self.cells):
            free = free + 1 if cell in self._free_cells else 0
            if free == cells:
                return cell - cells + 1
        return None

    # ------------------------------------------------------------------------------------ programs and the order
    def launch(self, stream: DriverStream, what: str = "work") -> Op:
        """Work that a program enqueues."""
        return self._enqueue(stream, what)

    def is_before_later_work(self, op: Op, stream: DriverStream) -> bool:
        """Is the operation ordered before everything that will be enqueued on the stream from now on?"""
        return max(stream.clock.get(op.stream, 0), self.host.get(op.stream, 0)) >= op.n

    def host_has_seen(self, op: Op) -> bool:
        return self.host.get(op.stream, 0) >= op.n
