"""Places where blocks began and ended, for errors and snapshots, while a history is recorded."""
from __future__ import annotations

from collections.abc import Iterable

from xlogmem._base.texts import printable, shown
from xlogmem._base.units import format_bytes, format_duration
from xlogmem.observe.history.events import Event
from xlogmem.observe.history.files import History

__all__ = ["describe", "newest_beginnings"]

BEGUN = ("allocate", "adopt")


def describe(events: Iterable[Event], now: int) -> str:
    """The beginning and the end of a block as lines of an error, each after a line break; empty without events.
    `now` is in nanoseconds of the epoch."""
    newest: dict[bool, Event] = {}
    for event in events:
        if event.kind == "free failed":                 # it did not end
            newest.pop(False, None)
        else:
            newest[event.kind in BEGUN] = event
    return "".join(f"\n  {_sentence(newest[begins], now)}" for begins in (True, False) if begins in newest)


def _sentence(event: Event, now: int) -> str:
    where = "" if event.stream is None else f" on stream {event.stream}"
    said = {"allocate": "allocated", "adopt": "adopted", "free": "freed", "release": "released",
            "evict": "lost its memory, which the resource handed out again"}[event.kind] + where
    if event.kind in BEGUN:
        said += f", {format_bytes(event.nbytes)} at {event.address:#x}"
        said += f", tag {shown(event.tag)}" if event.tag else ""
    said += f", {format_duration(max(now - event.time_ns, 0))} ago"
    frame = event.place
    return said + (printable(f": {frame} in {frame.function}") if frame else "")


def newest_beginnings(history: History) -> dict[int, Event]:
    """By generation, the event with which each block began."""
    return {event.generation: event for event in history if event.kind in BEGUN}
