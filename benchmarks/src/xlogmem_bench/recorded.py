"""Logs that programs wrote: those of RMM's `LoggingResourceAdaptor`, and both kinds of xlogmem's, compressed or not."""
from __future__ import annotations

import csv
import gzip
import itertools
import json
import operator
import os
import zlib
from collections.abc import Iterator
from typing import IO, Any, NamedTuple

from xlogmem_bench.logs import Event

__all__ = ["Call", "LogError", "calls_of", "recorded"]

COLUMNS = ("Action", "Pointer", "Size", "Stream")       # of RMM's, which has Thread and Time too
ACTIONS = ("allocate", "allocate failure", "free", "free failure")
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


def recorded(path: str) -> Iterator[Event]:
    """The events of a log.

    Frees of what was allocated before it began are left out.  An allocation at an address that is in use shows that the
    free before it was not logged: it is put in.

    Raises
    ------
    LogError
        The file is not a log, or a row of it is damaged.
    OSError
        The file cannot be read.
    """
    alive: dict[int, int] = {}
    sizes: dict[int, int] = {}
    used = 0
    numbers: Iterator[int] = itertools.count()
    streams: dict[Any, int] = {}
    for action, ptr, nbytes, key in calls_of(path):
        if action == "allocate failure":
            continue
        stream = streams.setdefault(key, len(streams))
        if action == "free":
            if ptr in alive:
                used -= sizes.pop(ptr)
                yield Event(alive.pop(ptr), 0, stream)
        elif nbytes:                                    # allocated, or the free before was not made
            if ptr in alive:
                yield Event(alive[ptr], 0, stream)
            used += nbytes - sizes.get(ptr, 0)
            if used > MOST_IN_USE:
                raise LogError(f"{os.fspath(path)}: with {nbytes} bytes at {ptr:#x} there are {used} in use, more than "
                               "any device has")
            alive[ptr], sizes[ptr] = next(numbers), nbytes
            yield Event(alive[ptr], nbytes, stream)


def calls_of(path: str) -> Iterator[Call]:
    """The rows of a log; the errors of `recorded`."""
    name, line = os.fspath(path), 0
    try:
        with (gzip.open if name.endswith(".gz") else open)(name, "rt", encoding="utf-8", newline="") as file:
            for place, call in rows_of(file):
                line = place
                yield call
    except (UnicodeDecodeError, gzip.BadGzipFile, zlib.error, EOFError, csv.Error) as error:
        raise LogError(f"{name}:{line + 1}: this is not the text of a log: {error}") from error
    except LogError as error:
        raise LogError(f"{name}:{error}") from error.__cause__


def rows_of(file: IO[str]) -> Iterator[tuple[int, Call]]:
    """The rows with their lines, by the kind that the first line shows."""
    first = file.readline()
    if not first.strip():
        raise LogError("1: the file has no first line: it is not a log of allocations")
    if first.lstrip().startswith("{"):
        return json_rows(itertools.chain([first], file))
    return rmm_rows(first, file)


# ---------------------------------------------------------------------------------------------- RMM's
def rmm_rows(header: str, file: IO[str]) -> Iterator[tuple[int, Call]]:
    names = [name.strip() for name in next(csv.reader([header]))]
    missing = [name for name in COLUMNS if name not in names]
    if missing:
        raise LogError(f"1: there is no column {missing[0]}: the first line of RMM's logs is Thread,Time,Action,"
                       "Pointer,Size,Stream, and xlogmem's logs are like that or have a JSON object in each line")
    fields_of = operator.itemgetter(*(names.index(name) for name in COLUMNS))
    thread = names.index("Thread") if "Thread" in names else None
    reader = csv.reader(file)
    for row in reader:
        if not row:
            continue
        line = reader.line_num + 1
        if len(row) != len(names):
            raise LogError(f"{line}: {len(row)} fields in place of {len(names)}")
        action, ptr, nbytes, stream = fields_of(row)
        yield line, call_of_text(line, action.strip(), ptr, nbytes, stream, "" if thread is None else row[thread])


def call_of_text(line: int, action: str, ptr: str, nbytes: str, stream: str, thread: str) -> Call:
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
def json_rows(lines: Iterator[str]) -> Iterator[tuple[int, Call]]:
    for line, text in enumerate(lines, 1):
        if not text.strip():
            continue
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
