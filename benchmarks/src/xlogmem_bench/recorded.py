"""Logs that programs wrote: those of RMM's `LoggingResourceAdaptor`, both kinds of xlogmem's, compressed or not, and
PyTorch's memory snapshots.

Logs of RMM are read as people have them: cut off in the last row, as a process that was killed leaves them; without
their first line and between other lines, as from the standard error of Spark; with `deallocate` for `free`, as in RMM's
guide; with the columns of RMM 0.x.  What was left out or guessed is a note.
"""
from __future__ import annotations

import csv
import gzip
import io
import itertools
import json
import operator
import os
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import IO, Any, NamedTuple

from xlogmem._base.units import counted
from xlogmem_bench.logs import Event
from xlogmem_bench.torch_snapshots import SnapshotError, is_snapshot, trace_of

__all__ = ["Call", "FailedRow", "LogError", "Reading", "calls_of", "recorded"]

# The columns of RMM's logs, which have Thread and Time too, and their names in RMM 0.x.
COLUMNS = {"Action": "Event Type", "Pointer": "Address", "Size": "Size (bytes)", "Stream": "Stream"}
HEADER = ("Thread", "Time", "Action", "Pointer", "Size", "Stream")
ACTIONS = ("allocate", "allocate failure", "free", "free failure")
OTHER_NAMES = {"deallocate": "free", "deallocate failure": "free failure", "Alloc": "allocate", "Realloc": "allocate",
               "Free": "free"}
LEGACY, PER_THREAD = 1, 2                               # handles of default streams; 0 is the legacy one too
MOST_IN_USE = 1 << 50                                   # bytes; no device has as many, and sums of them are numbers


class LogError(ValueError):
    """A file is not a log; the message begins with the file and the line."""


class Call(NamedTuple):
    """A row: one call of a resource."""

    action: str
    ptr: int
    nbytes: int
    stream: Any                 # equal for calls on the same stream


class FailedRow(NamedTuple):
    """An allocation that failed when the log was written."""

    line: int
    nbytes: int
    in_use: int                 # bytes, at that time


@dataclass
class Reading:
    """What reading a log has shown beside its events."""

    notes: list[str] = field(default_factory=list)      # what was left out or guessed
    failed: list[FailedRow] = field(default_factory=list)
    failed_numbers: set[int] = field(default_factory=set)   # of their events
    line: int = 0
    device: int | None = None                           # of a snapshot; None: that with the most calls


def recorded(path: str, reading: Reading | None = None, failed_too: bool = False) -> Iterator[Event]:
    """The events of a log.

    Frees of what was allocated before it began are left out.  An allocation at an address that is in use shows that the
    free before it was not logged: it is put in.  `failed_too`: an allocation that failed is one that is freed at once.

    Raises
    ------
    LogError
        The file is not a log, or a row of it is damaged.
    OSError
        The file cannot be read.
    """
    reading = reading if reading is not None else Reading()
    alive: dict[int, int] = {}
    sizes: dict[int, int] = {}
    used = 0
    numbers: Iterator[int] = itertools.count()
    streams: dict[Any, int] = {}
    earlier = 0
    for action, ptr, nbytes, key in calls_of(path, reading):
        if action == "allocate failure":
            reading.failed.append(FailedRow(reading.line, nbytes, used))
            if failed_too and 0 < nbytes <= MOST_IN_USE:
                number, stream = next(numbers), streams.get(key, len(streams))
                reading.failed_numbers.add(number)
                yield Event(number, nbytes, stream)
                yield Event(number, 0, stream)
            continue
        stream = streams.setdefault(key, len(streams))
        if action == "free":
            if ptr in alive:
                used -= sizes.pop(ptr)
                yield Event(alive.pop(ptr), 0, stream)
            elif ptr:
                earlier += 1
        elif nbytes:                                    # allocated, or the free before was not made
            if ptr in alive:
                yield Event(alive[ptr], 0, stream)
            used += nbytes - sizes.get(ptr, 0)
            if used > MOST_IN_USE:
                raise LogError(f"{os.fspath(path)}: with {nbytes} bytes at {ptr:#x} there are {used} in use, more than "
                               "any device has")
            alive[ptr], sizes[ptr] = next(numbers), nbytes
            yield Event(alive[ptr], nbytes, stream)
    if earlier:
        reading.notes.append(f"left out: {counted(earlier, 'free')} of what was allocated before the log began")


def calls_of(path: str, reading: Reading | None = None) -> Iterator[Call]:
    """The rows of a log; the errors of `recorded`."""
    name = os.fspath(path)
    reading = reading if reading is not None else Reading()
    try:
        with (gzip.open if name.endswith(".gz") else open)(name, "rb") as file:     # once: it may be a pipe
            if is_snapshot(file.peek(2)):
                yield from calls_of_snapshot(file.read(), reading)
                return
            text = io.TextIOWrapper(file, encoding="utf-8", newline="")
            for line, call in rows_of(text, reading.notes.append):
                reading.line = line
                yield call
    except EOFError as error:
        if not reading.line:
            raise LogError(f"{name}:1: this is not the text of a log: {error}") from error
        reading.notes.append(f"the compressed file ends early: it was read up to line {reading.line}")
    except (UnicodeDecodeError, gzip.BadGzipFile, zlib.error, csv.Error) as error:
        raise LogError(f"{name}:{reading.line + 1}: this is not the text of a log: {error}") from error
    except LogError as error:
        raise LogError(f"{name}:{error}") from error.__cause__
    except SnapshotError as error:
        raise LogError(f"{name}: {error}") from error.__cause__


def calls_of_snapshot(content: bytes, reading: Reading) -> Iterator[Call]:
    calls, notes = trace_of(content, reading.device)
    reading.notes += notes
    for reading.line, action, ptr, nbytes, stream in calls:
        yield checked(reading.line, action, ptr, nbytes, stream_key(stream, ""))


def rows_of(file: IO[str], note: Callable[[str], object]) -> Iterator[tuple[int, Call]]:
    """The rows with their lines, by the kind that the first line shows."""
    first = file.readline()
    if not first.strip():
        raise LogError("1: the file has no first line: it is not a log of allocations")
    if first.lstrip().startswith("{"):
        return json_rows(itertools.chain([first], file), note)
    names = fields_of_line(first)
    if not missing_in(names):
        return rmm_rows(names, file, note)
    return rows_without_a_header(itertools.chain([first], file), names, note)


# ---------------------------------------------------------------------------------------------- RMM's
def fields_of_line(line: str) -> list[str]:
    return [name.strip() for name in next(csv.reader([line]))]


def missing_in(names: list[str]) -> list[str]:
    return [name for name, older in COLUMNS.items() if name not in names and older not in names]


def rmm_rows(names: list[str], file: Iterable[str], note: Callable[[str], object]) -> Iterator[tuple[int, Call]]:
    newest = [""]

    def lines() -> Iterator[str]:
        for newest[0] in file:
            yield newest[0]

    reader = csv.reader(lines())
    call_of = call_of_fields(names)
    reallocated = 0
    for row in reader:
        if not row:
            continue
        line = reader.line_num + 1
        try:
            call = call_of(line, row)
        except LogError:
            if newest[0].endswith("\n"):                # else the file ends in the middle of this row
                raise
            note(f"line {line}, the last, is cut off, and was left out")
            return
        reallocated += "Realloc" in row
        yield line, call
    if reallocated:
        note(f"counted as allocations: {counted(reallocated, 'row')} of reallocations. What these freed is not in the "
             "log")


def rows_without_a_header(lines: Iterable[str], names: list[str], note: Callable[[str], object]
                          ) -> Iterator[tuple[int, Call]]:
    """Rows of RMM's between other lines, as in the standard error of a program."""
    call_of, others, rows = call_of_fields(list(HEADER)), 0, 0
    for line, text in enumerate(lines, 1):
        try:
            call = call_of(line, fields_of_line(text))
        except (LogError, csv.Error):
            others += bool(text.strip())
            continue
        rows += 1
        yield line, call
    if not rows:
        raise LogError(f"1: there is no column {missing_in(names)[0]}: the first line of RMM's logs is "
                       f"{','.join(HEADER)}, and xlogmem's logs are like that or have a JSON object in each line")
    note(f"there is no line with the names of columns: {counted(rows, 'row was', 'rows were')} read as "
         f"{','.join(HEADER)}")
    if others:
        note(f"left out: {counted(others, 'line that is not a row', 'lines that are not rows')} of a log")


def call_of_fields(names: list[str]) -> Callable[[int, list[str]], Call]:
    fields_of = operator.itemgetter(*(names.index(name if name in names else older)
                                      for name, older in COLUMNS.items()))
    thread = names.index("Thread") if "Thread" in names else None

    def call_of(line: int, row: list[str]) -> Call:
        if len(row) != len(names):
            raise LogError(f"{line}: {len(row)} fields in place of {len(names)}")
        action, ptr, nbytes, stream = fields_of(row)
        return call_of_text(line, action.strip(), ptr, nbytes, stream, "" if thread is None else row[thread])

    return call_of


def call_of_text(line: int, action: str, ptr: str, nbytes: str, stream: str, thread: str) -> Call:
    action = OTHER_NAMES.get(action, action)
    if action not in ACTIONS:
        raise LogError(f"{line}: the action {action[:40]!r} is none of {', '.join(ACTIONS)}")
    try:
        address = 0 if ptr.strip() == "(nil)" else int(ptr, 16)
        size, handle = int(nbytes), int(stream, 16)
    except ValueError as error:
        raise LogError(f"{line}: {error}") from error
    return checked(line, action, address, size, stream_key(handle, thread))


def stream_key(handle: int, thread: Any) -> Any:
    """The default stream of a thread is another one in each."""
    if handle == PER_THREAD:
        return PER_THREAD, thread
    return 0 if handle == LEGACY else handle


def checked(line: int, action: str, ptr: int, nbytes: int, stream: Any) -> Call:
    if not 0 <= nbytes < 1 << 63 or not 0 <= ptr < 1 << 64:
        raise LogError(f"{line}: {nbytes} bytes at {ptr:#x}")
    return Call(action, ptr, nbytes, stream)


# ---------------------------------------------------------------------------------------------- JSON
def json_rows(lines: Iterator[str], note: Callable[[str], object]) -> Iterator[tuple[int, Call]]:
    for line, text in enumerate(lines, 1):
        if not text.strip():
            continue
        if line > 1 and not text.endswith(("\n", "}")):
            note(f"line {line}, the last, is cut off, and was left out")
            return
        try:
            row = json.loads(text)
            action, ptr, nbytes = row["action"], row["ptr"] or 0, row["bytes"]
            handle, thread = row["handle"], row["thread"]
        except KeyError as error:
            raise LogError(f"{line}: there is no field {error}") from error
        except (ValueError, TypeError, RecursionError) as error:
            raise LogError(f"{line}: {error}") from error
        if action not in ACTIONS or not all(type(number) is int for number in (ptr, nbytes, handle, thread)):
            raise LogError(f"{line}: not a call: {str(action)[:40]!r} of {nbytes!r} bytes at {ptr!r} on {handle!r}")
        yield line, checked(line, action, ptr, nbytes, stream_key(handle, thread))
