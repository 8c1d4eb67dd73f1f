"""`record_history`: from its beginning to its end."""
from __future__ import annotations

import atexit
import errno
import json
import operator
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from types import TracebackType
from typing import Any, Literal, Self, SupportsIndex

import xlogmem
from xlogmem._base.log import logger
from xlogmem._base.signatures import names_nearest
from xlogmem._base.texts import as_html, printable
from xlogmem._base.units import counted
from xlogmem._driver import ProcessLock
from xlogmem._order import thread_number
from xlogmem.blocks import record_history as switch_history
from xlogmem.observe import _history
from xlogmem.observe.history import lines
from xlogmem.observe.history.events import Event
from xlogmem.observe.history.files import WANTED, History, lost, make_ring_file, stacks_in

__all__ = ["Recording", "latest", "record_history", "stop_behind", "watched"]

MOST_EVENTS = 1 << 30
# Errors of systems where no file can be made beside the one that is wanted, or none can be mapped.
NO_MAPPING = (errno.EACCES, errno.EPERM, errno.EROFS, errno.EINVAL, errno.ENODEV, errno.EOPNOTSUPP)

_lock = ProcessLock()
_latest: Recording | None = None                        # running, or the last that was
_behind: Recording | None = None                        # of `watched`
BEHIND = 1 << 12                                        # events


class Recording:
    """A history that is recorded; see `record_history`.  As a context manager it stops at the end.

    Notes
    -----
    Thread-safe.

    Examples
    --------
    >>> recording = xlogmem.record_history()
    >>> xlogmem.get_runtime().allocate(1000).free()
    >>> recording.stop()
    >>> [event.kind for event in recording.events()]
    ['allocate', 'free']
    """

    def __init__(self, path: str | os.PathLike[str] | None, max_events: int, stacks: str, timing: bool) -> None:
        self.path = None if path is None else os.path.realpath(os.fspath(path))  # wherever the program is at the end
        self._max_events = max_events
        self._wanted = stacks
        self._process = os.getpid()
        self._history: History | None = None
        self._loss_was_said = False                     # of a part of the file, while the recording runs
        site_function = _function_for_stacks() if stacks != "none" else 0
        self._file = -1 if self.path is None else _ring_file(self.path, max_events)     # -1: the ring is in memory
        try:
            self._begin(WANTED.index(stacks), site_function, timing)
        except BaseException:
            self._close()
            raise
        try:
            self._clock = _history.clock()
            switch_history(True, self)
            atexit.register(self.stop)
        except BaseException:                           # an interrupt
            switch_history(False)
            _history.end()
            self._close()
            raise

    def _begin(self, stacks: int, site_function: int, timing: bool) -> None:
        if self._file >= 0:
            from xlogmem.check import sites

            try:
                os.write(self._file, json.dumps(self._facts([_history.loaded, _history.clock()])).encode() + b"\n")
                return _history.begin(self._max_events, stacks, site_function, timing, self._file, sites.json_of)
            except OSError as error:
                if error.errno not in NO_MAPPING:
                    raise
            self._close()
            _warn(self.path)
        _history.begin(self._max_events, stacks, site_function, timing)

    @property
    def running(self) -> bool:
        """True if the recording was not stopped yet."""
        return self._history is None

    @property
    def dropped(self) -> int:
        """The number of events so far that are not kept: the oldest, and those that were lost with the file."""
        return self.history().dropped

    def history(self) -> History:
        """The history recorded so far, as `read` would give it."""
        with _lock:
            history = self._gathered() if self._history is None else self._history
            is_news = self.running and not self._loss_was_said and _history.is_spoiled()
            self._loss_was_said |= is_news
        if is_news:
            self._say_lost(history)
        return history

    def events(self) -> Iterator[Event]:
        """The events recorded so far, oldest first."""
        return iter(self.history())

    def stop(self) -> None:
        """Record nothing more and, if there is a path, write the file.  A second call returns when that is done, and
        does nothing else; one in a forked child does nothing.

        Raises
        ------
        OSError
            The file cannot be written.  The events are there all the same.
        """
        if os.getpid() != self._process:
            return
        with _lock:
            if self._history is not None:
                return
            has_ring = self._file >= 0
            history = self._end()
            atexit.unregister(self.stop)
            if self.path is not None:
                history.save(self.path)                 # until then there is the ring
        if has_ring:
            self._say_lost(history)

    def _say_lost(self, history: History) -> None:
        if numbers := lost(history, self._max_events):
            logger().warning(
                "%s was truncated or overwritten while the history was recorded there: %d of the newest %d events are "
                "lost, from event %d to event %d; a recording with a path of its own loses none",
                printable(str(self.path)), len(numbers), min(int(history.facts["count"]), self._max_events),
                numbers[0], numbers[-1])

    def end_in_child(self) -> bool:
        """True if this is a forked child: the recording ends here, where another may begin; the parent's goes on."""
        if os.getpid() == self._process:
            return False
        self._end()
        return True

    def _end(self) -> History:
        switch_history(False)
        self._history = history = self._gathered()
        _history.end()
        self._close()
        return history

    def _close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def lines_of_block(self, generation: int) -> str:
        """For an error about a block: where it began and where it ended, a line each."""
        with _lock:
            return lines.describe(self._of_blocks([generation]), time.time_ns()) if self.running else ""

    def beginnings_of_blocks(self, generations: Iterable[int]) -> dict[int, Event]:
        """By generation, how blocks began, as far as the history still has it."""
        with _lock:
            return lines.newest_beginnings(self._of_blocks(generations)) if self.running else {}

    def of_this_thread(self, since: int) -> list[Event]:
        """Events of the calling thread after the first `since` of all events, as far as they are still there."""
        with _lock:
            if not self.running or _history.count() <= since:
                return []
            packed, tags, count = _history.events(min(_history.count() - since, self._max_events))
            return [event for event in self._referred_to(packed, tags, count) if event.thread == thread_number()]

    def _of_blocks(self, generations: Iterable[int]) -> History:
        """The beginnings and ends of these blocks."""
        packed, tags = _history.ends_of(generations)
        return self._referred_to(packed, tags, _history.count())

    def _gathered(self) -> History:
        return self._referred_to(*_history.events(self._max_events))

    def _referred_to(self, packed: bytes, tags: list[str], count: int) -> History:
        """Events with their tags and stacks.  While the ring is there."""
        return History(self._facts([self._clock, _history.clock()]) | {
            "count": count, "kept": len(packed), "tags": tags,
            "stacks": _stacks(packed) if self._wanted != "none" else {}}, packed)

    def _facts(self, clock: list[tuple[int, int, int]]) -> dict[str, Any]:
        return {"xlogmem": xlogmem.__version__, "pid": self._process, "clock": clock, "wanted": self._wanted}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 traceback: TracebackType | None) -> None:
        self.stop()

    def _repr_html_(self) -> str:
        """How many events there are of each kind, for notebooks."""
        history = self.history()
        return as_html(f"{type(self).__name__}, {'running' if self.running else 'stopped'}: "
                       f"{counted(len(history), 'event')}, {counted(history.dropped, 'older one')} without room",
                       (("event", "how many"), [
                           (kind, f"{count:,}") for kind, count in history.counted().most_common()]))

    def __repr__(self) -> str:
        state = "running" if self.running else counted(len(self.history()), "event")
        return (f"<{type(self).__name__} of {counted(self._max_events, 'event')} at most, stacks={self._wanted!r}, "
                f"{state}>")


@names_nearest
def record_history(path: str | os.PathLike[str] | None = None, max_events: SupportsIndex = 1_000_000,
                   stacks: Literal["none", "alloc", "all"] = "none", timing: bool = False) -> Recording:
    """Record what all runtimes of the process do, from now on.

    Parameters
    ----------
    path : str or path, optional
        `xlogmem.history.read` reads it.  Events are in the file as they happen, whatever ends the process; when the
        recording stops, at the latest when the process exits, a smaller file takes its place.  A relative path is that
        of the current folder now.  Where no file can be mapped, it is written at the end, and a warning logged now.
    max_events : int
        How many are kept: the newest.  Each takes 64 bytes of host memory or, with a path, of the file, which are
        taken now; room is made for the next power of two.
    stacks : {"none", "alloc", "all"}
        Of which calls the innermost frames of the Python stack are kept: of none, of those that allocate or adopt, of
        all.
    timing : bool
        Whether two events with timing are recorded around each wait of a stream, for how long it held up the
        stream (`Event.waited_ns`).

    Returns
    -------
    Recording
        With `stop()` and `events()`; a context manager.

    Raises
    ------
    ValueError, TypeError
        An argument is not one of these.
    RuntimeError
        A history is recorded already, or stacks are wanted of a version of Python whose frames are not known.
    OSError
        The path cannot be written, or there is no space for so many events.
    MemoryError
        There is no host memory for so many events.

    Notes
    -----
    Thread-safe.  A forked child goes on in memory alone, and may record a history of its own.  A recording makes no
    stream wait and, without `timing`, makes no driver call.  docs/history.md has the cost that a recording adds to
    other calls; without a recording there is none.

    Examples
    --------
    >>> runtime = xlogmem.get_runtime()
    >>> with xlogmem.record_history(stacks="all") as history:
    ...     runtime.allocate(1000, tag="join").free()
    >>> [event.kind for event in history.events() if event.tag == "join"]
    ['allocate', 'free']
    """
    global _latest
    most = operator.index(max_events)
    if not 1 <= most <= MOST_EVENTS:
        raise ValueError(f"max_events={most} is not from 1 to {MOST_EVENTS:,}")
    if stacks not in WANTED:
        raise ValueError(f"stacks={stacks!r} is unknown; choose one of {', '.join(WANTED)}")
    if path is not None:
        if not isinstance(path, (str, bytes, os.PathLike)):
            raise TypeError(f"path must be the path of a file, or None for a history in memory, not {path!r}")
        folder = os.path.dirname(os.path.abspath(os.fsdecode(path)))
        if not os.path.isdir(folder):
            raise FileNotFoundError(errno.ENOENT, "the folder of the history does not exist, make it first", folder)
    with _lock:
        if _latest is not None and _latest.running and not _latest.end_in_child():
            raise RuntimeError(f"a history is recorded already: stop {_latest!r} first")
        if _behind is not None and _behind.running and not _behind.end_in_child():
            _behind.stop()
        _latest = Recording(path, most, stacks, bool(timing))
        return _latest


def watched() -> Recording:
    """The recording that is running.  If none is, begin a small one, which the caller alone sees and which makes way
    for one that the program begins."""
    global _behind
    for recording in (_latest, _behind):
        if recording is not None and recording.running:
            return recording
    with _lock:
        if _latest is not None and _latest.running:
            return _latest
        if _behind is None or not _behind.running:
            _behind = Recording(None, BEHIND, "none", False)
        return _behind


def stop_behind() -> None:
    """Stop the recording that `watched` began."""
    with _lock:
        if _behind is not None and _behind.running:
            _behind.stop()


def latest() -> Recording | None:
    """The recording that is running, else the last that was; None without one."""
    return _latest


def _ring_file(path: str, max_events: int) -> int:
    """A descriptor of a new file for the ring, at this path; -1 where none can be made.  Never the file that is there:
    another process may have its ring in that."""
    if os.path.exists(path):
        open(path, "ab").close()                        # what cannot be written is an error now
    part = f"{path}.{os.getpid()}.part"                 # which takes the place of another file at once
    if os.path.isfile(path) or not os.path.exists(path):
        with suppress(FileNotFoundError):               # of a process that was killed, with the same number
            os.unlink(part)
        try:
            file = make_ring_file(part, max_events)
        except OSError as error:
            if error.errno not in NO_MAPPING:
                raise
        else:
            os.replace(part, path)
            return file
    _warn(path)
    return -1


def _warn(path: str | None) -> None:
    logger().warning("%s cannot be mapped: the history is written there when the recording stops, and not if the "
                     "process is killed", printable(str(path)))


def _function_for_stacks() -> int:
    from xlogmem.check import sites

    if not sites.start():
        raise RuntimeError("the frames of this version of Python are not known to xlogmem: record with stacks='none'")
    return sites.address_of_function()


def _stacks(packed: bytes) -> dict[str, list[tuple[str, int, str]]]:
    """The stacks of events by their numbers, as JSON has them: file, line and function of each frame."""
    from xlogmem.check import sites

    return {str(number): [(frame.file, frame.line, frame.function) for frame in sites.frames_at(number)]
            for number in sorted(stacks_in(packed)) if number <= sites.site_count()}
