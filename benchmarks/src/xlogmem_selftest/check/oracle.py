"""Which accesses nothing orders, by the rules of CUDA alone: no clock, and no access is forgotten.

An operation is the number of its call.  A set of operations is an integer with their bits.  Each stream, each event and
the host have the set of all operations that come before what is queued next, so reachability is one bit.
"""
from __future__ import annotations

from dataclasses import dataclass, field, replace

__all__ = ["Access", "Block", "Capture", "Event", "Oracle", "Stream"]


@dataclass
class Access:
    call: int
    begin: int
    end: int
    writes: bool
    counts: bool = False                                # by an atomic operation

    def contradicts(self, other: Access) -> bool:
        """True unless the two may come in any order."""
        meet = self.call != other.call and self.begin < other.end and other.begin < self.end
        return meet and (self.writes or other.writes) and not (self.counts and other.counts)


@dataclass(eq=False)
class Block:
    begin: int
    end: int
    device: int
    ordered: bool                                       # from a pool
    allocated: int                                      # the call
    freed: int = 0                                      # the call, 0: alive
    accesses: list[Access] = field(default_factory=list)


@dataclass(eq=False)
class Capture:
    """Captured work is ordered by the capture alone, until a launch does it."""

    members: list[Stream] = field(default_factory=list)
    work: list[tuple[Block, Access]] = field(default_factory=list)
    nodes: int = 0
    last: int = 0                                       # what comes before the next launch
    graph: int = 0                                      # the executable


@dataclass(eq=False)
class Stream:
    handle: int
    device: int
    blocking: bool
    legacy: bool = False
    thread: int = 0                                     # which makes its calls
    past: int = 0
    capture: Capture | None = None
    captured: int = 0                                   # the past in the capture
    ended: bool = False


@dataclass(eq=False)
class Event:
    handle: int
    device: int
    past: int = 0
    recorded: bool = False
    capture: Capture | None = None


class Oracle:
    """Follows the calls that the driver has accepted.  `expected` has the pairs of calls that are certain to contradict
    each other, and the beginning of the block."""

    def __init__(self, devices: int) -> None:
        self.streams = [Stream(0, device, blocking=True, legacy=True) for device in range(devices)]
        self.legacy = self.streams[:]
        self.host = 0
        self.maybe = 0                                  # which the host may know to be done
        self.blocks: list[Block] = []
        self.expected: set[tuple[int, int, int]] = set()

    # -- order -------------------------------------------------------------------------------------------------------

    def queued(self, stream: Stream) -> int:
        """What a synchronize of the stream waits for.  A destroyed stream's work still counts."""
        past = stream.past
        if stream.legacy:
            for other in self.streams:
                if other.blocking and other.device == stream.device:
                    past |= other.past
        return past

    def in_context(self, device: int) -> int:
        past = 0
        for stream in self.streams:
            if stream.device == device:
                past |= stream.past
        return past

    def operation(self, stream: Stream, call: int = 0) -> int:
        """The next operation of a stream, and what comes before it."""
        if stream.capture:
            before = stream.captured
            stream.captured |= 1 << call
            stream.capture.nodes += 1
            return before
        before = self.queued(stream) | self.host
        if stream.blocking:
            before |= self.legacy[stream.device].past
        stream.past = before | (1 << call if call else 0)
        return before

    def record(self, event: Event, stream: Stream) -> None:
        event.capture = stream.capture
        event.recorded = not stream.capture
        if not stream.capture:
            self.operation(stream)
        event.past = stream.captured if stream.capture else stream.past

    def wait(self, stream: Stream, event: Event) -> None:
        """A stream that waits for captured work joins the capture.  A wait alone does not bring the stream after the
        default stream."""
        if not event.capture:
            stream.past |= event.past
            return
        if not stream.capture:
            stream.capture, stream.captured = event.capture, 0
            event.capture.members.append(stream)
        stream.captured |= event.past

    def synchronize(self, stream: Stream) -> None:
        if stream.legacy:
            self.operation(stream)
        self.host |= stream.past

    def query(self, stream: Stream) -> None:
        """A query of the default stream promises nothing of the blocking ones, and may know of them."""
        self.host |= stream.past
        self.maybe |= self.queued(stream)

    def call_host(self, stream: Stream, call: int) -> None:
        self.operation(stream, call)
        if not stream.capture:
            self.maybe |= stream.past

    # -- memory ------------------------------------------------------------------------------------------------------

    def allocate(self, block: Block, stream: Stream | None) -> None:
        self.blocks = [old for old in self.blocks if old.end <= block.begin or block.end <= old.begin]
        self.blocks.append(block)
        if stream:
            self.operation(stream, block.allocated)
            block.accesses.append(Access(block.allocated, block.begin, block.end, writes=True))
        else:
            self.host |= 1 << block.allocated

    def free(self, block: Block, stream: Stream | None, call: int) -> None:
        """Without a stream the host frees; it waits for the device, unless the memory is from a pool."""
        if stream:
            before = self.operation(stream, call)
        else:
            if not block.ordered:
                self.host |= self.in_context(block.device)
            before = self.host
            self.host |= 1 << call
        self.compare(block, Access(call, block.begin, block.end, writes=True), before)
        block.freed = call

    def compare(self, block: Block, access: Access, before: int) -> None:
        for old in block.accesses:
            if old.contradicts(access) and not (before | self.maybe) >> old.call & 1:
                self.expected.add((old.call, access.call, block.begin))

    def touch(self, block: Block, access: Access, before: int) -> None:
        if block.freed:
            if before >> block.freed & 1 or not self.maybe >> block.freed & 1:
                self.expected.add((block.freed, access.call, block.begin))
            return
        self.compare(block, access, before)
        block.accesses.append(access)

    def capture(self, capture: Capture, block: Block, access: Access, before: int) -> None:
        """The branches of a capture are compared among themselves, and memory has to be alive."""
        if block.freed:
            self.expected.add((block.freed, access.call, block.begin))
            return
        for other, old in capture.work:
            if other is block and old.contradicts(access) and not before >> old.call & 1:
                self.expected.add((old.call, access.call, block.begin))
        capture.work.append((block, access))

    def work(self, stream: Stream, call: int, uses: list[tuple[Block, int, int, bool]], *,
             counts: bool = False) -> None:
        before = self.operation(stream, call)
        for block, begin, end, writes in uses:
            access = Access(call, begin, end, writes, counts)
            if stream.capture:
                self.capture(stream.capture, block, access, before)
            else:
                self.touch(block, access, before)

    def copy(self, stream: Stream, call: int, uses: list[tuple[Block, int, int, bool]], waits: str) -> None:
        """In a default stream a copy is ordered with those of the devices whose memory it touches.  The host waits for
        what was queued `before`, for the `copy`, or for nothing."""
        others = {self.legacy[block.device] for block, *_ in uses
                  if stream.legacy and block.device != stream.device}
        for other in others:
            stream.past |= self.queued(other)
        if waits == "before":
            self.synchronize(stream)
        self.work(stream, call, uses)
        for other in others:
            other.past |= self.queued(stream)
        if waits == "copy" and not stream.capture:
            self.host |= stream.past

    def launch(self, capture: Capture, stream: Stream, call: int) -> None:
        """One operation.  Launches of one executable come one after the other."""
        if not capture.nodes:
            return
        stream.past |= capture.last
        before = self.operation(stream, call)
        capture.last = stream.past
        for block, access in capture.work:
            now = next((one for one in self.blocks if one.begin <= block.begin < one.end), None)
            if now and now is not block and not now.freed:
                self.expected.add((now.allocated, call, now.begin))
            elif now:
                self.touch(now, replace(access, call=call), before)
