"""Histories as bytes: what a ring had, what its events refer to, and the file of both."""
from __future__ import annotations

import json
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from xlogmem.check.frames import Frame
from xlogmem.history.events import ACCESSES, BEGINNINGS, KINDS, NEEDS, Event

__all__ = ["History", "HistoryError", "read"]

MAGIC = b"XLOGHIST"
VERSION = 1
START = struct.Struct("<8sII")                          # the magic, the version, bytes of JSON
EVENT = struct.Struct("<IIQBBHIIIQQQII")                # xlogmem_event of ring.hpp
NONE = 0xFFFFFFFF
TICKS_OF_A_STEP = 64                                    # as in _history.pxd
LARGEST_FACTS = 1 << 30
WANTED = ("none", "alloc", "all")                       # stacks, in the order of `Stacks` in _history.pxd
NEEDING = ("use needs", "free needs")


class HistoryError(ValueError):
    """A file is not a history, or a damaged one."""


@dataclass
class History:
    """Events as they were recorded, and the facts that they refer to.  Iterating gives each `Event`, oldest first."""

    facts: dict[str, Any]
    packed: bytes = field(repr=False)

    @property
    def dropped(self) -> int:
        """How many events there was no room for: the oldest."""
        return int(self.facts["count"]) - len(self)

    def __len__(self) -> int:
        return len(self.packed) // EVENT.size

    def __iter__(self) -> Iterator[Event]:
        for number, fields in enumerate(EVENT.iter_unpack(self.packed), self.dropped):
            yield self._event(number, fields)

    def _event(self, number: int, fields: tuple[int, ...]) -> Event:
        _, thread, ticks, code, access, runtime, tag, stream, other = fields[:9]
        generation, address, nbytes, position, stack = fields[9:]
        kind = KINDS[code] if code < len(KINDS) else f"kind {code}"         # of a later version
        used, waited = kind == "use", kind == "wait"
        return Event(number, self._time(ticks), kind, thread, runtime & 15, runtime, _or_none(stream),
                     None if used else _or_none(other), generation, address, 0 if waited else nbytes,
                     self.facts["tags"][tag - 1] if tag else None, _access(kind, access), position,
                     round(other * TICKS_OF_A_STEP * self._rate) if used else 0, self._stack(kind, stack),
                     nbytes - 1 if waited and nbytes else None)

    def _stack(self, kind: str, number: int) -> tuple[Frame, ...]:
        if self.facts["wanted"] == "alloc" and kind not in (*BEGINNINGS, "out of memory"):
            return ()
        return self._stacks.get(number, ())

    @cached_property
    def _stacks(self) -> dict[int, tuple[Frame, ...]]:
        return {int(number): tuple(Frame(*frame) for frame in frames)
                for number, frames in self.facts["stacks"].items()}

    @cached_property
    def _rate(self) -> float:
        """Nanoseconds of a tick."""
        (first, began, _), (last, ended, _) = self.facts["clock"]
        return (ended - began) / (last - first) if last > first else 1.0

    def _time(self, ticks: int) -> int:
        first, _, epoch = self.facts["clock"][0]
        return int(epoch + round((ticks - first) * self._rate))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the file."""
        text = json.dumps(self.facts).encode()
        with open(path, "wb") as file:
            file.write(START.pack(MAGIC, VERSION, len(text)))
            file.write(text)
            file.write(self.packed)


def stacks_in(packed: bytes) -> set[int]:
    """The numbers of all stacks that events refer to."""
    return {fields[-1] for fields in EVENT.iter_unpack(packed)} - {0}


def _or_none(stream: int) -> int | None:
    return None if stream == NONE else stream


def _access(kind: str, access: int) -> str | None:
    if kind in ("use", "record use"):
        return ACCESSES[access]
    return NEEDS[access] if kind in NEEDING else None


def read(path: str | os.PathLike[str]) -> History:
    """The history in a file.

    Parameters
    ----------
    path : str or path
        What `record_history` wrote.

    Returns
    -------
    History
        An iterable of `Event`, with `len()` and `dropped`.

    Raises
    ------
    HistoryError
        It is not a history, one of a later version, damaged, or it was cut off.
    OSError
        It cannot be read.
    """
    with open(path, "rb") as file:
        start = file.read(START.size)
        if len(start) < START.size or not start.startswith(MAGIC):
            raise HistoryError(f"{os.fspath(path)} is not a history of xlogmem, or its recording was not stopped")
        _, version, size = START.unpack(start)
        if version != VERSION:
            raise HistoryError(f"{os.fspath(path)} has version {version} of the format, and this is xlogmem for "
                               f"version {VERSION}: read it with the xlogmem that wrote it")
        try:
            facts = json.loads(file.read(min(size, LARGEST_FACTS)))
        except ValueError:
            facts = None
        packed = file.read()
    if not _are_facts(facts) or len(packed) != facts["kept"] or not _have_meanings(packed, len(facts["tags"])):
        raise HistoryError(f"{os.fspath(path)} is damaged, or was cut off")
    return History(facts, packed)


def _are_facts(facts: Any) -> bool:
    """Whether all is there that events refer to, as it was written."""
    try:
        return (facts["wanted"] in WANTED and facts["kept"] % EVENT.size == 0
                and facts["count"] >= facts["kept"] // EVENT.size and _are(str, facts["tags"])
                and [len(reading) for reading in facts["clock"] if _are(int, reading)] == [3, 3]
                and all(number.isdecimal() and all(map(_is_frame, frames))
                        for number, frames in facts["stacks"].items()))
    except (KeyError, TypeError, AttributeError):
        return False


def _are(kind: type, values: Any) -> bool:
    return isinstance(values, list) and all(isinstance(value, kind) for value in values)


def _is_frame(frame: Any) -> bool:
    return [type(part) for part in frame] == [str, int, str]


def _have_meanings(packed: bytes, tags: int) -> bool:
    """Whether the tags and accesses of all events have names."""
    largest = max(memoryview(packed).cast("I")[5::EVENT.size // 4].tolist(), default=0)
    found = set(zip(packed[16::EVENT.size], packed[17::EVENT.size], strict=True))
    names = {KINDS.index(kind): NEEDS for kind in NEEDING}
    return largest <= tags and all(access < len(names.get(kind, ACCESSES)) for kind, access in found)
