"""Random programs with host accesses and host memory.

An operation of the host is one on the pseudo-stream 0.  A host access is right if the host has seen everything complete
that conflicts with it and was closed before it was requested; what is enqueued after it has ended comes after it.  An
access that is awaited has to be right when it opens: also for what was closed while it was suspended.  Beside those of
programs.py, the violations are:

host-conflict   A host access begins when everything that conflicts with it is complete.
host-first      The host fills new host memory when all earlier accesses to it are complete.
host-freed      A block is not freed inside a host access.
"""
from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from ordering_model.actions import Action, Configuration, Use, one_step
from ordering_model.driver import Event, Op
from ordering_model.frontiers import Block, State
from ordering_model.host import HostCore, HostWindow
from ordering_model.oracle import Oracle, Track
from ordering_model.programs import Program
from ordering_model.rules import READ, READ_WRITE, REFUSED, WRITE, HostRules, Operation, Rules, UseAfterFree
from ordering_model.windows import Uses

HOST = 0                                        # the pseudo-stream
MOST_HOST_WINDOWS = 4

HOST_CONFIGURATIONS = {
    "host": Configuration(("driver",)),
    "host-opaque": Configuration(opaque=1),
    "host-unregistering": Configuration(("pool",), opaque=1, unregister=True),
    "host-threads": Configuration(opaque=1, threads=3),
    "host-everything": Configuration(("driver", "pool", "adopted"), opaque=1, threads=3, failures=True,
                                     unregister=True, capture=True),
}


class HostOracle(Oracle):
    def __init__(self, chance: random.Random, cells: int = 32) -> None:
        super().__init__(cells)
        self.chance = chance
        self.host_operations = 0

    def event_query(self, event: Event) -> bool:
        """Complete at random, as on a device."""
        return self.chance.random() < .6 and super().event_query(event)

    def host_operation(self, what: str) -> Op:
        """Whatever is enqueued from now on comes after it."""
        self.host_operations += 1
        self.host[HOST] = self.host_operations
        return Op(HOST, self.host_operations, what)

    def owner_is_after(self, op: Op, block: Block) -> bool:
        return self.host_has_seen(op) if block.stream is None else super().owner_is_after(op, block)

    def birth_of(self, block: Block) -> Op:
        if block.stream is None:
            return self.host_operation(f"birth of {block.generation}")
        return super().birth_of(block)


@dataclass(eq=False)
class HostAccess:
    window: HostWindow
    uses: list[Use]


class HostProgram(Program):
    core: HostCore
    oracle: HostOracle

    def make_core(self, rules: Rules) -> None:
        assert isinstance(rules, HostRules)
        self.oracle = HostOracle(self.random)
        self.core = HostCore(self.oracle, rules)
        self.host_accesses: list[HostAccess] = []

    def allocate_host(self) -> Operation[None]:
        stream = None if self.random.random() < .6 else self.any_stream()
        track = self.track_of((yield from self.core.allocate_host(self.block_cells(), stream)))
        if stream is not None:
            track.note_opaque(stream, track.block.range)
        self.tracks.append(track)
        if self.random.random() < .6:
            self._host_fill(track)

    def _host_fill(self, track: Track) -> None:
        """Without a record, before the first use (host-first)."""
        if track.block.stream is not None or track.foreign_uses or track.freed or track.windows:
            return
        for access in track.accesses:
            if not self.oracle.host_has_seen(access.op):
                self.oracle.report("host-first", f"{access.op} not complete when the host fills the block")
        self.oracle.access(track, self.oracle.host_operation(f"host fill {track.block.generation}"), True,
                           track.block.range)

    @one_step
    def host_fill(self) -> None:
        track = self.any_track(lambda track: track.block.memory == "host")
        if track:
            self._host_fill(track)

    def host_access(self) -> Operation[None]:
        tracks = self.some_tracks((1, 1, 2), lambda track: (
            track.block.memory == "host" or self.random.random() < .3))
        if not tracks or len(self.host_accesses) >= MOST_HOST_WINDOWS:
            return
        uses = self.choose_uses(tracks, (READ, WRITE, READ_WRITE))
        prepare: Callable[[Uses], Operation[HostWindow]]
        prepare = self.core.acquire_host if self.random.random() < .4 else self.core.prepare_host
        earlier = [use.earlier() for use in uses]
        for use in uses:
            use.track.windows += 1
        try:
            window = yield from prepare(self.named(uses))
        except (*REFUSED, UseAfterFree):
            for use in uses:
                use.track.windows -= 1
            raise
        if not window.waited_with_window:
            earlier = [use.earlier() for use in uses]
        for use, others in zip(uses, earlier, strict=True):
            for other in others:
                if not self.oracle.host_has_seen(other.op):
                    self.oracle.report("host-conflict", f"{other.op} not complete at the host's {use.access}")
            self._check_not_freed(use.track)
        self.host_accesses.append(HostAccess(window, uses))

    def _check_not_freed(self, track: Track) -> None:
        if track.block.state is State.FREED:
            self.oracle.report("host-freed", f"block {track.block.generation} was freed inside a host access")

    def finish_host(self) -> Operation[None]:
        if self.host_accesses:
            yield from self._finish_host(self.random.choice(self.host_accesses))

    def _finish_host(self, access: HostAccess) -> Operation[None]:
        self.host_accesses.remove(access)
        op = self.oracle.host_operation("host access")
        for use in access.uses:
            self._check_not_freed(use.track)
            if use.track.block.state is not State.FREED:
                self.oracle.access(use.track, op, use.writes, use.cells)
        yield from self.core.finish_host(access.window)
        for use in access.uses:
            use.track.windows -= 1

    def prepare(self) -> Operation[None]:
        """A prepared use ends the right of the host to fill its memory without a record."""
        before = len(self.launches)
        yield from super().prepare()
        for launch in self.launches[before:]:
            for track in launch.tracks:
                track.foreign_uses += track.block.memory == "host" and track.block.stream is None

    def actions(self) -> list[tuple[Action, int]]:
        return [*super().actions(), (self.allocate_host, 12), (self.host_fill, 5), (self.host_access, 14),
                (self.finish_host, 12)]

    def end(self) -> None:
        while self.host_accesses:
            self.run_alone(self._finish_host(self.host_accesses[0]))
        super().end()
