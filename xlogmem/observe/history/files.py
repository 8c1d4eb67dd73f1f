"""Histories as bytes: the events of a ring, their definitions, and the file of both.

There are two kinds of files, both little-endian.  A recording that has stopped leaves version 1: START, JSON, an EVENT
for each event.  The JSON has `tags` and `stacks` by number (`[file, line, function]`, innermost first), `count` of all
events, `kept` bytes of events, `wanted` stacks and `clock`: twice ticks, monotonic nanoseconds and nanoseconds of the
epoch, at the beginning and at the end.

An EVENT has a number (from 1, modulo 2^32), thread, ticks, kind (in the order of `EventKind` in
observe/_history.pxd), access, runtime, tag (0: none), stream, other (NONE: none), generation, address, bytes, position
(modulo 2^32), stack (0: none).  The access has two bits; the six above them are those of the runtime from its
seventeenth on, and the lowest four of the runtime are the device.  In a `use`, `other` is how long its window was open,
in 64 ticks; in a `wait`, `bytes` is 1 more than the nanoseconds that it held up its stream, 0 if unknown.

A recording that runs, or whose process was killed, has version 2, a ring, the memory that events were written to:
RING_START, a mark of the recording at 32, COUNT, and at HEADER the slots, whose number is a power of two.  Event n,
from 0, is in slot n modulo that number, which has the number 0 while it is written, then n + 1; a slot with another
number has no event.  Behind the slots are lines of JSON, some empty: first `pid`, `wanted` and two readings of the
`clock`; then `{"tag": number, "text": ...}` and `{"stack": number, "frames": [...]}`, each with one more reading.  Tags
have the numbers of the process; times of waits are not there.
"""
from __future__ import annotations

import json
import os
import struct
from array import array
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, BinaryIO

from xlogmem._base.private import Folder
from xlogmem._base.texts import parsed_json
from xlogmem.check.frames import Frame
from xlogmem.observe.history.events import ACCESSES, BEGINNINGS, KINDS, NEEDING, NEEDS, Event

__all__ = ["History", "HistoryError", "read"]

MAGIC = b"XLOGHIST"
VERSION = 1
START = struct.Struct("<8sII")                          # the magic, the version, bytes of JSON
RING_VERSION = 2
RING_START = struct.Struct("<8sIIQQ")                   # the magic, the version, HEADER, slots, how many events to keep
HEADER = 4096                                           # bytes before the slots, and
COUNT = struct.Struct("<64xQ")                          # in them, about how many events there were: as in ring.hpp
EVENT = struct.Struct("<IIQBBHIIIQQQII")                # xlogmem_event of ring.hpp
KIND = 16                                               # where its kind is
NONE = 0xFFFFFFFF
ACCESS_BITS, ACCESS_MASK = 2, 3                         # above them are the highest bits of the runtime
TICKS_OF_A_STEP = 64                                    # as in observe/_history.pxd
LARGEST_FACTS = 1 << 30
WANTED = ("none", "alloc", "all")                       # stacks, in the order of `Stacks` in observe/_history.pxd
MOST_SLOTS = 1 << 30


class HistoryError(ValueError):
    """A file is not a history, or a damaged one."""


def name_of_kind(code: int) -> str:
    return KINDS[code] if code < len(KINDS) else f"kind {code}"            # of a later version


@dataclass
class History:
    """Events as they were recorded, and the facts that they refer to.  Iterating gives each `Event`, oldest first.

    Examples
    --------
    >>> with xlogmem.record_history("run.xlog"):
    ...     xlogmem.get_runtime().allocate(1000).free()
    >>> history = xlogmem.history.read("run.xlog")
    >>> len(history), history.dropped
    (2, 0)
    """

    facts: dict[str, Any]
    packed: bytes = field(repr=False)

    @property
    def dropped(self) -> int:
        """The number of events that there was no room for: the oldest."""
        return int(self.facts["count"]) - len(self)

    def __len__(self) -> int:
        return len(self.packed) // EVENT.size

    def __iter__(self) -> Iterator[Event]:
        return map(self._event, EVENT.iter_unpack(self.packed))

    def number_of(self, kept: int) -> int:
        """The number, from 0, of an event, of which 32 bits are kept."""
        count = int(self.facts["count"])
        return count - 1 - (count - kept) % (1 << 32)

    def counted(self) -> Counter[str]:
        """How many events there are of each kind."""
        return Counter({name_of_kind(code): count for code, count in Counter(self.packed[KIND::EVENT.size]).items()})

    def _event(self, fields: tuple[int, ...]) -> Event:
        kept, thread, ticks, code, access, runtime, tag, stream, other = fields[:9]
        generation, address, nbytes, position, stack = fields[9:]
        runtime |= access >> ACCESS_BITS << 16
        access &= ACCESS_MASK
        kind = name_of_kind(code)
        used, waited = kind == "use", kind == "wait"
        return Event(self.number_of(kept), self._time(ticks), kind, thread, runtime & 15, runtime, _or_none(stream),
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
        """Write the file, in place of any other of this name: a link is not followed."""
        text = json.dumps(self.facts).encode()
        with _replacing(os.fspath(path)) as file:
            file.write(START.pack(MAGIC, VERSION, len(text)))
            file.write(text)
            file.write(self.packed)


@contextmanager
def _replacing(path: str) -> Iterator[BinaryIO]:
    """A new file in the place of the one that has this name; a device or a pipe is written to."""
    if os.path.exists(path) and not os.path.isfile(path):
        with open(path, "wb") as file:
            yield file
        return
    folder, name = os.path.split(path)
    with Folder(folder or ".") as opened, opened.replacing(name, 0o666) as file:
        yield file


def make_ring_file(path: str, max_events: int) -> int:
    """A new file for a ring of so many events, with all its bytes, so that no event finds the disk full.  Returns a
    descriptor, whose writes go to the end."""
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o666)
    try:
        room = 1 << (max_events - 1).bit_length()
        os.write(file, RING_START.pack(MAGIC, RING_VERSION, HEADER, room, max_events))
        os.posix_fallocate(file, 0, HEADER + room * EVENT.size)
    except BaseException:
        os.close(file)
        os.unlink(path)
        raise
    return file


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
        A file of `record_history`; while that is writing, the history so far.  After a process was killed, the history
        until then, and `waited_ns` is None.

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

    Examples
    --------
    >>> with xlogmem.record_history("run.xlog"):
    ...     xlogmem.get_runtime().allocate(1000).free()
    >>> [event.kind for event in xlogmem.history.read("run.xlog")]
    ['allocate', 'free']
    """
    with open(path, "rb") as file:
        start = file.read(START.size)
        if len(start) < START.size or not start.startswith(MAGIC):
            raise HistoryError(f"{os.fspath(path)} is not a history of xlogmem")
        _, version, size = START.unpack(start)
        if version == RING_VERSION:
            return _read_ring(file, os.fspath(path))
        if version != VERSION:
            raise HistoryError(f"{os.fspath(path)} has version {version} of the format, and this is xlogmem for "
                               f"versions {VERSION} and {RING_VERSION}: read it with the xlogmem that wrote it")
        facts: Any = None
        if size <= min(_size_of(file), LARGEST_FACTS):
            with suppress(ValueError):
                facts = parsed_json(file.read(size))
        packed = file.read()
    if not _are_facts(facts) or len(packed) != facts["kept"] or not _have_meanings(packed, len(facts["tags"])):
        raise HistoryError(f"{os.fspath(path)} is damaged, or was cut off")
    return History(facts, packed)


def _size_of(file: BinaryIO) -> int:
    return os.fstat(file.fileno()).st_size


def _read_ring(file: BinaryIO, name: str) -> History:
    """Read the ring that a recording left because it did not stop, or that a running one has by now."""
    file.seek(0)
    header = file.read(HEADER)
    if len(header) == HEADER:
        _, _, begin, room, most = RING_START.unpack_from(header)
        count, = COUNT.unpack_from(header)
        fits = room <= MOST_SLOTS and HEADER + room * EVENT.size <= _size_of(file)
        slots = file.read(room * EVENT.size) if fits else b""
        lines = file.read().splitlines() if fits else []
        file.seek(HEADER)
        if begin == HEADER and room and not room & room - 1 and len(slots) == room * EVENT.size:
            count = _count(slots, count)
            packed = _in_order(slots, file.read(len(slots)), count, min(room, most))
            facts, packed = _with_facts(packed, _facts_of_records(lines) | {"count": count, "kept": len(packed)})
            if _are_facts(facts) and _have_meanings(packed, len(facts["tags"])):
                return History(facts, packed)
    raise HistoryError(f"{name} is damaged, or was cut off")


def _count(slots: bytes, count: int) -> int:
    """How many events there were, of which the header counts some: the number of the newest, which is modulo 2^32."""
    half = 1 << 31
    return max((count + (number - count + half) % (2 * half) - half for number in set(_numbers(slots)) - {0}),
               default=count)


def _numbers(packed: bytes) -> list[int]:
    return memoryview(packed).cast("I")[::EVENT.size // 4].tolist()


def lost(history: History, most: int) -> list[int]:
    """The numbers, from 0, of the newest `most` events that the history does not have."""
    count = int(history.facts["count"])
    kept = {history.number_of(number) for number in _numbers(history.packed)}
    return [number for number in range(max(count - most, 0), count) if number not in kept]


def _in_order(slots: bytes, again: bytes, count: int, most: int) -> bytes:
    """The newest events, oldest first, without those that were not complete.  A slot that changed between two looks was
    being written."""
    room = len(slots) // EVENT.size
    first = max(count - most, 0)
    numbers = _numbers(slots)
    if slots != again:
        numbers = [number if slots[at:at + EVENT.size] == again[at:at + EVENT.size] else 0
                   for number, at in zip(numbers, range(0, len(slots), EVENT.size), strict=True)]
    kept = [number % room * EVENT.size for number in range(first, count)
            if numbers[number % room] == (number + 1) & 0xFFFFFFFF]
    return b"".join([slots[at:at + EVENT.size] for at in kept])


def _facts_of_records(lines: list[bytes]) -> dict[str, Any]:
    """As those of a recording that has stopped, but that tags are by number, and those of all events.  A line that a
    full disk cut off says nothing."""
    facts: dict[str, Any] = {"tags": {}, "stacks": {}}
    latest: list[int] = []
    for line in lines:
        with suppress(ValueError, KeyError, TypeError, AttributeError):
            record = parsed_json(line)
            if "tag" in record:
                facts["tags"][int(record["tag"])] = record["text"] + ""
            elif "stack" in record:
                facts["stacks"][str(record["stack"])] = record["frames"]
            else:
                facts |= {name: record[name] for name in ("xlogmem", "pid", "clock", "wanted")}
            latest = record["clock"] if "wanted" not in record else latest
    with suppress(KeyError, TypeError, IndexError):     # the longer the time, the better is known how long a tick is
        facts["clock"][1] = max(facts["clock"][1], latest)
    return facts


def _with_facts(packed: bytes, facts: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
    """Only what these events refer to, and the events with tags that are numbered from 1."""
    words = array("I", packed)
    used = words[5::EVENT.size // 4]
    numbers = {tag: number for number, tag in enumerate(sorted(set(used) - {0}), 1)}
    words[5::EVENT.size // 4] = array("I", [numbers.get(tag, 0) for tag in used])
    stacks = {number: facts["stacks"][number] for number in map(str, sorted(stacks_in(packed)))
              if number in facts["stacks"]}
    tags = [facts["tags"].get(tag, f"tag {tag}") for tag in numbers]                # its line was cut off
    return facts | {"tags": tags, "stacks": stacks}, words.tobytes()


def _are_facts(facts: Any) -> bool:
    """True if the facts have all that events refer to, as it was written."""
    try:
        return (facts["wanted"] in WANTED and _are(int, [facts["kept"], facts["count"]])
                and facts["kept"] % EVENT.size == 0 and facts["kept"] // EVENT.size <= facts["count"] < 1 << 64
                and _are(str, facts["tags"])
                and [len(reading) for reading in facts["clock"] if _are(int, reading)] == [3, 3]
                and all(abs(number) < 1 << 64 for reading in facts["clock"] for number in reading)
                and all(number.isdecimal() and all(map(_is_frame, frames))
                        for number, frames in facts["stacks"].items()))
    except (KeyError, TypeError, AttributeError):
        return False


def _are(kind: type, values: Any) -> bool:
    return isinstance(values, list) and all(isinstance(value, kind) for value in values)


def _is_frame(frame: Any) -> bool:
    return [type(part) for part in frame] == [str, int, str] and abs(frame[1]) < 1 << 31


def _have_meanings(packed: bytes, tags: int) -> bool:
    """True if the tags and accesses of all events have names."""
    largest = max(memoryview(packed).cast("I")[5::EVENT.size // 4].tolist(), default=0)
    found = set(zip(packed[16::EVENT.size], packed[17::EVENT.size], strict=True))
    names = {KINDS.index(kind): NEEDS for kind in NEEDING}
    return largest <= tags and all(access & ACCESS_MASK < len(names.get(kind, ACCESSES)) for kind, access in found)
