"""A history as PyTorch's snapshots have it: pytorch.org/memory_viz and ``torch.cuda._memory_viz`` read it.

Blocks that were there before the recording began are not in it, and neither is free memory of a pool: each live block
is a segment of its own.
"""
from __future__ import annotations

import pickle
from collections.abc import Iterable
from typing import Any

from xlogmem.check.frames import Frame
from xlogmem.observe.history.events import BEGINNINGS, ENDS, Event

__all__ = ["dumped", "snapshot"]

Described = dict[str, Any]


def snapshot(events: Iterable[Event]) -> Described:
    """A snapshot of runtimes, in the form that ``torch.cuda.memory._snapshot()`` returns."""
    traces: dict[int, list[Described]] = {}
    live: dict[int, Event] = {}                         # by generation
    for event in events:
        trace = traces.setdefault(event.device, [])
        if event.kind in BEGINNINGS:
            live[event.generation] = event
            trace.append(_described(event, "alloc"))
        elif event.kind in ENDS:
            live.pop(event.generation, None)
            trace += [_described(event, "free_requested"), _described(event, "free_completed")]
        elif event.kind == "out of memory":
            trace.append(_described(event, "oom") | {"device_free": 0})     # not known
    devices = max(traces, default=-1) + 1
    return {"segments": [_segment(event) for event in sorted(live.values(), key=lambda event: event.address)],
            "device_traces": [traces.get(device, []) for device in range(devices)],
            "allocator_settings": {}, "external_annotations": []}


def dumped(events: Iterable[Event]) -> bytes:
    """The file."""
    return pickle.dumps(snapshot(events), protocol=4)


def _described(event: Event, action: str) -> Described:
    return {"action": action, "addr": event.address, "size": event.nbytes, "stream": event.stream or 0,
            "time_us": event.time_ns // 1000, "frames": _frames(event.stack, event.tag),
            "user_metadata": event.tag or ""}


def _frames(stack: tuple[Frame, ...], tag: str | None) -> list[Described]:
    """The tag comes first, as a frame of its own: viewers group by frames."""
    named = [{"filename": "", "line": 0, "name": f"tag {tag}"}] if tag else []
    return named + [{"filename": frame.file, "line": frame.line, "name": frame.function} for frame in stack]


def _segment(event: Event) -> Described:
    sizes = {"total_size": event.nbytes, "allocated_size": event.nbytes, "active_size": event.nbytes,
             "requested_size": event.nbytes}
    frames = _frames(event.stack, event.tag)
    block = {"address": event.address, "size": event.nbytes, "requested_size": event.nbytes,
             "state": "active_allocated", "frames": frames}
    return {"device": event.device, "address": event.address, "stream": event.stream or 0, "segment_type": "large",
            "segment_pool_id": (0, 0), "is_expandable": False, "frames": frames, "blocks": [block]} | sizes
