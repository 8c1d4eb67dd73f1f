"""Sockets of processes: their paths, and the process and user at the other end."""
from __future__ import annotations

import os
import socket
import stat
import struct
import tempfile
from pathlib import Path
from typing import NamedTuple

from xlogmem._base.private import private_folder

__all__ = ["LONGEST", "Peer", "folders", "own_folder", "peer_of", "socket_of"]

LONGEST = 107                               # bytes of a socket's path, by the kernel's interface
CREDENTIALS = struct.Struct("3i")           # struct ucred


class Peer(NamedTuple):
    """The process at the other end of a socket."""

    pid: int
    uid: int
    gid: int


def folders() -> list[Path]:
    """Folders where a process of this user may have its socket; this process has its own in the first."""
    temporary = Path(tempfile.gettempdir(), f"xlogmem-{os.geteuid()}")
    given = os.environ.get("XDG_RUNTIME_DIR")
    return [Path(given, "xlogmem"), temporary] if given and is_own(given) else [temporary]


def is_own(folder: str) -> bool:
    """True if the folder exists and is this user's.  In a container, and after `su`, XDG_RUNTIME_DIR often
    names a missing folder, or another user's."""
    try:
        found = os.stat(folder)
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()


def own_folder(folder: Path, *, make: bool = False) -> Path:
    """The folder, if no other user can have put anything into it; else `private_folder` raises."""
    with private_folder(folder, make=make, remedy="set XDG_RUNTIME_DIR to a folder of your own") as opened:
        return opened.path


def socket_of(folder: Path, pid: int) -> Path:
    """The socket of a process.

    Raises
    ------
    OSError
        Its path is too long for the kernel.
    """
    path = folder / f"{pid}.sock"
    if len(os.fsencode(path)) > LONGEST:
        raise OSError(f"{path} is longer than the {LONGEST} bytes that the path of a socket may have: set "
                      "XDG_RUNTIME_DIR to a shorter one")
    return path


def peer_of(connection: socket.socket) -> Peer:
    """The process at the other end of a connection, as the kernel reports it."""
    return Peer(*CREDENTIALS.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)))
