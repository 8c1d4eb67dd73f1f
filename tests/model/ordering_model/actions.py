"""The actions of a thread in a random program.

Programs are right: they do not launch outside a window, do not use a block after its free, fill a block without a
record only on its allocation stream before its first use elsewhere, and enqueue unrecorded work on an opaque stream
only where earlier conflicting uses are ordered before it.  Everything else is the duty of the runtime.
"""
from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import wraps
from typing import Any, NamedTuple

from ordering_model.driver import merge
from ordering_model.frontiers import Block, State
from ordering_model.oracle import Access, Oracle, Track
from ordering_model.rules import READ, READ_WRITE, REFUSED, WRITE, Operation, Rules, UseAfterFree
from ordering_model.streams import Stream
from ordering_model.windows import Core, Uses, Window

POLICIES = ("lazy", "precise", "adaptive")
FAILING_CALLS = ("record", "record", "wait", "wait", "free", "alloc", "sync")
MOST_WINDOWS = 7

Action = Callable[[], Operation[None]]


@dataclass(frozen=True)
class Configuration:
    memory: tuple[str, ...] = ("driver", "pool")
    opaque: int = 0                             # so many streams are opaque
    threads: int = 1
    failures: bool = False
    unregister: bool = False
    capture: bool = False
    graphs: bool = False                        # of programs with ranges


class Use(NamedTuple):
    """What a launch does with a block, or with a range of it."""

    track: Track
    access: str
    cells: range

    @property
    def writes(self) -> bool:
        return self.access != READ

    def earlier(self) -> list[Access]:
        """What the launch must come after if it is prepared now."""
        return [access for access in self.track.accesses if access.closed and access.conflicts(self.writes, self.cells)]


@dataclass(eq=False)
class Launch:
    """A window that the program has open, and what each of its uses must come after."""

    window: Window
    stream: Stream
    uses: list[Use]
    earlier: list[list[Access]]
    accesses: list[Access] = field(default_factory=list)       # once it is launched

    @property
    def tracks(self) -> list[Track]:
        return [use.track for use in self.uses]


def one_step(action: Callable[[Any], None]) -> Callable[[Any], Operation[None]]:
    """An action of the program alone, in which the lock plays no part."""
    @wraps(action)
    def steps(program: Any) -> Operation[None]:
        action(program)
        return
        yield
    return steps


class Actions:
    """The state of a program, and what its threads do at random."""

    core: Core
    oracle: Oracle

    def __init__(self, seed: int, rules: Rules, configuration: Configuration, tracing: bool = False) -> None:
        self.random = random.Random(seed)
        rules = replace(rules, ring=self.random.choice((1, 1, 2, 3, 4)))
        self.policies = POLICIES if rules.policy == "mixed" else (rules.policy,)
        if rules.policy == "mixed":
            rules = replace(rules, policy=self.random.choice(POLICIES))
        self.configuration = configuration
        self.make_core(rules)
        self.oracle.tracing = tracing
        self.core.on_birth = self.oracle.born
        self.tracks: list[Track] = []
        self.launches: list[Launch] = []
        self.reserved: set[int] = set()         # ids of streams on which the program enqueues nothing else now
        self.next_adopted = 1000
        self.operations = 0
        self.streams = [self._new_stream(number < configuration.opaque)
                        for number in range(self.random.randint(3, 5))]

    def make_core(self, rules: Rules) -> None:
        self.oracle = Oracle()
        self.core = Core(self.oracle, rules)

    def _new_stream(self, opaque: bool) -> Stream:
        sealed, unowned = self.random.random() < .25, self.random.random() < .2
        return self.core.register(self.oracle.stream_create(), opaque=opaque, sealed=sealed, unowned=unowned)

    # ------------------------------------------------------------------------------------ choices
    def any_stream(self) -> Stream | None:
        streams = [stream for stream in self.streams if not stream.handle.capturing]
        return self.random.choice(streams) if streams else None

    def any_track(self, condition: Callable[[Track], object] = lambda track: True) -> Track | None:
        tracks = [track for track in self.tracks if not track.freed and condition(track)]
        return self.random.choice(tracks) if tracks else None

    def some_tracks(self, most: tuple[int, ...],
                    condition: Callable[[Track], object] = lambda track: True) -> list[Track]:
        chosen = {self.any_track(condition) for _ in range(self.random.choice(most))}
        return sorted((track for track in chosen if track), key=lambda track: track.block.generation)

    def may_enqueue(self, stream: Stream) -> bool:
        return stream.usable and stream.handle.id not in self.reserved

    def cells_of(self, track: Track) -> range:
        """What an action touches of a block: here all of it."""
        return track.block.range

    def choose_uses(self, tracks: list[Track], accesses: tuple[str, ...]) -> list[Use]:
        return [Use(track, self.random.choice(accesses), self.cells_of(track)) for track in tracks]

    def named(self, uses: list[Use]) -> Uses:
        """As the runtime gets them."""
        return [(use.track.block, use.access) for use in uses]

    def block_cells(self) -> int:
        return self.random.randint(1, 3)

    def is_after_all(self, stream: Stream, track: Track) -> bool:
        return all(self.oracle.is_before_later_work(access.op, stream.handle) for access in track.accesses)

    # ------------------------------------------------------------------------------------ memory
    def allocate(self) -> Operation[None]:
        stream, memory = self.any_stream(), self.random.choice(self.configuration.memory)
        if not stream:
            return
        if memory == "adopted":
            track = self._adopt(stream)
        else:
            track = self.track_of((yield from self.core.allocate(self.block_cells(), stream, memory)))
        if track.block.stream:
            track.note_opaque(track.block.stream, track.block.range)
        self.tracks.append(track)
        if self.random.random() < .4:
            self._fill(track)

    def track_of(self, block: Block) -> Track:
        return Track(block, [Access(self.oracle.touched[block.address][0], True, block.range)])

    def _adopt(self, stream: Stream) -> Track:
        """The owner has worked on the memory, on its stream; without a stream it has waited for that work."""
        cells, address = self.block_cells(), self.next_adopted
        self.next_adopted += 10
        has_stream = self.random.random() >= .2
        op = self.oracle.launch(stream.handle, "the owner's work")
        if not has_stream:
            merge(self.oracle.host, stream.handle.clock)
        track = Track(self.core.adopt(address, cells, stream if has_stream else None))
        self.oracle.access(track, op, True, track.block.range)
        return track

    def _fill(self, track: Track) -> None:
        """Unrecorded work on the allocation stream, before the first use elsewhere is filed.

        On a stream that may be destroyed, before it is prepared (fresh-entries-stay).
        """
        stream, cells = track.block.stream, self.cells_of(track)
        is_fresh = track.used_elsewhere.isdisjoint(cells)
        if track.freed or not is_fresh or not stream or stream.sealed or not self.may_enqueue(stream):
            return
        if not track.foreign_uses or not stream.unowned:
            op = self.oracle.launch(stream.handle, f"fill {track.block.generation}")
            self.oracle.access(track, op, self.random.random() < .8, cells)

    @one_step
    def fill(self) -> None:
        track = self.any_track()
        if track:
            self._fill(track)

    @one_step
    def fill_late(self) -> None:
        """The same after uses elsewhere, ordered by the program.

        Later uses need not come after it, but "freed on S" still means after everything on S.
        """
        track = self.any_track(lambda track: not track.windows and track.block.stream)
        stream = track.block.stream if track else None
        if not track or not stream or stream.sealed or not self.may_enqueue(stream):
            return
        if self.random.random() < .3:
            self._wait_for_accesses(stream, track)
        if self.is_after_all(stream, track):
            op = self.oracle.launch(stream.handle, f"late fill {track.block.generation}")
            self.oracle.access(track, op, True, track.block.range, closed=False).late = True

    @one_step
    def work_unrecorded(self) -> None:
        """Unrecorded work on an opaque stream, on a block that the stream has, after what it conflicts with."""
        track = self.any_track(lambda track: track.opaque_users and not track.windows)
        if not track:
            return
        stream = self.random.choice(sorted(track.opaque_users, key=lambda stream: stream.number))
        writes, cells = self.random.random() < .5, self.cells_of(track)
        if not self.may_enqueue(stream) or not track.opaque_users[stream].issuperset(cells):
            return
        for access in track.accesses:
            if access.conflicts(writes, cells) and not self.oracle.is_before_later_work(access.op, stream.handle):
                self._check_handed_back(access, track, stream)
                return
        op = self.oracle.launch(stream.handle, f"unrecorded {track.block.generation}")
        self.oracle.access(track, op, writes, cells)

    def _check_handed_back(self, access: Access, track: Track, stream: Stream) -> None:
        block = track.block
        if access.op.what.startswith("use ") and track.handed_back and stream is block.home is block.stream:
            self.oracle.report("hand-back", f"{access.op} not before later work on stream {stream.number}")

    def free(self) -> Operation[None]:
        track = self.any_track(lambda track: not track.freed)
        if track:
            yield from self._free(track)

    def _free(self, track: Track) -> Operation[None]:
        if track.freed or self._is_recording(track):
            return
        track.freed = True
        if self.random.random() < .3:
            self.core.drop(track.block)
            return
        try:
            yield from self.core.free(track.block, self._named_stream(track))
        except REFUSED:
            track.freed = False
            raise
        if track.block.memory == "adopted" and track.block.state is State.FREED:
            self.oracle.check_released(track)

    def _named_stream(self, track: Track) -> Stream | None:
        """Some frees name a stream.  Only a free at home comes after late fills (home-moves)."""
        stream = self.any_stream() if self.random.random() < .2 else None
        late = [access for access in track.accesses if access.late]
        if stream and all(self.oracle.is_before_later_work(access.op, stream.handle) for access in late):
            return stream
        return None

    def _is_recording(self, track: Track) -> bool:
        """Another thread has enqueued work on it and is about to record it."""
        in_launch = any(track in launch.tracks for launch in self.launches)
        return any(not access.closed for access in track.accesses) and bool(track.windows) and not in_launch

    def reap(self) -> Operation[None]:
        yield from self.core.reap()

    def trim(self) -> Operation[None]:
        stream = self.any_stream()
        if stream:
            yield from self.core.pool.trim(stream)

    # ------------------------------------------------------------------------------------ uses
    def prepare(self) -> Operation[None]:
        stream, tracks = self.any_stream(), self.some_tracks((1, 1, 2, 3))
        if not stream or not tracks or len(self.launches) >= MOST_WINDOWS:
            return
        uses = self.choose_uses(tracks, (READ, READ, WRITE, READ_WRITE))
        earlier = [use.earlier() for use in uses]
        for use in uses:
            use.track.windows += 1
            use.track.foreign_uses += self.is_elsewhere(stream, use.track)
        try:
            window = yield from self.core.prepare(stream, self.named(uses))
        except (*REFUSED, UseAfterFree):
            self._close(stream, uses, cancelled=True)
            raise
        self.launches.append(Launch(window, stream, uses, earlier))

    def is_elsewhere(self, stream: Stream, track: Track) -> bool:
        return stream is not track.block.stream

    def _close(self, stream: Stream, uses: list[Use], cancelled: bool) -> None:
        for track, _, cells in uses:
            track.windows -= 1
            if cancelled:
                track.foreign_uses -= self.is_elsewhere(stream, track)
            else:
                track.note_opaque(stream, cells)

    @one_step
    def launch(self) -> None:
        if self.launches:
            self._launch(self.random.choice(self.launches))

    def _launch(self, launch: Launch) -> None:
        stream = launch.stream
        if launch.accesses or stream.handle.capturing:
            return
        names = ",".join(f"{use.track.block.generation}{use.access[0]}" for use in launch.uses)
        op = self.oracle.launch(stream.handle, f"use {names}")
        for use, earlier in zip(launch.uses, launch.earlier, strict=True):
            for other in earlier:
                if not self.oracle.is_before_later_work(other.op, stream.handle):
                    self.oracle.report("conflict", f"{other.op} not before {op} (block {use.track.block.generation})")
            launch.accesses.append(self.oracle.access(use.track, op, use.writes, use.cells, closed=False))

    def finish(self) -> Operation[None]:
        if self.launches:
            yield from self._finish(self.random.choice(self.launches))

    def _finish(self, launch: Launch) -> Operation[None]:
        """Finish or cancel; a body may also raise before its launch, and is filed all the same."""
        if launch.stream.handle.capturing and not launch.accesses:
            return
        self.launches.remove(launch)
        chance = self.random.random()
        if not launch.accesses and chance < .25:
            yield from self.core.cancel(launch.window)
            self._close(launch.stream, launch.uses, cancelled=True)
            return
        if not launch.accesses and chance < .9:
            self._launch(launch)
        for use in launch.uses:
            self._end_freshness(launch.stream, use.track, use.cells)
        try:
            yield from self.core.finish(launch.window)
        except REFUSED:                         # only a failed hand-back raises here
            for track in launch.tracks:
                track.handed_back = False
        for access in launch.accesses:
            access.closed = True
        self._close(launch.stream, launch.uses, cancelled=False)

    def _end_freshness(self, stream: Stream, track: Track, cells: range) -> None:
        if self.is_elsewhere(stream, track):
            track.used_elsewhere.update(cells)

    def record_use(self) -> Operation[None]:
        """Work that the program orders with events of its own, and records afterwards."""
        stream, track = self.any_stream(), self.any_track()
        if not stream or not track or track.windows or stream.handle.id in self.reserved:
            return
        elsewhere = stream is not track.block.stream
        track.windows += 1
        track.foreign_uses += elsewhere
        self.reserved.add(stream.handle.id)
        self._wait_for_accesses(stream, track)
        if self.is_after_all(stream, track):
            self._end_freshness(stream, track, track.block.range)
            op = self.oracle.launch(stream.handle, "work that is recorded later")
            access = self.oracle.access(track, op, True, track.block.range, closed=False)
            yield from self.core.record_use(stream, track.block)
            access.closed = True
            track.note_opaque(stream, track.block.range)
        else:
            track.foreign_uses -= elsewhere
        self.reserved.remove(stream.handle.id)
        track.windows -= 1

    def _wait_for_accesses(self, stream: Stream, track: Track) -> None:
        for access in track.accesses:
            for source in self.streams:
                if source.handle.id == access.op.stream and not source.handle.capturing:
                    merge(stream.handle.clock, source.handle.clock)

    # ------------------------------------------------------------------------------------ streams and failures
    def unregister(self) -> Operation[None]:
        """Unregister a stream, destroy it, and register a new one in its place."""
        stream, successor = self.any_stream(), self.any_stream()
        if not stream or not successor or stream is successor or stream.handle.id in self.reserved:
            return
        self.reserved.add(stream.handle.id)
        try:
            yield from self.core.unregister(stream, successor)
        finally:
            self.reserved.remove(stream.handle.id)
        if not stream.windows:                  # only a planted defect unregisters a stream with open windows
            self.oracle.stream_destroy(stream.handle)
            self.streams[self.streams.index(stream)] = self.core.register(
                self.oracle.stream_create(), opaque=stream.opaque)

    def reap_tombstone(self) -> Operation[None]:
        ended = [stream for stream in self.core.streams.values() if not stream.alive and not stream.complete]
        if ended:
            yield from self.core.reap_tombstone(self.random.choice(ended))

    @one_step
    def fail(self) -> None:
        self.oracle.fail_next(self.random.choice(FAILING_CALLS))

    @one_step
    def capture(self) -> None:
        """Begin or end a capture, but not while another thread's call on the stream is in flight."""
        stream = self.random.choice(self.streams)
        in_use = stream.calls or stream.handle.id in self.reserved
        if not in_use and (stream.handle.capturing or self.random.random() < .5):
            stream.handle.capturing = not stream.handle.capturing

    @one_step
    def change_policy(self) -> None:
        if len(self.policies) > 1:
            self.core.rules = replace(self.core.rules, policy=self.random.choice(self.policies))
