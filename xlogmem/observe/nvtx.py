"""`record_nvtx`: scopes, uses, allocations and waits as ranges and marks of NVTX, for Nsight Systems and other tools.

Nothing of it is in the compiled parts: while it is on, `xlogmem.use` and `DeviceRuntime.allocate` are other functions,
which call those, and read in the history which waits these have queued.  The only place that imports nvtx:
``pip install "nvtx>=0.2.13"``.
"""
from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import wraps
from types import TracebackType
from typing import Any, Self

import xlogmem
from xlogmem._base.log import logger
from xlogmem._base.texts import encodable, printable
from xlogmem._driver import ProcessLock
from xlogmem.launch import LaunchRecorder
from xlogmem.observe import _history
from xlogmem.observe.history.events import NEEDING, Event, name_of_stream
from xlogmem.observe.history.recording import Recording, stop_behind, watched
from xlogmem.observe.scopes import range_with
from xlogmem.runtime import DeviceRuntime

__all__ = ["NvtxRecording", "record_nvtx", "record_or_warn"]

DOMAIN = "xlogmem"
NAMED = 4                                   # things in the name of a range

_lock = ProcessLock()
_running: NvtxRecording | None = None


class NvtxRecording:
    """Scopes, uses and allocations are seen by NVTX; see `record_nvtx`.  As a context manager it stops at the end.

    Attributes
    ----------
    seen : bool
        Whether a tool is there; without one nothing was changed.
    """

    def __init__(self, domain: Any, seen: bool) -> None:
        self.seen = seen
        self._domain = domain
        self._use: Callable[..., Any] | None = None     # the former `use`
        if seen:
            self._use = xlogmem.use
            setattr(xlogmem, "use", with_ranges(xlogmem.use, domain))                       # noqa: B010
            setattr(DeviceRuntime, "allocate", with_marks(DeviceRuntime.allocate, domain))  # noqa: B010
            range_with(lambda tag: begin_range(domain, tag))

    def stop(self) -> None:
        """Have NVTX see nothing more.  Ranges that are open are ended where they would be; a second call does
        nothing."""
        global _running
        with _lock:
            if _running is not self:
                return
            _running = None
            if self._use is not None:
                setattr(xlogmem, "use", self._use)      # noqa: B010
                delattr(DeviceRuntime, "allocate")      # that of its base again
                range_with(None)
                stop_behind()

    def __repr__(self) -> str:
        state = "no tool is there" if not self.seen else "running" if _running is self else "stopped"
        return f"<{type(self).__name__}, {state}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 traceback: TracebackType | None) -> None:
        self.stop()


class NamedUse:
    """A recorder whose ``with`` block is a range; everything else is the recorder's.  Its waits are marks."""

    def __init__(self, recorder: LaunchRecorder, domain: Any, name: str) -> None:
        self._recorder = recorder
        self._waits = Waits(domain)
        self._domain = domain
        self._name = name
        self._end: Callable[[], object] | None = None

    def __enter__(self) -> LaunchRecorder:
        self._end = begin_range(self._domain, self._name)           # the waits that are queued are inside
        try:
            with self._waits:
                return self._recorder.__enter__()
        except BaseException:
            self._end()
            raise

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 traceback: TracebackType | None) -> None:
        try:
            with self._waits:                           # of a free that was put off until now
                self._recorder.__exit__(kind, error, traceback)
        finally:
            if self._end is not None:
                self._end()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._recorder, name)


class Waits:
    """A context manager: what this thread made streams, or the host, wait for in its body are marks behind it."""

    def __init__(self, domain: Any, otherwise: str = "") -> None:
        self._domain = domain
        self._otherwise = otherwise                     # the reason of a wait that no block needs
        self._history: Recording | None = None
        self._since = 0

    def __enter__(self) -> None:
        self._history = watched() if _running is not None else None
        self._since = _history.count()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 traceback: TracebackType | None) -> None:
        if self._history is None or _history.count() == self._since:
            return
        for text, block in waits_in(self._history.of_this_thread(self._since), self._otherwise):
            self._domain.mark(self._domain.get_event_attributes(message=encodable(text), payload=block))


def waits_in(events: Iterable[Event], otherwise: str) -> Iterator[tuple[str, int]]:
    """A text for each wait, and the generation of the first block that needs it; 0 if none does.  Blocks have the
    names of their tags, because NVTX keeps each text for ever."""
    needs: list[Event] = []
    for event in events:
        if event.kind in NEEDING:
            needs.append(event)
        elif event.kind in ("wait", "host wait"):
            because = [need for need in needs if need.other == event.other]
            needs = [need for need in needs if need.other != event.other]
            reasons = first_of(f"{need.tag or 'a block'} was {need.access} there" for need in because) or otherwise
            source = "everything" if event.other is None else f"stream {event.other}"
            yield (f"{name_of_stream(event.stream)} waits for {source}" + (f": {reasons}" if reasons else ""),
                   because[0].generation if because else 0)


def record_nvtx() -> NvtxRecording:
    """Have NVTX's tools see scopes, uses, allocations and waits from here on, in the domain ``"xlogmem"``.

    The body of a `scope` is a range with its tag.  A ``with xlogmem.use(...)`` block is a range such as ``"use left,
    right on stream 4"``: things are named by their tags, those without one by their type, streams by `Stream.id`.  An
    allocation is a mark, ``"allocate left on stream 4"``, whose payload is its bytes; so is a wait that one of these
    queued, ``"stream 4 waits for stream 2: left was written there"``, with the generation of the first block.  With
    ``XLOGMEM_NVTX=1`` in the environment, importing xlogmem does this, and a missing package is a warning in the log.

    Returns
    -------
    NvtxRecording
        With `stop()`; a context manager.

    Raises
    ------
    ImportError
        The package nvtx is not installed, or is older than 0.2.13.
    RuntimeError
        It is on already.

    Notes
    -----
    Thread-safe.  Python code alone is seen, and `use` only where it is called as ``xlogmem.use``, or was imported by
    name after this; see docs/live.md.  While it is off nothing costs more; without a tool nothing is changed.

    Examples
    --------
    >>> with xlogmem.record_nvtx():                                         # doctest: +SKIP
    ...     with xlogmem.scope("join"):
    ...         join()                              # a range in Nsight Systems
    """
    global _running
    try:
        import nvtx
    except ImportError as error:
        raise ImportError('xlogmem.record_nvtx needs nvtx, which is not installed: pip install "nvtx>=0.2.13"') \
            from error
    if not hasattr(nvtx, "Domain"):
        raise ImportError('xlogmem.record_nvtx needs nvtx 0.2.13 or later: pip install "nvtx>=0.2.13"')
    with _lock:
        if _running is not None:
            raise RuntimeError("NVTX sees this process already (xlogmem.record_nvtx or XLOGMEM_NVTX): stop that first")
        domain = nvtx.get_domain(DOMAIN)
        _running = NvtxRecording(domain, nvtx.enabled() and isinstance(domain, nvtx.Domain))
        return _running


def record_or_warn() -> None:
    """`record_nvtx`, for XLOGMEM_NVTX.  What does not work is a warning in the log."""
    try:
        record_nvtx()
    except Exception as error:
        logger().warning("XLOGMEM_NVTX: %s", printable(str(error)))


def with_ranges(use: Callable[..., LaunchRecorder], domain: Any) -> Callable[..., NamedUse]:
    @wraps(use)
    def named(stream: Any, *things: Any, **options: Any) -> NamedUse:
        recorder = use(stream, *things, **options)
        things += tuple(options[access] for access in ("read", "write", "read_write") if access in options)
        where = "the host" if recorder.stream is None else f"stream {recorder.stream.id}"
        return NamedUse(recorder, domain, f"use {names_of(things)} on {where}")

    return named


def with_marks(allocate: Callable[..., Any], domain: Any) -> Callable[..., Any]:
    @wraps(allocate)
    def marked(self: DeviceRuntime, *arguments: Any, **options: Any) -> Any:
        with Waits(domain, "memory that is handed out again was used there"):
            block = allocate(self, *arguments, **options)
        name = encodable(f"allocate {names_of(block)} on stream {block.stream.id}")
        domain.mark(domain.get_event_attributes(message=name, payload=block.nbytes))
        return block

    return marked


def begin_range(domain: Any, name: str) -> Callable[[], object]:
    """Begin a range in this thread; returns the function that ends it."""
    domain.push_range(domain.get_event_attributes(message=encodable(name)))
    ended: Callable[[], object] = domain.pop_range
    return ended


def names_of(things: Any) -> str:
    """The first few, without repetitions, and how many more there are."""
    return first_of(getattr(thing, "tag", None) or type(thing).__name__ for thing in flat(things)) or "nothing"


def first_of(texts: Iterable[object]) -> str:
    """The first few, and how many more there are."""
    distinct = list(dict.fromkeys(texts))
    more = f" and {len(distinct) - NAMED} more" if len(distinct) > NAMED else ""
    return ", ".join(map(str, distinct[:NAMED])) + more


def flat(things: Any) -> Iterator[Any]:
    """Flatten lists, tuples and dictionaries, as `use` does."""
    if isinstance(things, (list, tuple)):
        for thing in things:
            yield from flat(thing)
    elif isinstance(things, dict):
        yield from flat(list(things.values()))
    else:
        yield things
