"""Random programs whose launches and host accesses name ranges of blocks.

Each action touches some of the cells of a block, and names them.  A program may fill, without a record, the cells that
no use elsewhere that is filed has named; but on a stream that may be destroyed only before the first prepare of any of
them elsewhere.  The violations are those of programs.py, host_side.py and graph_side.py, for each cell.
"""
from __future__ import annotations

from ordering_model.actions import Action, Configuration, Use
from ordering_model.frontiers import Range
from ordering_model.graph_side import GraphProgram
from ordering_model.host_side import HostOracle, HostProgram
from ordering_model.oracle import Track
from ordering_model.ranges import RangeCore
from ordering_model.rules import RangeRules, Rules
from ordering_model.windows import Uses

CELLS = 48                                      # blocks are larger than in other programs

RANGE_CONFIGURATIONS = {
    "range": Configuration(("driver",)),
    "range-opaque": Configuration(opaque=2),
    "range-pool": Configuration(("pool",), opaque=1),
    "range-unregistering": Configuration(opaque=1, unregister=True),
    "range-threads": Configuration(opaque=1, threads=3),
    "range-graphs": Configuration(opaque=1, threads=2, graphs=True),
    "range-everything": Configuration(("driver", "pool", "adopted"), opaque=1, threads=3, failures=True,
                                      unregister=True, capture=True),
}


class RangeProgram(GraphProgram):
    core: RangeCore

    def make_core(self, rules: Rules) -> None:
        assert isinstance(rules, RangeRules)
        super().make_core(rules)
        self.oracle = HostOracle(self.random, CELLS)
        self.core = RangeCore(self.oracle, rules)

    def block_cells(self) -> int:
        return self.random.randint(1, 6)

    def cells_of(self, track: Track) -> range:
        block = track.block
        if self.random.random() < .2:
            return block.range
        first = self.random.randrange(block.cells)
        return block.range[first:self.random.randint(first + 1, block.cells)]

    def choose_uses(self, tracks: list[Track], accesses: tuple[str, ...]) -> list[Use]:
        return [Use(track, self.random.choice(accesses), self.cells_of(track))
                for track in tracks for _ in range(self.random.choice((1, 1, 1, 2, 3)))]

    def named(self, uses: list[Use]) -> Uses:
        return [(track.block if cells == track.block.range else Range(track.block, cells), access)
                for track, access, cells in uses]

    def actions(self) -> list[tuple[Action, int]]:
        return super().actions() if self.configuration.graphs else HostProgram.actions(self)

    def _check_nothing_left(self) -> None:
        super()._check_nothing_left()
        if self.core.parts or self.core.named:
            self.oracle.report("leak", "a block is still in parts, or a launch is open")
