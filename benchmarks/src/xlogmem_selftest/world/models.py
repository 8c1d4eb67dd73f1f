"""Streams, blocks, exports and windows as the program knows them: the model that the library is held against."""
from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from xlogmem_bench._loops import NativeUse

from xlogmem.blocks import BlockId, DeviceBlock
from xlogmem.launch import Graph, LaunchRecorder

__all__ = ["PARTS", "READ", "READ_WRITE", "WRITE", "CapturedItem", "Claim", "Export", "GraphCapture", "GraphUse",
           "Item", "Part", "ProgramGraph", "ProgramStream", "Window"]

READ, WRITE, READ_WRITE = "read", "write", "read_write"
PARTS = 4                                   # of a block: windows that overlap may write different ones


class ProgramStream:
    """A stream as the program knows it.

    `kind` is own (of the runtime's pool), object (a foreign stream object), raw (a bare handle), legacy or thread (the
    default streams).  `argument` is what the runtime is given for it.  `busy` counts the program's calls and windows
    there: the program does not close a stream meanwhile.
    """

    def __init__(self, number: int, kind: str, argument: Any, handle: int, discipline: str, device: int = 0) -> None:
        self.number = number
        self.device = device
        self.kind = kind
        self.argument = argument
        self.handle = handle
        self.discipline = discipline
        self.blocking = kind in ("legacy", "thread")    # ordered with the legacy default stream
        self.capture: GraphCapture | None = None        # that it takes part in
        self.registration = 0
        self.busy = 0
        self.closing = False
        self.gone = False
        self.library_stream: Any = None     # the Stream that registering a handle returned
        self.thread = threading.get_ident() if kind == "thread" else None

    def __repr__(self) -> str:
        return f"S{self.number}"


class Part:
    """A quarter of a block: the value that every word of it has once the work queued so far is done."""

    def __init__(self) -> None:
        self.value: int | None = None
        self.readers = 0
        self.writer = False
        self.elsewhere = False              # a range that a use on another stream has named has it


class Item:
    """A block as the program knows it."""

    def __init__(self, number: int, block: DeviceBlock, stream: ProgramStream | None) -> None:
        self.number = number
        self.device = block.device_id
        self.block: DeviceBlock | None = block
        self.id: BlockId = block.id
        self.ptr = block.ptr
        self.nbytes = block.nbytes
        self.stream = self.home = stream
        self.registration = stream.registration if stream else 0
        self.parts = [Part() for _ in range(PARTS)]
        self.open = 0                       # windows of the program
        self.uses = 0                       # begun so far
        self.elsewhere = 0                  # uses on other streams that were begun and not cancelled
        self.ranges_elsewhere = 0           # those of them that have named ranges
        self.gone = False
        self.held = 0                       # steps that need it to stay
        self.adopted = False
        self.on_host = False                # page-locked memory
        self.from_neighbour = False         # adopted from another runtime: freed on its own stream only
        self.unsure = False                 # a failure left open where it will be freed
        self.quiet = False                  # no unrecorded work any more: the library does not promise to wait for it
        self.awaits_handback = False        # ... until its home was ordered after every use elsewhere
        self.last_opaque: tuple[ProgramStream, int] | None = None    # the newest use was there, and wrote
        self.exports: list[Export] = []     # not released yet
        self.interfaces: list[Export] = []  # read by a consumer, which may work there until the block is freed

    @property
    def idle(self) -> bool:
        return not self.open and not any(part.readers or part.writer for part in self.parts)

    def launched(self, i: int, access: str, value: int) -> None:
        """Work on a part was queued that leaves this value."""
        if access != READ:
            self.parts[i].value = value

    def __repr__(self) -> str:
        return f"B{self.number}"


class CapturedItem(Item):
    """A block in a capture, with the values that its parts have there.  `home`: where unrecorded work is allowed."""

    def __init__(self, item: Item, home: ProgramStream | None) -> None:
        self.of = item
        assert item.block is not None or item.gone
        self.number, self.device, self.id, self.ptr, self.nbytes = (
            item.number, item.device, item.id, item.ptr, item.nbytes)
        self.stream = self.home = home
        self.registration = home.registration if home else 0
        self.parts = [Part() for _ in range(PARTS)]
        for part, outside in zip(self.parts, item.parts, strict=True):
            part.value = outside.value
        self.open = self.uses = self.elsewhere = self.ranges_elsewhere = 0
        self.quiet = self.awaits_handback = False
        self.last_opaque = None
        self.named: str | None = None       # the access with which `capturing` names it
        self.homes = item.home, item.stream             # where new memory may have been filled
        self.consumers = [export for export in (*item.exports, *item.interfaces) if export.is_there]
        self.needs: dict[int, int] = {}     # by part: the value that the graph has to find
        self.gives: dict[int, int] = {}     # ... and the value that it leaves

    @property
    def block(self) -> DeviceBlock | None:  # type: ignore[override]
        return self.of.block

    @property
    def gone(self) -> bool:                 # type: ignore[override]
        return self.of.gone

    @property
    def held(self) -> int:
        return self.of.held

    @held.setter
    def held(self, count: int) -> None:
        self.of.held = count

    def launched(self, i: int, access: str, value: int) -> None:
        before = self.parts[i].value
        if access != WRITE and i not in self.gives and before is not None:
            self.needs.setdefault(i, before)
        if access != READ:
            self.gives[i] = value
        super().launched(i, access, value)


class GraphCapture:
    """A capture of a graph, by xlogmem or, if it `is_foreign`, by the driver.  `members` are the streams that take part
    and may be used; `end` ends it."""

    def __init__(self, first: ProgramStream, is_foreign: bool, number: int) -> None:
        self.first, self.is_foreign, self.number = first, is_foreign, number
        self.members: list[ProgramStream] = []
        self.unnamed: set[ProgramStream] = set()        # those that no call of xlogmem has named
        self.words: dict[ProgramStream, int] = {}       # the number of the word in which surprises are counted
        self.items: dict[Item, CapturedItem] = {}
        self.manager: AbstractContextManager[Graph] | None = None
        self.graph: Graph | None = None
        self.failed = False                 # ... on purpose, or by a call of the driver
        self.end: Callable[[GraphCapture], None]

    def __repr__(self) -> str:
        return f"G{self.number}"


class GraphUse:
    """What a launch of a graph does with a block."""

    def __init__(self, item: Item, needs: dict[int, int], gives: dict[int, int]) -> None:
        self.item, self.needs, self.gives = item, needs, gives

    def accesses(self) -> list[tuple[str, dict[int, int]]]:
        """For each kind of access the parts, with the values that they have afterwards."""
        return [(READ, {i: value for i, value in self.needs.items() if i not in self.gives}),
                (WRITE, {i: value for i, value in self.gives.items() if i not in self.needs}),
                (READ_WRITE, {i: value for i, value in self.gives.items() if i in self.needs})]


class ProgramGraph:
    """A graph that is ready.  `executable` is the driver's, where another library has captured it."""

    def __init__(self, capture: GraphCapture, graph: Graph, executable: int, uses: list[GraphUse]) -> None:
        self.number, self.device, self.graph = capture.number, capture.first.device, graph
        self.executable, self.uses = executable, uses
        self.busy = False

    def __repr__(self) -> str:
        return f"G{self.number}"


class Export:
    """A consumer has a block, and works on `stream`.

    `capsule` is what it holds until the export is released; None, if it read the interface.  `has_owner`: the library
    keeps the consumer's stream alive, which is so while the stream has this registration.
    """

    def __init__(self, capsule: Any, stream: ProgramStream, registration: int, has_owner: bool) -> None:
        self.capsule = capsule
        self.stream = stream
        self.registration = registration
        self.has_owner = has_owner

    @property
    def is_there(self) -> bool:
        """True if the consumer may work, and the library keeps its stream."""
        return self.has_owner and self.registration == self.stream.registration and not self.stream.gone


class Claim:
    """The parts of one block that one use may touch, from before its prepare until after its finish."""

    def __init__(self, item: Item, access: str, parts: list[int], values: list[int]) -> None:
        self.item = item
        self.alone = not item.open          # no other window is open on the block
        self.use = item.uses = item.uses + 1
        self.access = access
        self.in_ranges = False              # these parts alone are named to the library
        self.parts = parts
        self.values = values                # what it will write, for each part


class Window:
    """A window of the program: a launch that is prepared and not finished yet."""

    def __init__(self, recorder: LaunchRecorder | NativeUse | None, stream: ProgramStream, claims: list[Claim],
                 handback: str) -> None:
        self.recorder = recorder
        self.stream = stream
        self.claims = claims
        self.handback = handback
        self.capture = stream.capture
        self.thread = threading.current_thread()        # that opened it; any may close it
