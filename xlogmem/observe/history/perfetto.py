"""A history as a trace of Chrome's, for ui.perfetto.dev and chrome://tracing.

A runtime is a process, a stream is a thread of it: uses are slices, for as long as their windows were open on the
host, and waits are arrows.  Blocks live in tracks of their own, and for each tag there is a counter of bytes, adopted
memory apart.  The trace lacks the device's own work and its times.

Times count from the oldest one in the history: microseconds of the epoch, as the binary fractions that readers make of
them, are a quarter of a microsecond apart.
"""
from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from xlogmem.observe.history.events import BEGINNINGS, ENDS, NEEDING, Event, name_of_block

__all__ = ["dumped", "trace"]

HOST = 0                                                # the thread of events without a stream
SHORTEST = 1                                            # nanoseconds of a slice
Entry = dict[str, Any]


def dumped(events: Iterable[Event]) -> bytes:
    """The file."""
    return json.dumps(trace(events)).encode()


def trace(events: Iterable[Event]) -> dict[str, Any]:
    """The JSON object format of Chrome's traces.  Times are in microseconds."""
    tracks = Tracks()
    for event in events:
        tracks.add(event)
    tracks.end()
    return {"traceEvents": tracks.entries, "displayTimeUnit": "ns",
            "otherData": {"began": f"{tracks.shift()} ns of the epoch"}}


class Tracks:
    """The trace of the events so far; times are nanoseconds of the epoch until `shift`."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.named: set[tuple[int, int]] = set()
        self.bytes: dict[tuple[int, str], int] = defaultdict(int)      # live, by runtime and counter
        self.live: dict[int, Event] = {}                # by generation
        self.slices: dict[tuple[int, int], Entry] = {}  # the newest of each stream
        self.launch: list[Event] = []                   # uses that one launch filed, until the next event
        self.needs: dict[int, list[Event]] = defaultdict(list)          # by thread: of the operation that is under way
        self.arrows: list[tuple[Entry, Entry]] = []     # from the slice that is waited for to that of the wait
        self.last = 0

    def add(self, event: Event) -> None:
        """The next event."""
        self.last = max(self.last, event.time_ns)
        if self.launch and (event.kind != "use" or _launch(event) != _launch(self.launch[0])):
            self.end_launch()
        self.name(event.runtime, event.device, event.stream)
        if event.kind == "use":
            self.launch.append(event)
        elif event.kind in BEGINNINGS:
            self.begin_block(event)
        elif event.kind in ENDS:
            self.needs.pop(event.thread, None)          # what an earlier wait has brought needs none of its own
            self.end_block(event)
        elif event.kind in NEEDING:
            self.needs[event.thread].append(event)
        elif event.kind in ("wait", "host wait"):
            self.wait(event)
        else:
            self.entries.append(_entry(event, "i", event.kind) | {"s": "t", "args": _arguments(event)})

    def end(self) -> None:
        """Nothing follows: blocks that are live end here."""
        if self.launch:
            self.end_launch()
        for event in self.live.values():
            self.entries.append(_lifetime(event, "e") | {"ts": self.last})
        self.spread()
        for number, (source, wait) in enumerate(self.arrows, 1):
            arrow = {"cat": "wait", "name": "wait", "id": number}
            for phase, end, more in (("s", source, {}), ("f", wait, {"bp": "e"})):
                self.entries.append({name: end[name] for name in ("pid", "tid", "ts")} | arrow | {"ph": phase} | more)

    def spread(self) -> None:
        """Viewers drop slices of a track that overlap unless one is inside of the other.  Windows of a stream may: they
        get further tracks."""
        last = max((entry["tid"] for entry in self.entries), default=HOST)
        names = {(entry["pid"], entry["tid"]): entry["args"]["name"] for entry in self.entries
                 if entry["name"] == "thread_name" and entry["ph"] == "M"}
        open_until: dict[tuple[int, int], list[int]] = defaultdict(list)        # ends of slices, the innermost last
        further: dict[tuple[int, int], list[int]] = {track: [track[1]] for track in names}
        slices = [entry for entry in self.entries if entry["ph"] == "X"]
        for entry in sorted(slices, key=lambda entry: (entry["ts"], -entry["dur"])):
            pid, track = entry["pid"], (entry["pid"], entry["tid"])
            end = entry["ts"] + entry["dur"]
            for tid in further[track]:
                ends = open_until[pid, tid]
                while ends and ends[-1] <= entry["ts"]:
                    ends.pop()
                if not ends or end <= ends[-1]:
                    break
            else:
                last += 1
                tid = last
                further[track].append(tid)
                self.entries.append(_name_of_track(pid, tid, "thread_name", f"{names[track]} ({len(further[track])})"))
            open_until[pid, tid].append(end)
            entry["tid"] = tid

    def shift(self) -> int:
        """Make times microseconds that count from the oldest one, which is returned."""
        began = min((entry["ts"] for entry in self.entries if "ts" in entry), default=0)
        for entry in self.entries:
            if "ts" in entry:
                entry["ts"] = (entry["ts"] - began) / 1000
            if "dur" in entry:
                entry["dur"] /= 1000
        return int(began)

    def name(self, runtime: int, device: int, stream: int | None) -> None:
        """Names of tracks, once for each."""
        for track, kind, text in ((-1, "process_name", f"xlogmem on device {device}, runtime {runtime >> 4}"),
                                  (_track(stream), "thread_name", "host" if stream is None else f"stream {stream}")):
            if (runtime, track) not in self.named:
                self.named.add((runtime, track))
                self.entries.append(_name_of_track(runtime, max(track, HOST), kind, text))

    def begin_block(self, event: Event) -> None:
        """A block lives from now on."""
        self.live[event.generation] = event
        self.entries.append(_lifetime(event, "b") | {"args": _arguments(event)})
        self.count(event, event.nbytes, event.time_ns)

    def end_block(self, event: Event) -> None:
        """End the lifetime of a block.  A block that was there before the recording is not shown."""
        if begun := self.live.pop(event.generation, None):
            self.entries.append(_lifetime(begun, "e") | {"ts": event.time_ns})
            self.count(begun, -event.nbytes, event.time_ns)

    def count(self, begun: Event, nbytes: int, time_ns: int) -> None:
        """The counter of a tag."""
        name = f"{'adopted' if begun.kind == 'adopt' else 'bytes'}: {begun.tag or 'no tag'}"
        self.bytes[begun.runtime, name] += nbytes
        self.entries.append(_entry(begun, "C", name) | {
            "tid": HOST, "ts": time_ns, "args": {"bytes": self.bytes[begun.runtime, name]}})

    def end_launch(self) -> None:
        """The slice of a launch."""
        first = self.launch[0]
        self.needs.pop(first.thread, None)
        shown = _entry(first, "X", ", ".join(event.tag or f"block {event.generation}" for event in self.launch)) | {
            "ts": first.time_ns - first.open_ns, "dur": max(first.open_ns, SHORTEST),
            "args": _arguments(first) | {name_of_block(event): event.access for event in self.launch}}
        self.slices[first.runtime, _track(first.stream)] = shown
        self.entries.append(shown)
        self.launch = []

    def wait(self, event: Event) -> None:
        """A slice for the wait, and an arrow from the newest slice of the stream that is waited for."""
        source_name = "everything" if event.other is None else f"stream {event.other}"
        needs = self.needs.pop(event.thread, [])
        self.needs[event.thread] = [need for need in needs if need.other != event.other]
        because = [f"{name_of_block(need)} was {need.access} on stream {need.other}" for need in needs
                   if need.other == event.other]
        shown = _entry(event, "X", f"wait for {source_name}") | {
            "dur": SHORTEST, "args": _arguments(event) | {"because": because}}
        if event.waited_ns is not None:
            shown["args"]["held up the stream, ns"] = event.waited_ns
        self.entries.append(shown)
        source = self.slices.get((event.runtime, _track(event.other)))
        if event.other is not None and source is not None:
            self.arrows.append((source, shown))


def _track(stream: int | None) -> int:
    return HOST if stream is None else stream + 1


def _launch(event: Event) -> tuple[int, int | None, int, tuple[int, int] | None]:
    """The key that uses of one launch share.  Accesses by the host have no position, but one end."""
    end = (event.thread, event.time_ns) if event.stream is None else None
    return event.runtime, event.stream, event.position, end


def _entry(event: Event, phase: str, name: str) -> Entry:
    return {"ph": phase, "pid": event.runtime, "tid": _track(event.stream), "ts": event.time_ns, "name": name}


def _name_of_track(pid: int, tid: int, kind: str, text: str) -> Entry:
    return {"ph": "M", "pid": pid, "tid": tid, "name": kind, "args": {"name": text}}


def _lifetime(event: Event, phase: str) -> Entry:
    return _entry(event, phase, event.tag or f"{event.nbytes} bytes") | {
        "cat": "block", "id": f"block {event.generation}"}


def _arguments(event: Event) -> dict[str, Any]:
    """Details of an event, which a viewer shows beside its slice or mark."""
    described: dict[str, Any] = {"thread": event.thread, "position": event.position}
    if event.generation:
        described |= {"block": event.generation, "address": hex(event.address)}
    if event.nbytes:
        described["bytes"] = event.nbytes
    if event.stack:
        described["stack"] = [f"{frame} in {frame.function}" for frame in event.stack]
    return described
