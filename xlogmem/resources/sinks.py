"""Sinks for a log of allocations: a file, a callable, or a logger.

A sink is used by the thread of its log alone.  `write` returns how many of the records it did not take (None: all) and
the first error; it may also raise, and took none then.
"""
from __future__ import annotations

import io
import os
import stat
import sys
import threading
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Protocol

from xlogmem._driver import ProcessLock

__all__ = ["HEADER", "AllocationRecord", "Sink", "called_at_once", "check_sink", "opened"]

HEADER = b"Thread,Time,Action,Pointer,Size,Stream\n"    # RMM's
FORMATS = ("rmm", "json")
Outcome = tuple[int | None, BaseException | None]


class AllocationRecord(NamedTuple):
    """One call of a resource, as a log has it.

    ``action`` is ``"allocate"``, ``"allocate failure"``, ``"free"`` or ``"free failure"``; the last follows a
    ``"free"`` that was logged before it was made, and undoes that.  ``stream`` is the number of the stream in its
    runtime (None: there is none), ``handle`` its CUDA handle.  ``ptr`` and ``generation`` are None for an allocation
    that failed; the generation also for the chunks of a pool, which are not blocks.  ``bytes`` are those
    requested.  ``thread`` is the number that the operating system gives to the thread.  ``order`` counts the records of
    the process from 1 and is what to sort by; ``nanoseconds`` are since the epoch, by a clock that may be set.
    ``result`` is ``"Ok"``, or a dict with the ``kind`` of the error, which is the name of its exception, and a
    ``message`` of at most 255 bytes of UTF-8, an ellipsis at its end where it was cut.

    Examples
    --------
    >>> records = []
    >>> log = xlogmem.LoggingResourceAdaptor(xlogmem.AsyncMemoryResource(), records.append)
    >>> runtime = xlogmem.DeviceRuntime(resource=log)
    >>> runtime.allocate(1000, tag="join").free()
    >>> lost = log.flush()
    >>> [(record.action, record.bytes, record.tag) for record in records]
    [('allocate', 1000, 'join'), ('free', 1000, 'join')]
    """

    action: str
    device: int
    stream: int | None
    handle: int
    ptr: int | None
    bytes: int
    tag: str | None
    generation: int | None
    thread: int
    order: int
    nanoseconds: int
    result: str | dict[str, str]


class Sink(Protocol):
    """`format` is what `write` wants: rows of that kind as bytes, or a list of records for None.  `taken` counts those
    of the batch that is being written; `is_ending` says whether the sink will be closed soon (None: it was)."""

    taken: int
    is_ending: Callable[[], bool] | None

    @property
    def format(self) -> str | None: ...

    def write(self, content: Any) -> Outcome: ...
    def close(self) -> None: ...


def opened(sink: Any, format: str | None) -> Sink:
    """The sink for a user's argument; the errors of `LoggingResourceAdaptor`."""
    if format is not None and format not in FORMATS:
        raise ValueError(f"format {format!r} is unknown; choose one of {', '.join(FORMATS)}")
    logging = sys.modules.get("logging")                 # a program that has a logger has imported it
    if logging is not None and isinstance(sink, logging.Logger):
        return Lines(format or "json", lambda line: sink.info("%s", line))
    if isinstance(sink, str | os.PathLike):
        path = os.fspath(sink)
        if not isinstance(path, str):
            raise TypeError(f"the path of a log must be a str, not {type(path).__name__}")
        return PathSink(path, format or ("rmm" if path.lower().endswith(".csv") else "json"))
    if isinstance(sink, io.RawIOBase | io.BufferedIOBase):
        raise TypeError("the file of a log must be open for text, and this one is open for bytes")
    if callable(getattr(sink, "write", None)):
        called_at_once("the method write() of the sink", sink.write)
        return TextSink(sink, format or "json")
    if callable(sink):
        called_at_once("sink", sink)
        return Records(sink) if format is None else Lines(format, sink)
    raise TypeError("sink must be a path, an open text file, a callable or a logging.Logger, not "
                    f"{type(sink).__name__}")


def check_sink(sink: Any) -> None:
    """Raise what `opened` would raise, without making or emptying a file."""
    if not isinstance(sink, str | os.PathLike):
        opened(sink, None)                              # which writes nothing
        return
    path = os.fspath(sink)
    if not isinstance(path, str):
        raise TypeError(f"the path of a log must be a str, not {type(path).__name__}")
    _check_path(path)
    with _lock:
        _refuse_open(path)
    if os.path.isdir(path):
        raise IsADirectoryError(f"the log cannot be a folder: {path}")
    if not os.access(path if os.path.exists(path) else os.path.dirname(os.path.abspath(path)), os.W_OK):
        raise PermissionError(f"the log cannot be written: {path}")


def called_at_once(what: str, function: Any) -> Any:
    """The function, unless a call would only make a coroutine or a generator, which nothing runs."""
    for place in (function, getattr(function, "func", None), type(function).__call__):
        import inspect  # not before it is needed

        if any(kind(place) for kind in (inspect.iscoroutinefunction, inspect.isgeneratorfunction,
                                        inspect.isasyncgenfunction)):
            raise TypeError(f"{what} must be an ordinary function: a call of {function!r} would only make a coroutine "
                            "or a generator, and nothing would run it")
    return function


# ---------------------------------------------------------------------------------------------- files
ENDING_WAIT = 5                             # seconds, for a log that was dropped to be written to its end

_lock = ProcessLock()
_open_files: dict[tuple[int, int], PathSink] = {}       # by device and inode


class PathSink:
    """A file of its own, written without a buffer: a forked child has nothing of it to write again."""

    taken = 0
    is_ending: Callable[[], bool] | None = None

    def __init__(self, path: str, format: str) -> None:
        self.format = format
        self.key: tuple[int, int] | None = None
        self.closed = threading.Event()
        _check_path(path)
        with _lock:
            _refuse_open(path)
            self.file = open(path, "wb", buffering=0, opener=_appending)    # noqa: SIM115 (its thread closes it)
            self.key = _key_of(os.fstat(self.file.fileno()))
            if self.key:
                _open_files[self.key] = self
        try:
            _, error = self.write(HEADER if format == "rmm" else b"")
            if error is not None:
                raise error
        except BaseException:
            self.close()
            raise

    def write(self, content: bytes) -> Outcome:
        begin = os.fstat(self.file.fileno()).st_size if self.key else 0
        left = memoryview(content)
        try:
            while left:
                left = left[self.file.write(left) or 0:]
        except OSError as error:
            whole = content.rfind(b"\n", 0, len(content) - len(left)) + 1
            if self.key:                                # no half a row, so that the rows after it can be read
                self.file.truncate(begin + whole)
            return content.count(b"\n", whole), error
        return 0, None

    def close(self) -> None:
        with _lock:
            if self.key:
                _open_files.pop(self.key, None)
                self.key = None
        self.file.close()
        self.closed.set()


def _appending(path: str, flags: int) -> int:
    """Another program may empty the file meanwhile (logrotate's copytruncate): no row is written far behind its end."""
    return os.open(path, flags | os.O_APPEND, 0o666)


def _check_path(path: str) -> None:
    folder = os.path.dirname(os.path.abspath(path))
    if not os.path.isdir(folder):
        raise FileNotFoundError(f"the folder of the log does not exist: {folder}. Make it first")
    _wait_for_ending(path)


def _refuse_open(path: str) -> None:
    if _open_at(path) is not None:
        raise ValueError(f"{path} is the log of another adaptor: close that first, or choose another file")


def _open_at(path: str) -> PathSink | None:
    """The log that is being written there."""
    key = _key_of(os.stat(path)) if os.path.exists(path) else None
    return _open_files.get(key) if key else None


def _wait_for_ending(path: str) -> None:
    """A log that was dropped is written to its end by its thread, soon."""
    with _lock:
        before = _open_at(path)
    ending = before.is_ending if before is not None else None
    if before is not None and ending is not None and ending():
        before.closed.wait(ENDING_WAIT)


def _key_of(found: os.stat_result) -> tuple[int, int] | None:
    """Identity of a regular file, its device and inode; None for a terminal, a pipe or /dev/null."""
    return (found.st_dev, found.st_ino) if stat.S_ISREG(found.st_mode) else None


class TextSink:
    """A text file of the user, which is flushed after each batch and not closed."""

    taken = 0
    is_ending: Callable[[], bool] | None = None

    def __init__(self, file: Any, format: str) -> None:
        self.file, self.format, self.put = file, format, file.write
        if format == "rmm":
            file.write(HEADER.decode())
            self.flush()

    def write(self, content: bytes) -> Outcome:
        outcome = put_each(self, (row + "\n" for row in rows_of(content)))
        self.flush()
        return outcome

    def flush(self) -> None:
        flush = getattr(self.file, "flush", None)
        if flush is not None:
            flush()

    def close(self) -> None:
        pass


# ---------------------------------------------------------------------------------------------- callables
class Records:
    """A callable that gets each record."""

    format = None
    taken = 0
    is_ending: Callable[[], bool] | None = None

    def __init__(self, put: Callable[[AllocationRecord], object]) -> None:
        self.put = put

    def write(self, content: list[AllocationRecord]) -> Outcome:
        return put_each(self, content)

    def close(self) -> None:
        pass


class Lines:
    """A callable that gets each row, without the end of the line."""

    taken = 0
    is_ending: Callable[[], bool] | None = None

    def __init__(self, format: str, put: Callable[[str], object]) -> None:
        self.format, self.put = format, put

    def write(self, content: bytes) -> Outcome:
        return put_each(self, rows_of(content))

    def close(self) -> None:
        pass


def rows_of(content: bytes) -> list[str]:
    """The rows of a batch, without the ends of their lines."""
    return content.decode().split("\n")[:-1]


def put_each(sink: TextSink | Records | Lines, items: Iterable[Any]) -> Outcome:
    """One that is not taken does not keep the others back."""
    failed, first = 0, None
    for item in items:
        try:
            sink.put(item)
            sink.taken += 1
        except BaseException as error:                  # SystemExit too: it would end the thread of the log
            failed += 1
            first = first or error
    return failed, first
