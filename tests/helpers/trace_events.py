"""What is wrong with a file in Chrome's Trace Event Format, as far as xlogmem writes it.

The format is that of "Trace Event Format" (Chromium), in its form of a JSON object.  Perfetto drops what it cannot
place without a word, so everything that it would drop is an error here, and so is what this writer has no use for.
"""
from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

__all__ = ["problems"]

Entry = dict[str, Any]
FIELDS = {                                              # by phase: beside ph, pid, tid and name
    "X": {"ts", "dur", "args"}, "i": {"ts", "s", "args"}, "C": {"ts", "args"}, "M": {"args"},
    "b": {"ts", "cat", "id", "args"}, "e": {"ts", "cat", "id"},
    "s": {"ts", "cat", "id"}, "f": {"ts", "cat", "id", "bp"}}
NAMES = ("process_name", "thread_name")                 # of metadata
ON_TRACKS = ("X", "i", "s", "f")                        # what a viewer shows on the track of its thread


def problems(trace: Any) -> list[str]:
    """All of them, as texts.  Entries are looked at one by one first, and together only if each is right."""
    if not isinstance(trace, dict) or not isinstance(trace.get("traceEvents"), list):
        return ["there is no list of traceEvents"]
    found = [] if trace.get("displayTimeUnit") in ("ms", "ns") else ["displayTimeUnit is neither ms nor ns"]
    entries = trace["traceEvents"]
    found += [f"{said}: {entry}" for entry in entries for said in _of_one(entry)]
    if not found:
        for rule in (_names, _nesting, _arrows, _lives):
            found += rule(entries)
    return found


def _is_time(value: object) -> bool:
    return (isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value >= 0)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _of_one(entry: Any) -> Iterator[str]:
    if not isinstance(entry, dict) or entry.get("ph") not in FIELDS:
        yield "no entry of a known phase"
        return
    phase = entry["ph"]
    if entry.keys() != {"ph", "pid", "tid", "name"} | FIELDS[phase]:
        yield "fields are missing, or too many"
        return
    if not all(type(entry[name]) is int and 0 <= entry[name] < 1 << 32 for name in ("pid", "tid")):
        yield "pid and tid are numbers of 32 bits"
    if not isinstance(entry["name"], str) or not entry["name"]:
        yield "a name is a text"
    if not all(_is_time(entry[name]) for name in ("ts", "dur") if name in entry):
        yield "times are numbers that are not negative"
    if not isinstance(entry.get("args", {}), dict):
        yield "args are an object"
    elif phase == "M" and (entry["name"] not in NAMES or [*map(type, entry["args"].values())] != [str]
                           or "name" not in entry["args"]):
        yield "metadata names a process or a thread"
    elif phase == "C" and (not entry["args"] or not all(map(_is_number, entry["args"].values()))):
        yield "the values of a counter are numbers"
    if phase == "i" and entry["s"] not in ("g", "p", "t"):
        yield "an instant has a scope"
    if phase == "f" and entry["bp"] != "e":
        yield "an arrow ends in the slice around its end"
    if "id" in entry and not (isinstance(entry["id"], str | int) and isinstance(entry["cat"], str) and entry["cat"]):
        yield "an id is a text or a number, and belongs to a category"


def _names(entries: list[Entry]) -> Iterator[str]:
    """Every process and every track that shows something is named, and once."""
    seen: set[tuple[str, int, int]] = set()
    for entry in entries:
        if entry["ph"] == "M":
            named = (entry["name"], entry["pid"], entry["tid"] if entry["name"] == "thread_name" else 0)
            if named in seen:
                yield f"named twice: {entry}"
            seen.add(named)
    for entry in entries:
        if ("process_name", entry["pid"], 0) not in seen:
            yield f"the process has no name: {entry}"
        if entry["ph"] in ON_TRACKS and ("thread_name", entry["pid"], entry["tid"]) not in seen:
            yield f"the track has no name: {entry}"


def _ns(microseconds: float) -> int:
    return round(microseconds * 1000)


def _slices(entries: list[Entry]) -> dict[tuple[int, int], list[tuple[int, int]]]:
    """When the slices of each track begin and end, by their beginnings and the longer first."""
    slices = defaultdict(list)
    for entry in entries:
        if entry["ph"] == "X":
            slices[entry["pid"], entry["tid"]].append((_ns(entry["ts"]), _ns(entry["ts"]) + _ns(entry["dur"])))
    return {track: sorted(found, key=lambda slice: (slice[0], -slice[1])) for track, found in slices.items()}


def _nesting(entries: list[Entry]) -> Iterator[str]:
    """Of two slices of a track that overlap, one is inside of the other."""
    for track, slices in _slices(entries).items():
        ends: list[int] = []
        for begin, end in slices:
            while ends and ends[-1] <= begin:
                ends.pop()
            if ends and end > ends[-1]:
                yield f"slices of a track overlap: {begin} to {end} ns, and one until {ends[-1]} ns, track {track}"
            ends.append(end)


def _arrows(entries: list[Entry]) -> Iterator[str]:
    """An arrow has one beginning and one end, which is not before, and each lies in a slice of its track."""
    slices = _slices(entries)
    ends = defaultdict(list)
    for entry in entries:
        if entry["ph"] in ("s", "f"):
            ends[entry["cat"], entry["name"], entry["id"]].append(entry)
            if not any(begin <= _ns(entry["ts"]) <= end for begin, end in slices.get((entry["pid"], entry["tid"]), ())):
                yield f"the end of an arrow lies in no slice: {entry}"
    for arrow, found in ends.items():
        if sorted(entry["ph"] for entry in found) != ["f", "s"]:
            yield f"an arrow has not one beginning and one end: {arrow}"
        elif len({entry["ts"] for entry in found}) == 2 and min(found, key=lambda entry: entry["ts"])["ph"] == "f":
            yield f"an arrow ends before it begins: {arrow}"


def _lives(entries: list[Entry]) -> Iterator[str]:
    """What has an id begins and ends in turn, under one name, and not before it began."""
    begun: dict[tuple[str, object], Entry] = {}
    for entry in entries:
        if entry["ph"] == "b":
            if (entry["cat"], entry["id"]) in begun:
                yield f"it began already: {entry}"
            begun[entry["cat"], entry["id"]] = entry
        elif entry["ph"] == "e":
            beginning = begun.pop((entry["cat"], entry["id"]), None)
            if beginning is None:
                yield f"it never began: {entry}"
            elif (beginning["pid"], beginning["name"]) != (entry["pid"], entry["name"]):
                yield f"it has another name at its end: {entry}"
            elif entry["ts"] < beginning["ts"]:
                yield f"it ends before it begins: {entry}"
    yield from (f"it does not end: {entry}" for entry in begun.values())
