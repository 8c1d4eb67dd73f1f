"""Findings as records, with their places in the program."""
from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from typing import Any

from xlogmem.check import native, sites
from xlogmem.check.frames import Frame, place_in

__all__ = ["Access", "Declaration", "Finding", "Stream", "Wait", "by_places", "joined", "merged", "resolved"]


@dataclass(frozen=True)
class Stream:
    """The stream on which an operation is queued, or the host.

    `number` is the driver's, 0 for the host; `kind` is host, made, legacy, per-thread or branch (of a graph's nodes).
    `made` is the place where the program made the stream; `library` is the file name of a library that has made the
    stream for itself.
    `turn` is "earlier" or "later" in a finding whose two streams were made at one place.
    """

    number: int
    kind: str
    made: tuple[Frame, ...] = ()
    library: str = ""
    turn: str = ""

    @property
    def name(self) -> str:
        if self.kind == "made":
            return f"stream {self.number}"
        if self.kind == "branch":
            return f"branch {self.number} of the graph"
        return {"host": "the host", "legacy": "the default stream"}.get(
            self.kind, f"a thread's default stream ({self.number})")

    def __str__(self) -> str:
        if self.library:
            return f"{self.name} ({self.library}'s own)"
        place = place_in(self.made) if self.kind == "made" else None
        return f"{self.name} (made {f'{self.turn} ' if self.turn else ''}at {place})" if place else self.name


@dataclass(frozen=True)
class Declaration:
    """A `use` around an operation that names another stream than that of the operation."""

    stream: Stream
    stack: tuple[Frame, ...] = ()


@dataclass(frozen=True)
class Access:
    """One of the two operations of a finding.

    `role` is the kind of access: read, write, use (a kernel of which the kind is not known), alloc, free.  `stack` has
    the innermost frames, the innermost first; for work of a graph those of the launch, and `captured` those of the call
    that was captured.  `known` is how xlogmem knows of it: declared by a `use`; new, on the own stream of memory that
    no other stream had used; lacking or written, in a `use` that does not name the memory, or names it as read: `use`
    has that one's frames; else empty.  `elsewhere` is a `use` that was to declare it, and names another stream.
    """

    name: str
    role: str
    stream: Stream
    stack: tuple[Frame, ...] = ()
    captured: tuple[Frame, ...] = ()
    known: str = ""
    elsewhere: Declaration | None = None
    use: tuple[Frame, ...] = ()

    @property
    def is_own(self) -> bool:
        """True for an access of the program's own code to host memory: cpp/host."""
        return self.stream.kind == "host" and self.name.startswith("host ")

    @property
    def place(self) -> Frame | None:
        """The line of the call, or of the launch of its graph."""
        return place_in(self.stack)

    @property
    def captured_place(self) -> Frame | None:
        return place_in(self.captured)


@dataclass(frozen=True)
class Wait:
    """A wait of the second operation's stream that does not order the two.

    `why` is "never recorded", "recorded before" (the first operation, on its stream) or "recorded elsewhere": on
    `stream`.  `stack` has the frames of the wait, and `recorded` those of the record.
    """

    why: str
    stream: Stream
    stack: tuple[Frame, ...] = ()
    recorded: tuple[Frame, ...] = ()


@dataclass(frozen=True)
class Finding:
    """Two operations that nothing orders, or that are in the wrong order.

    `kind` is race, use-after-free, stale-graph, dead-stream or dead-event; `pair` the two roles, as in write/read.
    `of_driver`: the pair is wrong on the driver's pool alone, which the check has put in the place of a library's.
    `begin` and `end` bound the bytes that both may touch, `block_begin` and `block_end` the block, `tag` is its name;
    `tracked`: it is xlogmem's.
    `wait` is a wait that does not order the two, if there is one.  `count` is how often these two places met in memory
    that was allocated in that place.
    """

    kind: str
    pair: str
    certain: bool
    first: Access
    second: Access
    begin: int
    end: int
    block_begin: int
    block_end: int
    generation: int
    tag: str = ""
    tracked: bool = False
    of_driver: bool = False
    allocated: tuple[Frame, ...] = ()
    freed: tuple[Frame, ...] = ()
    wait: Wait | None = None
    count: int = 1
    processes: list[int] = field(default_factory=list, compare=False)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def wait_place(self) -> Frame | None:
        return place_in(self.wait.stack) if self.wait else None

    @property
    def places(self) -> tuple[object, ...]:
        """Key of a finding: findings of several processes are one if their keys are equal."""
        return (self.kind, self.pair, self.certain, self.first.name, self.second.name, place_in(self.allocated),
                *self.lines)

    @property
    def lines(self) -> tuple[Frame | None, ...]:
        """The two places in the program, each with the one where it was captured for a graph."""
        return (self.first.place, self.first.captured_place, self.second.place, self.second.captured_place)


def stack_of(number: int) -> tuple[Frame, ...]:
    """Return the frames of a place, in the process that has them."""
    return native_stack(number) if sites.is_native(number) else tuple(sites.frames_at(number))


@cache
def native_stack(number: int) -> tuple[Frame, ...]:
    """Return the frames of a place outside of Python; each search for their lines is a process of its own."""
    stack = json.loads(sites.json_of(number))
    native.resolve([stack])
    return native.frames_of(stack)


def resolved(record: dict[str, Any], stack_of: Callable[[int], tuple[Frame, ...]] = stack_of,
             omissions: Iterable[dict[str, Any]] = ()) -> Finding:
    """Return a record of the engine as a finding with frames instead of numbers; with records of omissions, each access
    has the `use` that names another stream for it."""
    def stream_of(record: dict[str, Any], library: str = "") -> Stream:
        return Stream(record["number"], record["kind"], stack_of(record["site"]), library)

    def access_of(record: dict[str, Any]) -> Access:
        return Access(record["name"], record["role"], stream_of(record["stream"], record["library"]),
                      stack_of(record["site"]), stack_of(record["captured"]), record["known"],
                      named_elsewhere(record), stack_of(record["window"]))

    def named_elsewhere(access: dict[str, Any]) -> Declaration | None:
        operation = (access["site"], access["name"], access["stream"]["number"])
        found = [one for one in omissions if one["named"] and access["site"]
                 and (one["site"], one["name"], one["stream"]) == operation]
        return Declaration(stream_of(found[0]["named"]), stack_of(found[0]["declared"])) if found else None

    block, wait = record["block"], record["wait"]
    return Finding(
        record["kind"], record["pair"], record["certain"],
        *in_turn(access_of(record["first"]), access_of(record["second"])),
        record["begin"], record["end"], block["begin"], block["end"], block["generation"], record["tag"],
        record["tracked"], record["of_driver"],
        stack_of(block["allocated"]), stack_of(block["freed"]),
        None if wait is None else Wait(wait["why"], stream_of(wait["stream"]), stack_of(wait["site"]),
                                       stack_of(wait["recorded"])),
        record["count"])


def in_turn(first: Access, second: Access) -> tuple[Access, Access]:
    """Distinguish two streams that were made at one place, by their numbers, which have the order of the making."""
    one, other = first.stream, second.stream
    place = place_in(one.made)
    if place is None or one.number == other.number or place != place_in(other.made):
        return first, second
    turns = ("earlier", "later") if one.number < other.number else ("later", "earlier")
    return tuple(replace(access, stream=replace(access.stream, turn=turn))  # type: ignore[return-value]
                 for access, turn in zip((first, second), turns, strict=True))


def from_json(record: dict[str, Any]) -> Finding:
    """Inverse of `Finding.as_json`; also for a finding of the file of ``--json``, which has a text and a repair."""
    def stack(frames: list[dict[str, Any]]) -> tuple[Frame, ...]:
        return tuple(Frame(**frame) for frame in frames)

    def stream(one: dict[str, Any]) -> Stream:
        return Stream(one["number"], one["kind"], stack(one["made"]), one["library"], one["turn"])

    def declaration(one: dict[str, Any] | None) -> Declaration | None:
        return None if one is None else Declaration(stream(one["stream"]), stack(one["stack"]))

    def access(one: dict[str, Any]) -> Access:
        return Access(one["name"], one["role"], stream(one["stream"]), stack(one["stack"]), stack(one["captured"]),
                      one["known"], declaration(one["elsewhere"]), stack(one["use"]))

    def wait(one: dict[str, Any] | None) -> Wait | None:
        return None if one is None else Wait(one["why"], stream(one["stream"]), stack(one["stack"]),
                                             stack(one["recorded"]))

    made = {name: value for name, value in record.items() if name not in ("text", "repair", "entry")}
    return Finding(**{**made, "first": access(record["first"]), "second": access(record["second"]),
                      "allocated": stack(record["allocated"]), "freed": stack(record["freed"]),
                      "wait": wait(record["wait"])})


def merged(documents: list[dict[str, Any]]) -> list[Finding]:
    """Merge the findings of all processes: those of the same places become one, and certain findings come first."""
    return joined(replace(from_json(record), processes=[document["process"]])
                  for document in documents for record in document["findings"])


def joined(findings: Iterable[Finding]) -> list[Finding]:
    """Those of the same places become one, and certain findings come first."""
    found: dict[tuple[object, ...], Finding] = {}
    for one in findings:
        known = found.get(one.places)
        found[one.places] = one if known is None else replace(
            known, count=known.count + one.count, processes=list(dict.fromkeys([*known.processes, *one.processes])))
    return sorted(found.values(), key=lambda one: not one.certain)


def by_places(findings: Iterable[Finding]) -> list[list[Finding]]:
    """Findings at the same two places of the program together, the certain ones first.  Where one is not known, each is
    alone."""
    found: dict[object, list[Finding]] = {}
    for one in sorted(findings, key=lambda one: not one.certain):
        known = one.first.place is not None and one.second.place is not None
        found.setdefault(one.lines if known else id(one), []).append(one)
    return list(found.values())
