"""Streams on which a library works without recording it: opaque, as long as the library has them."""
from __future__ import annotations

import sys
from typing import Any, NamedTuple

from xlogmem._foreign.stream_owners import owns_stream
from xlogmem.errors import DriverError, StreamMisuseError
from xlogmem.runtime import DeviceRuntime
from xlogmem.streams import Stream

__all__ = ["OpaqueStreams"]

PER_THREAD = 2                              # the largest handle of a default stream
SWEEP_AT = 64


class _Known(NamedTuple):
    owner: Any                              # first: see `_references`
    stream: Stream
    runtime: DeviceRuntime


def _references(entry: tuple[Any, ...]) -> int:
    return sys.getrefcount(entry[0])


ONLY_OURS = _references((object(),)) + 1    # that, and the one of the registry


class OpaqueStreams:
    """The streams of one library, by their objects.

    A registered stream is kept alive.  A runtime cannot know when an opaque one is not used any more, but here all of
    its work is queued through the object: when nothing else refers to that, the stream is unregistered.

    Notes
    -----
    Thread-safe: each change of the table is one step.
    """

    def __init__(self) -> None:
        self._known: dict[int, _Known] = {}
        self._sweep_at = SWEEP_AT

    def __len__(self) -> int:
        return len(self._known)

    def find(self, runtime: DeviceRuntime, owner: Any, stays: bool = False) -> Any:
        """The object that names the stream, opaque from now on, in a call of the runtime.

        Streams of the runtime itself, and those of which the program named the discipline, before or later, keep it.  A
        default stream is named by its object, unless the library always has this one for the legacy one (`stays`).

        Raises
        ------
        StreamMisuseError
            The stream is on another device, or is capturing a graph before it is known.
        """
        known = self._known.get(id(owner))
        if known is not None and known.runtime is runtime and known.stream.registered:
            return known.stream
        if not stays and owner.__cuda_stream__()[1] <= PER_THREAD:
            return owner                                # opaque by default, and not the same in each thread
        stream = runtime.register_stream(owner)
        if stays:
            self._known[id(owner)] = _Known(owner, stream, runtime)
            return stream
        if stream.foreign and stream.discipline == "ordinary" and not stream._is_named:
            stream = runtime.register_stream(owner, discipline="opaque")
        if stream.foreign and owns_stream(owner):       # else its handle may be another stream's tomorrow
            self._known[id(owner)] = _Known(owner, stream, runtime)
            if len(self._known) >= self._sweep_at:
                self.sweep()
        return stream

    def sweep(self) -> None:
        """Unregister the streams that only xlogmem refers to.  Blocks that were allocated there are freed elsewhere."""
        for key, known in list(self._known.items()):
            if known.stream.registered:
                if _references(known) > ONLY_OURS:
                    continue
                try:
                    known.runtime.unregister_stream(known.stream)
                except (StreamMisuseError, DriverError):
                    continue                            # in use: the next sweep looks again
            self._known.pop(key, None)
        self._sweep_at = max(SWEEP_AT, 2 * len(self._known))
