"""Random programs whose launches name ranges of blocks.

A launch touches the cells that it names, and is compared with earlier accesses to these cells alone.  The violations
are those of programs.py.
"""
from __future__ import annotations

from dataclasses import dataclass, field

from ordering_model.actions import MOST_WINDOWS, Configuration, Launch
from ordering_model.oracle import Access, Oracle, Track
from ordering_model.programs import Program
from ordering_model.ranges import Range, RangeCore
from ordering_model.rules import READ, READ_WRITE, REFUSED, WRITE, Operation, RangeRules, Rules, UseAfterFree
from ordering_model.streams import Stream

RANGE_CONFIGURATIONS = {
    "range": Configuration(("driver",)),
    "range-opaque": Configuration(opaque=2),
    "range-unregistering": Configuration(("pool", "adopted"), opaque=1, unregister=True),
    "range-threads": Configuration(opaque=1, threads=3),
    "range-everything": Configuration(("driver", "pool", "adopted"), opaque=1, threads=3, failures=True,
                                      unregister=True, capture=True),
}


@dataclass(eq=False)
class RangeAccess(Access):
    cells: range = range(0)


@dataclass(eq=False)
class RangeLaunch(Launch):
    cells: list[range] = field(default_factory=list)        # of each use


def overlap(access: Access, cells: range) -> bool:
    return not isinstance(access, RangeAccess) or bool(set(access.cells) & set(cells))


class RangeProgram(Program):
    def make_core(self, rules: Rules) -> None:
        assert isinstance(rules, RangeRules)
        self.oracle = Oracle()
        self.core = RangeCore(self.oracle, rules)

    def prepare(self) -> Operation[None]:
        stream, tracks = self.any_stream(), self.some_tracks((1, 1, 2, 3))
        if not stream or not tracks or len(self.launches) >= MOST_WINDOWS:
            return
        uses: list[tuple[Track, str]] = []
        names: list[tuple[Range, str]] = []
        for track in tracks:
            for _ in range(self.random.choice((1, 1, 2))):
                uses.append((track, self.random.choice((READ, READ, WRITE, READ_WRITE))))
                first, end = sorted(self.random.sample(range(track.block.cells + 1), 2))
                names.append((Range(track.block, first, end), uses[-1][1]))
        cells = [range(name.block.address + name.first, name.block.address + name.end) for name, _ in names]
        earlier = [[access for access in track.accesses if access.closed and overlap(access, touched)]
                   for (track, _), touched in zip(uses, cells, strict=True)]
        for track in tracks:
            track.windows += 1
            track.foreign_uses += self.is_elsewhere(stream, track)
        try:
            window = yield from self.core.prepare(stream, [
                (name.block if self.random.random() < .1 else name, access)     # type: ignore[misc]
                for name, access in names])
        except (*REFUSED, UseAfterFree):
            self._close(stream, tracks, cancelled=True)
            raise
        self.launches.append(RangeLaunch(window, stream, uses, earlier, cells=cells))

    def _close(self, stream: Stream, tracks: list[Track], cancelled: bool) -> None:
        """A use on an opaque stream gives it some cells, and unrecorded work touches all: it does not follow."""
        for track in {track.block.generation: track for track in tracks}.values():
            track.windows -= 1
            track.foreign_uses -= cancelled and self.is_elsewhere(stream, track)

    def _launch(self, launch: Launch) -> None:
        assert isinstance(launch, RangeLaunch)
        stream = launch.stream
        if launch.accesses or stream.handle.capturing:
            return
        op = self.oracle.launch(stream.handle, "use " + ",".join(
            f"{track.block.generation}{access[0]}" for track, access in launch.uses))
        for (track, access), earlier, cells in zip(launch.uses, launch.earlier, launch.cells, strict=True):
            for other in earlier:
                if (other.writes or access != READ) and not self.oracle.is_before_later_work(other.op, stream.handle):
                    self.oracle.report("conflict", f"{other.op} not before {op} (block {track.block.generation})")
            made = RangeAccess(op, access != READ, closed=False, cells=cells)
            track.accesses.append(made)
            launch.accesses.append(made)
            for cell in cells:
                self.oracle.touched.setdefault(cell, []).append(op)
