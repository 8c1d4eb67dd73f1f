"""Streams, blocks, exports and windows as the program knows them: the model that the library is held against."""
from __future__ import annotations

import threading
from typing import Any

from xlogmem_bench._loops import NativeUse

from xlogmem.blocks import BlockId, DeviceBlock
from xlogmem.launch import LaunchRecorder

__all__ = ["PARTS", "READ", "READ_WRITE", "WRITE", "Claim", "Export", "Item", "Part", "ProgramStream", "Window"]

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

    def __repr__(self) -> str:
        return f"B{self.number}"


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


class Claim:
    """The parts of one block that one use may touch, from before its prepare until after its finish."""

    def __init__(self, item: Item, access: str, parts: list[int], values: list[int]) -> None:
        self.item = item
        self.alone = not item.open          # no other window is open on the block
        self.use = item.uses = item.uses + 1
        self.access = access
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
        self.thread = threading.current_thread()        # that opened it; any may close it
