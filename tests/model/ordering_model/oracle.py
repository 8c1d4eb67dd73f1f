"""The oracle: which operations have touched each cell and block, and what happened in the wrong order."""
from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from ordering_model.driver import Driver, DriverStream, Op
from ordering_model.frontiers import Block
from ordering_model.streams import Stream


@dataclass(eq=False)
class Access:
    """An operation on a block.  It is closed once its launch is filed; unrecorded work is closed at once."""

    op: Op
    writes: bool
    cells: range                # the addresses that it touches
    closed: bool = True
    late: bool = False          # unrecorded, after the block has stopped being fresh

    def conflicts(self, writes: bool, cells: range) -> bool:
        """With another access: one of the two writes, and they have a cell in common."""
        return (self.writes or writes) and self.cells.start < cells.stop and cells.start < self.cells.stop


@dataclass(eq=False)
class Track:
    """What the program and the oracle know about one block."""

    block: Block
    accesses: list[Access] = field(default_factory=list)
    foreign_uses: int = 0       # begun and not cancelled
    used_elsewhere: set[int] = field(default_factory=set)   # by foreign uses that are filed; other cells may be filled
    opaque_users: dict[Stream, set[int]] = field(default_factory=dict)      # and the cells that they have
    handed_back: bool = True    # False once a hand-back has failed: the program has got the error
    windows: int = 0
    freed: bool = False         # the program has freed it

    def note_opaque(self, stream: Stream, cells: range) -> None:
        """From now on an opaque stream may work on these cells without a record."""
        if stream.opaque:
            self.opaque_users.setdefault(stream, set()).update(cells)


class Oracle(Driver):
    """The fake driver, which also checks every birth, release and access."""

    def __init__(self, cells: int = 32) -> None:
        super().__init__(cells)
        self.problems: Counter[str] = Counter()
        self.first_problem = ""
        self.touched: dict[int, list[Op]] = {}          # cell: operations since the last birth or free

    def report(self, kind: str, detail: str) -> None:
        self.problems[kind] += 1
        self.first_problem = self.first_problem or f"{kind}: {detail}"

    @property
    def is_broken(self) -> bool:
        """After these problems a program cannot go on."""
        return bool(self.problems["index"] or self.problems["misuse"])

    def mem_free(self, stream: DriverStream, address: int) -> Op:
        """Bytes that are returned must be ordered after everything that touched them."""
        cells = range(address, address + self._allocations.get(address, 0))
        if not self.failures["free"] and stream.alive:
            for cell in cells:
                for op in self.touched.get(cell, ()):
                    if not self.is_before_later_work(op, stream):
                        self.report("release", f"{op} not before the free of {address} on stream {stream.id}")
        freed = super().mem_free(stream, address)
        for cell in cells:
            self.touched[cell] = [freed]
        return freed

    def born(self, block: Block) -> None:
        """The next owner of bytes must be ordered after all earlier accesses to them."""
        if block.memory == "adopted":
            return
        for cell in block.range:
            for op in self.touched.get(cell, ()):
                if not self.owner_is_after(op, block):
                    self.report("reuse", f"{op} not before block {block.generation}")
        birth = self.birth_of(block)
        for cell in block.range:
            self.touched[cell] = [birth]

    def owner_is_after(self, op: Op, block: Block) -> bool:
        assert block.stream is not None
        return self.is_before_later_work(op, block.stream.handle)

    def birth_of(self, block: Block) -> Op:
        assert block.stream is not None
        return self.launch(block.stream.handle, f"birth of {block.generation}")

    def access(self, track: Track, op: Op, writes: bool, cells: range, closed: bool = True) -> Access:
        access = Access(op, writes, cells, closed)
        track.accesses.append(access)
        for cell in cells:
            self.touched.setdefault(cell, []).append(op)
        return access

    def check_released(self, track: Track) -> None:
        """Memory of another owner must not be released before its uses."""
        home = track.block.home
        for access in track.accesses:
            if home is None and not self.host_has_seen(access.op):
                self.report("release", f"{access.op} not complete when adopted memory was released")
            elif home is not None and not self.is_before_later_work(access.op, home.handle):
                self.report("release", f"{access.op} not before adopted memory was released")
