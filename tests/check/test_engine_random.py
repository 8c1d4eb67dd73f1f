"""Random traces: the engine against an oracle that keeps every access and knows nothing of vector clocks.

The engine forgets what a later access stands for, so it may name fewer pairs; but it reports an access exactly if the
oracle does, as certainly, and no pair that the oracle does not know.
"""
from __future__ import annotations

import random
import re
from dataclasses import dataclass

import pytest
from engine_traces import compiler, run

pytestmark = pytest.mark.skipif(compiler() is None, reason="no C++ compiler here")
BYTES, STREAMS, EVENTS = 1024, "ABCD", "efg"
FINDING = re.compile(r"(?P<how>certain|possible) \S+ k@(?P<first>\d+)/\S+ k@(?P<second>\d+)/\S+ ")


@dataclass
class Access:
    number: int
    begin: int
    end: int
    anchor: int | None
    role: str

    def writes(self) -> bool:
        return self.role in ("write", "readwrite")

    def certain_bytes(self) -> tuple[int, int]:
        return (self.begin, self.end) if self.anchor is None else (self.anchor, self.anchor + 1)


def judge(a: Access, b: Access) -> str | None:
    """Two accesses that nothing orders."""
    if a.begin >= b.end or b.begin >= a.end:
        return None
    if a.writes() or b.writes():
        (first, last), (begin, end) = a.certain_bytes(), b.certain_bytes()
        return "certain" if first < end and begin < last else "possible"
    return "possible" if "unknown" in (a.role, b.role) else None


class Streams:
    """The calls that order streams, and the operations that come before the next one of each."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.lines = [*(f"stream {s}" for s in STREAMS), *(f"event {e}" for e in EVENTS)]
        self.before = {s: set[int]() for s in STREAMS}
        self.host, self.events = set[int](), {e: set[int]() for e in EVENTS}

    def order(self) -> None:
        pick, s, e = self.random.random(), self.random.choice(STREAMS), self.random.choice(EVENTS)
        if pick < 0.45:
            self.lines.append(f"record {e} {s}")
            self.events[e] = self.before[s] | self.host
        elif pick < 0.9:
            self.lines.append(f"wait {s} {e}")
            self.before[s] |= self.events[e]
        elif pick < 0.95:
            self.lines.append(f"sync {e}")
            self.host |= self.events[e]
        else:
            self.lines.append(f"sync {s}")
            self.host |= self.before[s]

    def operation(self, s: str, number: int) -> set[int]:
        """The next operation of the stream, and what comes before it."""
        self.before[s] |= self.host
        earlier = set(self.before[s])
        self.before[s].add(number)
        return earlier


class Program(Streams):
    """A trace of accesses to one block, and what the oracle finds in it.  A dense one is mostly of one stream, which
    touches many small places: the lists are split and become one again."""

    def __init__(self, seed: int, dense: bool) -> None:
        super().__init__(seed)
        self.lines.append(f"alloc p {BYTES} host")
        self.fine = 2 if dense else self.random.choice([2, 8, 64])      # bytes of the smallest copies
        self.accesses: list[Access] = []
        self.found: dict[tuple[int, int], str] = {}             # by the two numbers
        for _ in range(500 if dense else self.random.choice([30, 120, 240])):
            if self.random.random() < (0.9 if dense else 0.4):
                self.access("A" if dense and self.random.random() < 0.95 else self.random.choice(STREAMS), dense)
            else:
                self.order()

    def access(self, s: str, dense: bool) -> None:
        number = len(self.accesses) + 1
        role = self.random.choice(["read", "read", "write", "readwrite", "unknown"])
        if self.random.random() < (0.01 if dense else 0.3):
            new = Access(number, 0, BYTES, self.random.randrange(4) * 256, role)
            self.lines.append(f"run {s} k p+{new.anchor}:{role} @{number}")
        else:
            units = BYTES // self.fine
            begin = self.random.randrange(units)
            end = min(begin + self.random.choice([1, 4, 4 if dense and self.random.random() < 0.9 else units]), units)
            new = Access(number, begin * self.fine, end * self.fine, None, role)
            self.lines.append(f"run {s} k p[{new.begin}:{new.end}]:{role} @{number}")
        earlier = self.operation(s, number)
        for old in self.accesses:
            if old.number not in earlier and (how := judge(old, new)):
                self.found[old.number, number] = how
        self.accesses.append(new)


@dataclass
class Piece:
    name: str
    begin: int
    end: int
    accesses: list[Access]


class Pool(Streams):
    """A pool that cuts pieces out of one block, with the oracle: for each byte the free of its last owner."""

    UNIT = 64

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.lines.append(f"alloc c {BYTES} host")
        self.freed = [0] * (BYTES // self.UNIT)                 # the number of the free; 0: never
        self.pieces: list[Piece] = []
        self.count = 0
        self.found: set[int] = set()                            # operations that contradict an earlier one
        for _ in range(200):
            pick, s = self.random.random(), self.random.choice(STREAMS)
            if pick < 0.2:
                self.cut(s)
            elif pick < 0.4 and self.pieces:
                self.use(s, self.random.choice(self.pieces))
            elif pick < 0.55 and self.pieces:
                self.free(s, self.pieces.pop(self.random.randrange(len(self.pieces))))
            else:
                self.order()

    def next(self, s: str) -> tuple[int, set[int]]:
        self.count += 1
        return self.count, self.operation(s, self.count)

    def cut(self, s: str) -> None:
        units = BYTES // self.UNIT
        begin = self.random.randrange(units)
        end = min(begin + self.random.choice([1, 2, 5]), units)
        if any(begin < piece.end and piece.begin < end for piece in self.pieces):
            return
        number, earlier = self.next(s)
        self.lines.append(f"piece x{number} {(end - begin) * self.UNIT} {s} at c+{begin * self.UNIT} @{number}")
        if any(free and free not in earlier for free in self.freed[begin:end]):
            self.found.add(number)
        self.pieces.append(Piece(f"x{number}", begin, end, [Access(number, 0, BYTES, None, "write")]))

    def use(self, s: str, piece: Piece) -> None:
        number, earlier = self.next(s)
        size = (piece.end - piece.begin) * self.UNIT
        begin = self.random.randrange(size)
        new = Access(number, begin, self.random.randrange(begin, size) + 1, None, self.random.choice(["read", "write"]))
        self.lines.append(f"run {s} k {piece.name}[{new.begin}:{new.end}]:{new.role} @{number}")
        if any(old.number not in earlier and judge(old, new) for old in piece.accesses):
            self.found.add(number)
        piece.accesses.append(new)

    def free(self, s: str, piece: Piece) -> None:
        number, earlier = self.next(s)
        self.lines.append(f"unpiece {piece.name} {s} @{number}")
        if any(old.number not in earlier for old in piece.accesses):
            self.found.add(number)
        self.freed[piece.begin:piece.end] = [number] * (piece.end - piece.begin)


def by_second(found: dict[tuple[int, int], str]) -> dict[int, str]:
    """For each access the most certain of its findings."""
    best: dict[int, str] = {}
    for (_, second), how in found.items():
        best[second] = min(best.get(second, "possible"), how)   # certain comes before possible
    return best


@pytest.mark.parametrize("dense", [False, True])
def test_the_engine_agrees_with_an_oracle(replay, dense):
    programs = {f"{seed}": Program(seed, dense) for seed in range(100 if dense else 300)}
    found = run(replay, {name: program.lines for name, program in programs.items()})
    certain = 0
    for name, program in programs.items():
        seen = {}
        for line in found[name]:
            match = FINDING.match(line)
            assert match, line
            seen[int(match["first"]), int(match["second"])] = match["how"]
        for pair, how in seen.items():
            assert program.found.get(pair) == how, (name, pair)
        assert by_second(seen) == by_second(program.found), name
        certain += "certain" in seen.values()
    assert certain > 80


def test_pieces_of_a_pool_agree_with_an_oracle(replay):
    pools = {f"{seed}": Pool(seed) for seed in range(300)}
    found = run(replay, {name: pool.lines for name, pool in pools.items()})
    raced = 0
    for name, pool in pools.items():
        seconds = {int(re.findall(r"@(\d+)/", line)[1]) for line in found[name]}
        assert seconds == pool.found, name
        raced += bool(pool.found)
    assert raced > 250


def bytes_of(begin: int, count: int, pitch: int, width: int) -> set[int]:
    return {begin + row * pitch + at for row in range(count) for at in range(width)}


def test_rows_meet_where_they_have_a_byte_in_common(replay):
    draws = random.Random(5)
    traces, expected = {}, {}
    for number in range(3000):
        pair = []
        for _ in range(2):
            pitch = draws.choice((6, 7, 8, 12, 24))
            pair.append((draws.randrange(40), draws.randrange(1, 6), pitch, draws.randrange(1, pitch)))
        texts = [f"p[{begin}:{begin + (count - 1) * pitch + width}/{pitch}:{width}]:write"
                 for begin, count, pitch, width in pair]
        if draws.random() < 0.2:
            texts[0] = texts[0].replace(texts[0][texts[0].index("/"):texts[0].index("]")], "")
            begin, count, pitch, width = pair[0]
            pair[0] = (begin, 1, 1, (count - 1) * pitch + width)
        name = f"rows {number}"
        traces[name] = ["stream A", "stream B", "alloc p 512 host", f"run A copy {texts[0]} @1",
                        f"run B copy {texts[1]} @2"]
        expected[name] = bool(bytes_of(*pair[0]) & bytes_of(*pair[1]))
    found = run(replay, traces)
    assert {name: bool(lines) for name, lines in found.items()} == expected
    assert all(line.startswith("certain") for lines in found.values() for line in lines)
    assert 500 < sum(expected.values()) < 2500
