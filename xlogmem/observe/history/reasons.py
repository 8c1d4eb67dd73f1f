"""Reasons of waits, and fates of blocks: a history in sentences."""
from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from xlogmem._base.texts import printable
from xlogmem._base.units import counted, format_duration
from xlogmem._foreign.advice import kind_of
from xlogmem.blocks import BlockId, DeviceBlock, handle_in, runtime_of
from xlogmem.observe.history import state
from xlogmem.observe.history.events import NEEDING, Event, name_of_block, name_of_stream
from xlogmem.observe.history.recording import latest
from xlogmem.observe.snapshots import take
from xlogmem.runtime import existing_runtimes
from xlogmem.streams import Stream

__all__ = ["of_block", "of_stream", "why"]


def why(what: object) -> list[str]:
    """Explain in sentences the waits and pending work of a stream, or a block's history and what keeps it.

    Parameters
    ----------
    what : object
        A stream or memory, as `use` takes them: a `Stream`, `DeviceBlock` or `BlockId`, or a stream or an array of
        another library.  A block may have been freed.

    Returns
    -------
    list of str
        First the events of the history, oldest first, with lines of the program where stacks were recorded: of the
        history that is being recorded, else of the last one that was.  Then the present state.  Without a
        history, or where neither knows anything, a sentence says that: the list is not empty.

    Raises
    ------
    TypeError
        This is neither a stream nor a block.

    Notes
    -----
    Thread-safe.  The present state is read as by `DeviceRuntime.snapshot`, without a driver call.

    Examples
    --------
    >>> runtime = xlogmem.get_runtime()
    >>> load, work = runtime.acquire_stream(), runtime.acquire_stream()
    >>> with xlogmem.record_history():
    ...     x = runtime.allocate("1MiB", load, tag="left")
    ...     with xlogmem.use(work, read=x):
    ...         pass
    >>> print(xlogmem.why(work)[0])                                         # doctest: +ELLIPSIS
    stream ... waited for stream ...
    """
    handles: list[Any] = [what]
    if not isinstance(what, (Stream, DeviceBlock, BlockId)):
        handles = [found for runtime in existing_runtimes() if (found := handle_in(runtime, what)) is not None]
        if not handles and not is_memory(what):
            raise TypeError("why: what must be a stream or memory that a runtime knows (a Stream, a DeviceBlock, an "
                            f"array or a stream of another library), not {what!r}")
        if not handles:
            return [f"no runtime tracks this {kind_of(what)}"]
    said = [sentence for handle in handles for sentence in _said_of(handle)]
    if latest() is None:
        said.append(NO_HISTORY)
    name = f"stream {handles[0].id}" if isinstance(handles[0], Stream) else f"block {handles[0].generation}"
    return list(map(printable, said)) or [f"the history has nothing of {name}, and nothing is pending"]


def _said_of(what: Stream | DeviceBlock | BlockId) -> list[str]:
    """Sentences from the history, then sentences about the present state."""
    recording = latest()
    history = recording.history() if recording is not None else None
    events: Iterable[Event] = history or ()
    runtime = runtime_of(what)
    now = take(runtime) if runtime is not None else None
    if isinstance(what, Stream):
        dropped = history is not None and history.dropped > 0
        waits = of_stream(events, what.ordering.number, what.id, dropped)
        return [*waits, *(state.of_stream(now, what.id) if now else ())]
    return [*of_block(events, what.generation), *(state.of_block(now, what.generation) if now else ())]


NO_HISTORY = ("no history is recorded, so that what happened before is not known: xlogmem.record_history() begins one "
              "(stacks=\"all\" for lines of the program)")


def is_memory(what: object) -> bool:
    return any(hasattr(what, name) for name in ("__cuda_array_interface__", "__dlpack__"))


def of_stream(events: Iterable[Event], runtime: int, stream: int, dropped: bool = False) -> Iterator[str]:
    """The stream that each wait was for, and the reasons.  Where the oldest events were dropped, the reasons of a
    thread's first waits may be among them."""
    needs: list[Event] = []                             # of the operation that is under way
    writers = Newest()
    followed: set[int] = set()                          # threads of which a whole operation is there
    for event in events:
        if event.runtime != runtime:
            continue
        writers.note(event)
        if event.kind in ("use", "free", "allocate"):
            followed.add(event.thread)
        if event.kind in NEEDING and event.stream == stream:
            needs.append(event)
        elif event.kind == "wait" and event.stream == stream:
            because = [need for need in needs if need.other == event.other]
            needs = [need for need in needs if need.other != event.other]
            reason = _reason(because, writers) if because or not dropped or event.thread in followed else ""
            how_long = f" {format_duration(event.waited_ns)}" if event.waited_ns is not None else ""
            yield f"stream {stream} waited{how_long} for stream {event.other}{_at(event)}{reason}"
        elif event.stream == stream and event.kind in ("use", "free"):
            needs = []                                  # an earlier wait covers the rest


class Newest:
    """The newest use of each block on each stream, or its allocation."""

    def __init__(self) -> None:
        self.uses: dict[tuple[int, int | None, bool], Event] = {}

    def note(self, event: Event) -> None:
        """One more event."""
        if event.kind in ("use", "record use", "allocate"):
            self.uses[event.generation, event.stream, event.access == "read"] = event

    def place(self, need: Event) -> str:
        """The place in the program of the use that a need is about, as text; empty if it is not known."""
        use = self.uses.get((need.generation, need.other, need.access == "read"))
        return _at(use) if use else ""


def _reason(needs: list[Event], uses: Newest) -> str:
    if not needs:
        return (", which no use or free needed: the program requested it, the memory was there before, or a block was "
                "handed back")
    said = [f"{name_of_block(need)} was {need.access} there{uses.place(need)}" for need in needs]
    more = f" and {len(said) - 3} more" if len(said) > 3 else ""
    return (", to free" if needs[0].kind == "free needs" else ", to use") + ": " + "; ".join(said[:3]) + more


def of_block(events: Iterable[Event], generation: int) -> Iterator[str]:
    """The history of a block, as sentences."""
    needed: Counter[str] = Counter()                    # by the free
    for event in events:
        if event.generation != generation:
            continue
        if event.kind == "free needs":
            needed[f"{event.access} on {name_of_stream(event.other)}"] += 1
        elif event.kind == "use needs":
            yield (f"a use on {name_of_stream(event.stream)} needs {name_of_stream(event.other)}, where "
                   f"{name_of_block(event)} was {event.access}{_at(event)}")
        else:
            yield _sentence(event, sorted(needed))
            needed.clear()


def _sentence(event: Event, needed: list[str]) -> str:
    name, where = name_of_block(event), name_of_stream(event.stream)
    if event.kind == "use" or event.kind == "record use":
        said = f"{name} was used on {where} ({event.access})"
    elif event.kind == "free put off":
        said = f"the free of {name} was put off: a use or an export is open, or a graph holds it or is being captured"
    elif event.kind in ("free", "free failed") and needed:
        said = f"the free of {name} on {where} waits for {counted(len(needed), 'user')}: {', '.join(needed)}"
    elif event.kind == "free failed":
        said = f"the free of {name} on {where} failed, and is tried again"
    elif event.kind in ("allocate", "adopt"):
        begun = "allocated" if event.kind == "allocate" else "adopted"
        said = f"{name} was {begun} on {where}, {event.nbytes} bytes at {event.address:#x}"
    elif event.kind in ("free", "release"):
        said = f"{name} was {'freed' if event.kind == 'free' else 'released'} on {where}"
    else:
        said = f"{name}: {event.kind} on {where}"
    return said + _at(event)


def _at(event: Event) -> str:
    return f" ({event.place})" if event.place else ""
