"""The streams of a world: which there are, which are in use, and which capture."""
from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

from cuda.bindings import driver as cuda

from xlogmem.errors import XlogmemError
from xlogmem.runtime import DeviceRuntime
from xlogmem.sim.kernels import check
from xlogmem_selftest.programs import Kind
from xlogmem_selftest.world.bookkeeping import Bookkeeping
from xlogmem_selftest.world.calls import ForeignStream, NothingToDo, sure
from xlogmem_selftest.world.models import GraphCapture, Item, ProgramGraph, ProgramStream

__all__ = ["WORDS", "Streams"]

WORDS = 1 << 14                             # streams that a world may have: each counts its surprises in a word


class Streams(Bookkeeping):
    """The layer that knows streams.

    A stream is *entered* while the program uses it, and *reserved* by the step that closes it: one excludes the other.
    """

    runtime: DeviceRuntime                  # of device 0
    neighbour: DeviceRuntime | None

    def __init__(self, kind: Kind, simulator: Any, protect: bool, threads: int, devices: int = 1) -> None:
        super().__init__(kind, simulator, protect, threads, devices)
        self.runtimes: list[DeviceRuntime] = []         # by device
        self.defaults: list[ProgramStream] = []
        self.streams: list[ProgramStream] = []
        self.to_destroy: list[ProgramStream] = []
        self.capturing: list[ProgramStream] = []        # by the driver, or as members of `captures`
        self.captures: list[GraphCapture] = []
        self.graphs: list[ProgramGraph] = []
        self.after_captures: list[Callable[[], None]] = []      # what cannot be done while there are any
        self.neighbour_stream: ProgramStream | None = None
        self.asides: list[int] = []         # streams that no step chooses, by device

    def runtime_of(self, what: ProgramStream | Item) -> DeviceRuntime:
        """The runtime of the device that a stream or a block belongs to."""
        return self.runtimes[what.device]

    def draw_device(self, rng: Random) -> int:
        return rng.choice(self.devices) if len(self.devices) > 1 else 0

    def add_stream(self, kind: str, argument: Any, handle: int, discipline: str,
                   closing: bool = False, device: int = 0) -> ProgramStream:
        stream = ProgramStream(self.next_number("stream"), kind, argument, handle, discipline, device)
        if stream.number >= WORDS:
            raise NothingToDo
        stream.closing = closing
        with self.lock:
            self.streams.append(stream)
        return stream

    def add_own(self, rng: Random, device: int = 0) -> None:
        discipline = rng.choice(self.kind.disciplines)
        acquired = self.runtimes[device].acquire_stream(discipline=discipline, priority=rng.choice([0, 0, -1]))
        stream = self.add_stream("own", acquired, acquired.handle, discipline, device=device)
        self.say(f"{stream} = {self.name_of(device)}.acquire_stream(discipline={discipline!r})")

    def name_of(self, device: int) -> str:
        """The runtime of a device, in the script."""
        return f"runtimes[{device}]" if len(self.devices) > 1 else "runtime"

    def add_foreign(self, rng: Random) -> None:
        """A stream created outside xlogmem, registered with a discipline or without."""
        self.end_captures()                 # a handle that came back unregisters its old stream, which synchronizes
        device = self.draw_device(rng)
        with self.context(device):
            flags = 1 if rng.random() < .8 else 0
            handle = int(sure(cuda.cuStreamCreate, flags))
        raw = rng.random() < .5
        stream = self.add_stream("raw" if raw else "object", handle if raw else ForeignStream(handle), handle,
                                 "ordinary", closing=True, device=device)
        stream.blocking = not flags
        discipline = rng.choice([None, None, "ordinary", "opaque", "sealed"])
        self.say(f"{stream} = {stream.kind} stream; {self.name_of(device)}.register_stream({stream}, "
                 f"discipline={discipline!r})")
        try:
            for attempt in range(5):        # a failure, or the old registration of a handle that came back is busy
                try:
                    registered = self.runtimes[device].register_stream(stream.argument, discipline=discipline)
                    break
                except XlogmemError as error:
                    if attempt == 4 or not self.excuses(error):
                        raise
            stream.discipline = registered.discipline
            if raw:
                stream.library_stream = registered
            if registered.discipline != (discipline or "ordinary"):
                self.violation(f"{stream} was registered as {discipline}, and is {registered.discipline}")
            stream.closing = False
        finally:
            if stream.closing:              # never registered, never used
                self.forget(stream)
                self.destroy(stream)

    def stream_of_neighbour(self) -> ProgramStream:
        """A stream of the other runtime, which no step chooses."""
        assert self.neighbour is not None
        with self.lock:
            if self.neighbour_stream is None:
                acquired = self.neighbour.acquire_stream()
                stream = ProgramStream(self.next_number("stream"), "own", acquired.handle, acquired.handle, "ordinary")
                stream.library_stream = acquired
                self.neighbour_stream = stream
            return self.neighbour_stream

    def forget(self, stream: ProgramStream) -> None:
        with self.lock:
            stream.closing = True
            if stream in self.streams:
                self.streams.remove(stream)

    def destroy(self, stream: ProgramStream) -> None:
        self.end_capture(stream)
        stream.gone = True
        if stream.kind == "raw":
            sure(cuda.cuStreamDestroy, stream.handle)
        stream.argument = None

    def usable(self, stream: ProgramStream) -> bool:
        if stream.capture is not None or (stream.kind == "legacy" and any(
                member.blocking for capture in self.captures for member in capture.words)):
            return False
        return not stream.closing and (stream.thread is None or stream.thread == threading.get_ident())

    def reserve_stream(self, rng: Random, *kinds: str) -> ProgramStream:
        """Choose a stream of these kinds that is not in use, and keep every other step from it."""
        with self.lock:
            choice = [stream for stream in self.streams
                      if stream.kind in kinds and self.usable(stream) and not stream.busy
                      and stream not in self.capturing]
            if not choice:
                raise NothingToDo
            stream = rng.choice(choice)
            stream.closing = True
        return stream

    @contextlib.contextmanager
    def on(self, rng: Random, among: list[ProgramStream] | None = None) -> Iterator[ProgramStream]:
        """A stream that is not closed meanwhile."""
        stream = self.enter_stream(rng, among)
        try:
            yield stream
        finally:
            self.leave_stream(stream)

    def enter_stream(self, rng: Random, among: list[ProgramStream] | None = None) -> ProgramStream:
        with self.lock:
            choice = [stream for stream in (self.streams if among is None else among) if self.usable(stream)]
            if not choice:
                raise NothingToDo
            stream = rng.choice(choice)
            stream.busy += 1
        return stream

    def enter_stream_anywhere(self, rng: Random) -> ProgramStream:
        """A stream for a recorded use, which may be a part of a graph."""
        with self.lock:
            members = [member for capture in self.captures for member in capture.members]
            if members and rng.random() < .6:
                stream = rng.choice(members)
                stream.busy += 1
                return stream
        return self.enter_stream(rng)

    def leave_stream(self, stream: ProgramStream) -> None:
        with self.lock:
            stream.busy -= 1

    def argument(self, stream: ProgramStream, rng: Random) -> Any:
        """One of the arguments that mean this stream."""
        if len(self.devices) > 1 and stream.kind in ("legacy", "thread"):       # their handles mean the current device
            return self.runtimes[stream.device].register_stream(stream.argument)
        own = stream.library_stream
        return own if own is not None and rng.random() < .3 else stream.argument

    # ------------------------------------------------------------------------------------------ captures
    def begin_capture(self, stream: ProgramStream) -> None:
        with self.context(stream.device):
            sure(cuda.cuStreamBeginCapture, stream.handle, cuda.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED)
        self.capturing.append(stream)

    def end_capture(self, stream: ProgramStream) -> None:
        if stream not in self.capturing:
            return
        if stream.capture is not None:
            if self.depth:                  # a call around this gap may need the capture
                raise NothingToDo
            stream.capture.end(stream.capture)
            return
        self.capturing.remove(stream)
        with self.context(stream.device):
            result = cuda.cuStreamEndCapture(stream.handle)
        if int(result[0]):
            self.violation(f"the capture on {stream} was invalidated: {result[0].name}")
        else:
            check(cuda.cuGraphDestroy(result[1]))

    def end_captures(self) -> None:
        self.end_raw_captures()
        while self.captures:
            self.end_capture(self.captures[-1].first)

    def end_raw_captures(self) -> None:
        """Those that make no graph."""
        for stream in [stream for stream in self.capturing if stream.capture is None]:
            self.end_capture(stream)

    def ready_for_work(self, stream: ProgramStream) -> None:
        """End the captures that forbid that the program queues work on this stream."""
        self.end_capture(stream)
        if stream.kind == "legacy":         # not allowed while a blocking stream captures
            self.end_raw_captures()

    def synchronize(self) -> None:
        """End all captures and synchronize the contexts of all devices."""
        self.end_captures()
        for device in self.devices:
            with self.context(device):
                sure(cuda.cuCtxSynchronize)
