"""What two processes say to each other about shared memory: messages, their channel, and what a peer has.

Nothing here calls CUDA: `between_processes.py` does.  docs/sharing.md has the rules by name.
"""
from __future__ import annotations

import enum
import os
import select
import socket
import struct
from collections.abc import Sequence
from typing import Generic, NamedTuple, TypeVar

__all__ = ["Bye", "Channel", "Chunk", "Closed", "Events", "Export", "Exports", "Failed", "Hello", "Malformed",
           "Message", "PeerState", "Ready", "Release", "Report", "Share", "check_share", "decode", "encode",
           "process_ended"]

MAGIC, VERSION = b"XLIP", 1
HANDLE = 64                                 # bytes of CUmemPoolPtrExportData, and of CUipcEventHandle
LONGEST = 512                               # a message; no field of it says how long it is
READ, WRITE = 1, 2


class Malformed(Exception):
    """The peer said something that it cannot mean.  It is treated as lost (rule *lost-peer*)."""


class Closed(Exception):
    """The other end of the channel is closed."""


class Hello(NamedTuple):
    """The first message of the exporter; two file descriptors come with it: the pool, and memory of the host."""

    task: int
    slots: int
    rounds: int
    delay: int
    ordered: int
    host_bytes: int


class Ready(NamedTuple):
    """The importer has its context and its kernels."""


class Events(NamedTuple):
    """The two events of a slot: recorded by the exporter, and by the importer."""

    slot: int
    frontier: bytes
    release: bytes


class Chunk(NamedTuple):
    """An allocation of the exported pool, imported once."""

    number: int
    nbytes: int
    pointer: bytes


class Share(NamedTuple):
    """The descriptor: a block, part of a chunk with its generation, and a frontier, the slot whose event covers it."""

    slot: int
    serial: int
    chunk: int
    offset: int
    nbytes: int
    generation: int
    access: int
    value: int


class Release(NamedTuple):
    """All work of the importer on the block is queued, and the slot's second event was recorded behind it."""

    slot: int
    serial: int
    generation: int


class Bye(NamedTuple):
    """The exporter has nothing more."""


class Report(NamedTuple):
    """What the importer has found, when all its work was complete."""

    rounds: int
    wrong_rounds: int
    wrong_words: int


class Failed(NamedTuple):
    """An error of the importer; the text is cut off."""

    text: bytes


Message = Hello | Ready | Events | Chunk | Share | Release | Bye | Report | Failed
HEADER = struct.Struct("<4sBB")
FORMS: dict[type[Message], tuple[int, struct.Struct]] = {
    kind: (number, struct.Struct("<" + form)) for number, (kind, form) in enumerate({
        Hello: "BHIQBQ", Ready: "", Events: f"H{HANDLE}s{HANDLE}s", Chunk: f"IQ{HANDLE}s", Share: "HQIQQQBQ",
        Release: "HQQ", Bye: "", Report: "IIQ", Failed: "400s"}.items(), 1)}
KINDS = {number: (kind, form) for kind, (number, form) in FORMS.items()}
DESCRIPTORS: dict[type[Message], int] = {Hello: 2}                  # file descriptors that come with a message


def encode(message: Message) -> bytes:
    number, form = FORMS[type(message)]
    for name, value in zip(message._fields, message, strict=True):
        if isinstance(value, bytes) and len(value) != HANDLE and not isinstance(message, Failed):
            raise ValueError(f"{name} has {len(value)} bytes, not {HANDLE}")      # struct would fill it up
    return HEADER.pack(MAGIC, VERSION, number) + form.pack(*message)


def decode(data: bytes) -> Message:
    """Refuses whatever `encode` does not make."""
    if len(data) < HEADER.size:
        raise Malformed(f"a message of {len(data)} bytes")
    magic, version, number = HEADER.unpack_from(data)
    if magic != MAGIC or version != VERSION or number not in KINDS:
        raise Malformed(f"a message that begins with {data[:HEADER.size]!r}")
    kind, form = KINDS[number]
    if len(data) != HEADER.size + form.size:
        raise Malformed(f"{kind.__name__} of {len(data)} bytes, not {HEADER.size + form.size}")
    return kind(*form.unpack_from(data, HEADER.size))


class Channel:
    """One end of a pair of sockets that keep the bounds of messages.  It has no name, so no third process has it."""

    def __init__(self, end: socket.socket) -> None:
        self.socket = end

    @classmethod
    def pair(cls) -> tuple[Channel, Channel]:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        return cls(ours), cls(theirs)

    def send(self, message: Message, descriptors: Sequence[int] = (), timeout: float = 10) -> None:
        self.socket.settimeout(timeout)
        try:
            if descriptors:
                socket.send_fds(self.socket, [encode(message)], descriptors)
            else:
                self.socket.send(encode(message))
        except (BrokenPipeError, ConnectionResetError):
            raise Closed from None

    def receive(self, timeout: float = 10) -> tuple[Message, list[int]]:
        """The next message and its descriptors, which are the caller's; TimeoutError, Closed or Malformed."""
        self.socket.settimeout(timeout)
        try:
            data, ancillary, flags, _ = self.socket.recvmsg(LONGEST, socket.CMSG_SPACE(16 * 4), socket.MSG_CMSG_CLOEXEC)
        except BlockingIOError:                         # a timeout of zero
            raise TimeoutError from None
        except ConnectionResetError:
            raise Closed from None
        descriptors = [number for level, kind, content in ancillary
                       if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS)
                       for number in struct.unpack(f"{len(content) // 4}i", content[:len(content) // 4 * 4])]
        try:
            if not data and not descriptors:
                raise Closed
            if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
                raise Malformed(f"a message of more than {LONGEST} bytes, or of too many descriptors")
            message = decode(data)
            if len(descriptors) != DESCRIPTORS.get(type(message), 0):
                raise Malformed(f"{type(message).__name__} with {len(descriptors)} descriptors")
        except BaseException:
            for number in descriptors:
                os.close(number)
            raise
        return message, descriptors

    def close(self) -> None:
        self.socket.close()


def process_ended(pidfd: int, timeout: float) -> bool:
    """Whether the process has ended, all of its threads; it may not have been reaped."""
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(timeout * 1000))


# ---------------------------------------------------------------------------------------------- the importer
def check_share(share: Share, chunks: dict[int, int], slots: int, taken: dict[int, Share], last: int) -> None:
    """Refuses a descriptor that is not of this connection.  `chunks` has their bytes, `last` is the serial before."""
    size = chunks.get(share.chunk)
    if size is None:
        raise Malformed(f"a block of chunk {share.chunk}, which was not announced")
    if share.nbytes == 0 or share.offset > size or share.nbytes > size - share.offset:
        raise Malformed(f"a block of {share.nbytes} bytes at {share.offset} of a chunk of {size}")
    if share.slot >= slots or share.slot in taken:
        raise Malformed(f"a block in slot {share.slot}, which is taken or not there")
    if share.serial != last + 1:
        raise Malformed(f"the block with number {share.serial} after {last}")
    if share.access not in (READ, WRITE):
        raise Malformed(f"access {share.access}")
    for other in taken.values():
        if other.generation == share.generation:
            raise Malformed(f"generation {share.generation} again")
        apart = share.offset + share.nbytes <= other.offset or other.offset + other.nbytes <= share.offset
        if other.chunk == share.chunk and not apart and WRITE in (share.access, other.access):
            raise Malformed("a block that overlaps another")


# ---------------------------------------------------------------------------------------------- the exporter
class PeerState(enum.Enum):
    OPEN = "open"                           # the peer is there
    LOST = "lost"                           # nothing is heard of it any more; its work may go on
    ENDED = "ended"                         # its work is known to be over


Kept = TypeVar("Kept")


class Export(NamedTuple, Generic[Kept]):
    """A block that the peer has, and what keeps it from being freed."""

    slot: int
    serial: int
    generation: int
    kept: Kept


class Exports(Generic[Kept]):
    """What a peer has of this process.

    An export is *open* until the peer has returned it, then *returned* until the work that the peer queued before that
    is known to be complete, or is waited for by the device.  The exports of a lost peer stay, in quarantine, until its
    work is known to be over (rule *quarantine*); if that cannot be known, for ever.
    """

    def __init__(self, slots: int, end_is_known: bool = True) -> None:
        self.state = PeerState.OPEN
        self.end_is_known = end_is_known
        self._free = list(range(slots))
        self._serial = 0
        self._open: dict[int, Export[Kept]] = {}
        self._returned: dict[int, Export[Kept]] = {}

    def __len__(self) -> int:
        return len(self._open) + len(self._returned)

    @property
    def full(self) -> bool:
        return not self._free

    @property
    def returned(self) -> list[Export[Kept]]:
        """Those whose work is not known to be complete, in the order of their return."""
        return list(self._returned.values())

    def export(self, generation: int, kept: Kept) -> Export[Kept]:
        if self.state is not PeerState.OPEN:
            raise Closed
        if not self._free:
            raise RuntimeError("every slot is taken: wait for a release")
        self._serial += 1
        export = Export(self._free.pop(0), self._serial, generation, kept)
        self._open[export.slot] = export
        return export

    def accept(self, release: Release) -> Export[Kept]:
        """The peer says that it has returned a block."""
        export = self._open.get(release.slot)
        if self.state is not PeerState.OPEN or export is None or \
                (export.serial, export.generation) != (release.serial, release.generation):
            raise Malformed(f"the return of {release}, which is not exported")
        self._returned[export.slot] = self._open.pop(export.slot)
        return export

    def settle(self, export: Export[Kept]) -> Kept:
        """The peer's work on a returned block is complete, or is waited for: the export is over."""
        if self._returned.get(export.slot) is not export:
            raise RuntimeError(f"{export} was not returned")
        del self._returned[export.slot]
        self._free.append(export.slot)
        return export.kept

    def lose(self) -> None:
        """The channel is closed, or the peer said what it cannot mean.  No export ends."""
        if self.state is PeerState.OPEN:
            self.state = PeerState.LOST

    def end(self) -> list[Kept]:
        """The process of the peer has ended: what its exports kept, all of it, if that says that its work is over."""
        if self.state is PeerState.OPEN:
            raise RuntimeError("the peer was not lost")
        if self.state is PeerState.LOST and self.end_is_known:
            self.state = PeerState.ENDED
        if self.state is not PeerState.ENDED:
            return []
        kept = [export.kept for export in (*self._open.values(), *self._returned.values())]
        self._open.clear()
        self._returned.clear()
        return kept
