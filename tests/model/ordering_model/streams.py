"""Streams: their positions, their fences, and what each of them is already ordered after.

position    (S, n) stands for everything enqueued on S before its count reached n.  A position is taken *after* the work
            it stands for, so a fence that is recorded while the count is n or more covers it.
fence       An event, the position that it covers, and the clock that its stream had then.
clock       For each stream, the newest position that this stream (or the host) is already ordered after.
"""
from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count

from ordering_model.driver import Clock, Driver, DriverError, DriverStream, Event, merge
from ordering_model.rules import Operation, Rules, StreamMisuse, unlocked


@dataclass(eq=False)
class Fence:
    event: Event
    position: int
    clock: Clock
    pins: int = 0                               # calls that use the event without the lock


@dataclass(eq=False)
class Stream:
    """A registration.  `number` is never reused; the driver reuses the handle of a destroyed stream.

    The discipline never changes in the model: ordinary, `opaque` (unrecorded work at any time) or `sealed` (none).
    """

    number: int
    handle: DriverStream
    opaque: bool = False
    sealed: bool = False
    unowned: bool = False                       # it may be destroyed at any time
    count: int = 0
    clock: Clock = field(default_factory=dict)
    ring: list[Fence] = field(default_factory=list)     # oldest first
    last_fence: Fence | None = None             # of an unregistered stream
    successor: Stream | None = None
    complete: bool = False                      # the host has seen the last fence complete
    windows: int = 0
    calls: int = 0                              # calls in flight that use the handle
    eager_commits: int = 0                      # so many of the next commits record a fence

    @property
    def alive(self) -> bool:
        return self.last_fence is None

    @property
    def usable(self) -> bool:
        return self.alive and not self.handle.capturing

    @property
    def in_use(self) -> bool:
        return bool(self.windows or self.calls)


@contextmanager
def calling(stream: Stream | None) -> Iterator[None]:
    """A call that uses the handle of the stream: the stream stays registered meanwhile."""
    if stream is not None:
        stream.calls += 1
    try:
        yield
    finally:
        if stream is not None:
            stream.calls -= 1


class Streams:
    """The streams of one runtime, and `order`, which all waits go through."""

    def __init__(self, driver: Driver, rules: Rules) -> None:
        self.driver, self.rules = driver, rules
        self.streams: dict[int, Stream] = {}
        self.host_clock: Clock = {}             # positions that the host has seen complete count for every stream
        self.spare_events: list[Event] = []
        self._numbers = count(1)

    def register(self, handle: DriverStream, opaque: bool = False, sealed: bool = False,
                 unowned: bool = False) -> Stream:
        stream = Stream(next(self._numbers), handle, opaque, sealed and not opaque, unowned)
        self.streams[stream.number] = stream
        return stream

    def advance(self, stream: Stream) -> int:
        """A new position of the stream.  No fence and no clock that exists covers it (new-position-covers)."""
        if stream.last_fence is not None:       # nothing follows the last position
            return stream.last_fence.position
        stream.count += 1
        return stream.count

    def is_ordered(self, stream: Stream | None, source: Stream, position: int) -> bool:
        """Is the stream, or without a stream the host, already ordered after (source, position)?"""
        if stream is source or self.host_clock.get(source.number, 0) >= position:
            return True
        return stream is not None and stream.clock.get(source.number, 0) >= position

    # ------------------------------------------------------------------------------------ fences
    def covering_fence(self, stream: Stream, position: int) -> Fence | None:
        """The oldest fence that covers the position.  The last fence of an unregistered stream covers all of them."""
        if stream.last_fence is not None:
            return stream.last_fence
        return next((fence for fence in stream.ring if fence.position >= position), None)

    def fence_for(self, stream: Stream, position: int) -> Operation[Fence]:
        return self.covering_fence(stream, position) or (yield from self.record_fence(stream))

    def record_fence(self, stream: Stream) -> Operation[Fence]:
        """Record a fence.  Its position and clock are sampled before the call, and it enters the ring afterwards.

        A record that fails leaves no fence.  A capture may begin during the call: the event may belong to the graph
        then, so it is not made a fence.
        """
        if stream.last_fence is not None:
            return stream.last_fence
        if stream.handle.capturing and self.rules.capturing_source:
            raise StreamMisuse("a stream that this work depends on is capturing")
        event = self._event_for(stream)
        position, clock = stream.count, dict(stream.clock)
        with calling(stream):
            event, failure = yield from unlocked(self._record, event, stream)
        if failure is not None:
            self.spare_events.append(event)
            raise failure
        if not self.rules.fence_sampled_before_record:
            position, clock = stream.count, dict(stream.clock)
        fence = Fence(event, position, clock)
        stream.ring.append(fence)
        stream.ring.sort(key=lambda known: known.position)      # two records may have overlapped
        return fence

    def _record(self, event: Event | None, stream: Stream) -> tuple[Event, Exception | None]:
        """The driver calls of `record_fence`; the capture state is queried after the record."""
        event = event or self.driver.event_create()
        try:
            self.driver.event_record(event, stream.handle)
        except DriverError as error:
            return event, error
        if stream.handle.capturing and self.rules.capturing_source:
            return event, StreamMisuse("a capture began while a fence was recorded")
        return event, None

    def _event_for(self, stream: Stream) -> Event | None:
        """The event of the oldest fence of a full ring, but not of a pinned one (fence-ring, fence-pinned)."""
        if len(stream.ring) >= self.rules.ring:
            for fence in stream.ring:
                if not fence.pins or not self.rules.fence_pinned:
                    stream.ring.remove(fence)
                    return fence.event
        return self.spare_events.pop() if self.spare_events else None

    def unpin(self, fence: Fence, stream: Stream) -> None:
        """Once no call uses a fence that is in no ring, its event may be recorded again."""
        fence.pins -= 1
        if not fence.pins and fence not in stream.ring and self.rules.fence_pinned:
            self.spare_events.append(fence.event)

    # ------------------------------------------------------------------------------------ waits
    def order(self, stream: Stream, source: Stream, position: int) -> Operation[None]:
        """Order everything that is enqueued on `stream` from now on after (source, position)."""
        if self.is_ordered(stream, source, position):
            return
        fence = yield from self.fence_for(source, position)
        fence.pins += 1
        if not self.rules.clock_after_wait:
            self._raise(stream.clock, source, fence)
        try:
            yield from unlocked(self.driver.stream_wait, stream.handle, fence.event)
        finally:
            self.unpin(fence, source)
        self._raise(stream.clock, source, fence)

    def host_waits(self, source: Stream, position: int) -> Operation[None]:
        """The host waits until everything up to (source, position) is complete."""
        if self.is_ordered(None, source, position):
            return
        fence = yield from self.fence_for(source, position)
        yield from self.host_waits_for_fence(source, fence)

    def host_waits_for_fence(self, source: Stream, fence: Fence) -> Operation[None]:
        fence.pins += 1
        try:
            yield from unlocked(self.driver.event_synchronize, fence.event)
        finally:
            self.unpin(fence, source)
        self._raise(self.host_clock, source, fence)

    def host_polls(self, source: Stream, position: int) -> Operation[None]:
        """Raise the host's clock if a fence that covers the position is there and is complete (poll-completes)."""
        fence = self.covering_fence(source, position)
        if fence is None or self.is_ordered(None, source, position):
            return
        fence.pins += 1
        complete = yield from unlocked(self.driver.event_query, fence.event)
        self.unpin(fence, source)
        if complete:
            self.raise_host_clock(source, fence)

    def raise_host_clock(self, source: Stream, fence: Fence) -> None:
        """After a poll that found the fence complete."""
        self._raise(self.host_clock, source, fence)

    @staticmethod
    def _raise(clock: Clock, source: Stream, fence: Fence) -> None:
        """By the fence's position, and by the clock that its stream had: clocks are transitive (clock-after-wait)."""
        merge(clock, {source.number: fence.position})
        merge(clock, fence.clock)
