"""Reading figures that another process publishes."""
from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from xlogmem.observe.live.figures import ProcessFigures
from xlogmem.observe.live.sockets import folders, own_folder, peer_of, socket_of

__all__ = ["EndedError", "LiveError", "UnpublishedError", "published_under", "read"]

PATIENCE = 5.0                              # seconds for an answer: a snapshot of ten thousand blocks takes 0.1
LARGEST = 1 << 24                           # bytes of an answer


class LiveError(Exception):
    """The figures of a process cannot be read."""


class EndedError(LiveError):
    """There is no such process, or not any more."""


class UnpublishedError(LiveError):
    """The process does not publish its figures."""


class Process(NamedTuple):
    """Parent and user of a process, as the kernel reports them."""

    parent: int
    uid: int


def find_process(pid: int) -> Process:
    """One that runs.

    Raises
    ------
    EndedError
        There is none of that number.
    """
    try:
        lines = Path(f"/proc/{pid}/status").read_text(errors="replace").splitlines()
    except (FileNotFoundError, ProcessLookupError):
        raise EndedError(f"there is no process {pid}") from None
    fields = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
    if fields["State"].startswith(("Z", "X")):
        raise EndedError(f"process {pid} has ended")
    return Process(int(fields["PPid"]), int(fields["Uid"].split()[1]))


def read(pid: int) -> ProcessFigures:
    """The figures of a process.

    Raises
    ------
    EndedError
        There is no such process.
    UnpublishedError
        It does not publish any.
    LiveError
        It is another user's, does not answer in time, or the answer is damaged.
    """
    process = find_process(pid)
    if process.uid != os.geteuid():
        raise LiveError(f"process {pid} is of user {process.uid}, and this is user {os.geteuid()}: only the same user "
                        "can see its figures")
    try:
        connection = connected(pid)
        with connection:
            line = received(connection, pid)
    except TimeoutError as error:
        raise LiveError(f"process {pid} did not answer within {PATIENCE:g} s: is it stopped?") from error
    except ConnectionError as error:
        raise LiveError(f"process {pid} broke off its answer: {error}") from error
    return parsed(line, pid)


def connected(pid: int) -> socket.socket:
    """A connection to the process, where it may have its socket."""
    for folder in folders():
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.settimeout(PATIENCE)
        try:
            connection.connect(str(socket_of(own_folder(folder), pid)))
        except (FileNotFoundError, ConnectionRefusedError):     # not here, or left by a process of the same number
            connection.close()
            continue
        except OSError as error:
            connection.close()
            if isinstance(error, TimeoutError):
                raise
            raise LiveError(str(error)) from error
        if (uid := peer_of(connection).uid) != os.geteuid():
            connection.close()
            raise LiveError(f"user {uid} answers in {folder} for process {pid}, which is not theirs")
        return connection
    raise UnpublishedError(
        f"process {pid} does not publish its figures: start it with XLOGMEM_PUBLISH=1 in its environment, or have it "
        f"call xlogmem.publish() (there is no socket of it in {' or '.join(map(str, folders()))})")


def received(connection: socket.socket, pid: int) -> bytes:
    """The line that the process writes, or its beginning."""
    until, pieces, count = time.monotonic() + PATIENCE, [], 0
    while piece := connection.recv(1 << 16):
        pieces.append(piece)
        count += len(piece)
        if piece.endswith(b"\n"):                       # the end may not come: a child may have a copy of the socket
            break
        if count > LARGEST:
            raise LiveError(f"the answer of process {pid} is damaged: it is longer than {LARGEST} bytes")
        if time.monotonic() > until:
            raise TimeoutError
    return b"".join(pieces)


def parsed(line: bytes, pid: int) -> ProcessFigures:
    if not line:
        raise LiveError(f"process {pid} ended its answer before it began; its log says why")
    if not line.endswith(b"\n"):
        raise LiveError(f"the answer of process {pid} is damaged: it was cut off after {len(line)} bytes")
    try:
        figures = ProcessFigures.parse(line)
    except ValueError as error:
        raise LiveError(f"the answer of process {pid} is damaged: {error}") from error
    if figures.pid != pid:
        raise LiveError(f"process {figures.pid} answers for process {pid}: are they in different PID namespaces?")
    return figures


def published_under(pid: int) -> Iterator[int]:
    """The numbers of the processes that publish, among this one and those that it has started.

    Raises
    ------
    LiveError
        A folder of sockets is not this user's own.
    """
    for folder in folders():
        try:
            names = sorted(own_folder(folder).glob("*.sock"))
        except FileNotFoundError:
            continue
        except OSError as error:
            raise LiveError(str(error)) from error
        for name in names:
            if name.stem.isdecimal() and len(name.stem) < 20 and descends(int(name.stem), pid):
                yield int(name.stem)


def descends(pid: int, ancestor: int) -> bool:
    """True if a process is `ancestor`, or was started by it, or by one that it has started."""
    try:
        while pid > 1 and pid != ancestor:
            pid = find_process(pid).parent
    except EndedError:
        return False
    return pid == ancestor
