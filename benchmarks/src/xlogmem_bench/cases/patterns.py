"""Rounds of uses, as data: which streams launch in turn, and which blocks each launch reads and writes."""
from __future__ import annotations

from dataclasses import dataclass

from xlogmem_bench import _loops

__all__ = ["BY_HAND", "FAN_OUT", "HAND_OVER", "PING_PONG", "READ", "READ_WRITE", "WRITE", "Pattern", "same_stream"]

READ, WRITE, READ_WRITE = 1, 2, 3
BY_HAND = "events by hand: no bookkeeping; the author has to know which stream waits for which"
Uses = list[tuple[int, list[tuple[int, int]]]]          # (stream, [(block, READ or WRITE)])


@dataclass(frozen=True)
class Pattern:
    """Rounds of launches, and the same order by hand: events recorded and waited for."""

    uses: Uses
    hand: list[tuple[int, int, int]]
    blocks: int = 1
    stride: int = 0                         # blocks by which each round moves on

    @property
    def most(self) -> int:
        return self.blocks if self.stride else 1 << 30


def same_stream(blocks: int) -> Pattern:
    return Pattern([(0, [(block, READ_WRITE) for block in range(blocks)])], [(_loops.RECORD, 0, 0)], blocks)


HAND_OVER = Pattern([(0, [(0, WRITE)]), (1, [(0, READ)])], [(_loops.RECORD, 0, 0), (_loops.WAIT, 1, 0)], 1024, 1)
PING_PONG = Pattern([(0, [(0, READ_WRITE)]), (1, [(0, READ_WRITE)])],
                    [(_loops.RECORD, 0, 0), (_loops.WAIT, 1, 0), (_loops.RECORD, 1, 1), (_loops.WAIT, 0, 1)])
FAN_OUT = Pattern(
    [(0, [(0, WRITE)]), *((reader, [(0, READ)]) for reader in range(1, 9))],
    [(_loops.RECORD, 0, 0), *((_loops.WAIT, reader, 0) for reader in range(1, 9)),
     *(step for reader in range(1, 9) for step in ((_loops.RECORD, reader, reader), (_loops.WAIT, 0, reader)))])
