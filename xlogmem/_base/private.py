"""Folders that are this user's alone, and new files in folders: no name that another user may have laid is followed.

A path leads elsewhere once its folder was moved or removed, so files are made relative to a folder that is open.
"""
from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

__all__ = ["Folder", "private_folder"]

FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
NEW = os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class Folder:
    """An open folder.  A context manager, which closes it.

    Once the folder is removed, no file can be made in it: what stands at its path by then is another folder.

    Raises
    ------
    OSError
        The path cannot be opened, or is not a folder.
    """

    def __init__(self, path: str | os.PathLike[str], flags: int = 0) -> None:
        self.path = Path(path)
        self.descriptor = os.open(path, FOLDER | flags)
        found = os.fstat(self.descriptor)
        self._identity = found.st_dev, found.st_ino

    def is_open(self) -> bool:
        """True if the descriptor still is this folder's: programs that become daemons close descriptors of others."""
        try:
            found = os.fstat(self.descriptor)
        except OSError:
            return False
        return self._identity == (found.st_dev, found.st_ino)

    def new_file(self, name: str, flags: int = os.O_WRONLY, mode: int = 0o600) -> int:
        """Make a file and return its descriptor.

        Raises
        ------
        FileExistsError
            There is something of that name, be it a link.
        OSError
            The file cannot be made.
        """
        if not self.is_open():
            raise FileNotFoundError(f"{self.path} was closed")
        return os.open(name, NEW | flags, mode, dir_fd=self.descriptor)

    @contextmanager
    def replacing(self, name: str, mode: int = 0o600) -> Iterator[BinaryIO]:
        """A new file, which replaces any other of this name at the end of the ``with`` statement: a reader of this
        name sees all of the file or nothing of it.  After an error nothing is left of the file.

        Raises
        ------
        OSError
            The file cannot be made or written.
        """
        part = f"{name}.{os.getpid()}.part"
        self.remove(part)                               # of a process that was killed, with the same number
        try:
            with open(self.new_file(part, mode=mode), "wb") as file:
                yield file
            os.rename(part, name, src_dir_fd=self.descriptor, dst_dir_fd=self.descriptor)
        except BaseException:
            with suppress(OSError):
                self.remove(part)
            raise

    def names(self) -> list[str]:
        """The names of the folder's entries."""
        return os.listdir(self.descriptor)

    def has(self, name: str) -> bool:
        """True if there is something of that name."""
        try:
            os.lstat(name, dir_fd=self.descriptor)
        except FileNotFoundError:
            return False
        return True

    def read(self, name: str, most: int = -1) -> bytes:
        """The content of a file, which is not a link; of a longer one the first `most` bytes (-1: all).

        Raises
        ------
        OSError
            It cannot be read.
        """
        with open(os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self.descriptor), "rb") as file:
            return file.read(most)

    def remove(self, name: str) -> None:
        """Remove a file, or a link itself, if there is one of that name."""
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self.descriptor)

    def close(self) -> None:
        """Close the folder; a second call does nothing."""
        if self.descriptor >= 0 and self.is_open():
            os.close(self.descriptor)
        self.descriptor = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 traceback: TracebackType | None) -> None:
        self.close()


def private_folder(path: str | os.PathLike[str], *, make: bool = False, remedy: str = "remove it") -> Folder:
    """Open a folder in which no other user can have put anything.  `remedy` ends the error about what another user has
    there.

    Raises
    ------
    FileNotFoundError
        It does not exist.
    PermissionError
        It is another user's, or others may enter it.
    NotADirectoryError
        It is something else, such as a link.
    """
    if make:
        with suppress(FileExistsError):                 # which is looked at below
            os.mkdir(path, 0o700)
    named = os.lstat(path)
    if not stat.S_ISDIR(named.st_mode):
        raise NotADirectoryError(f"{os.fspath(path)} is not a folder: remove it")
    refuse_foreign(path, named, remedy)                 # such a folder may not be open to us
    folder = Folder(path, os.O_NOFOLLOW)
    try:
        refuse_foreign(path, os.fstat(folder.descriptor), remedy)
    except BaseException:
        folder.close()
        raise
    return folder


def refuse_foreign(path: str | os.PathLike[str], found: os.stat_result, remedy: str) -> None:
    if found.st_uid != os.geteuid():
        raise PermissionError(f"{os.fspath(path)} belongs to user {found.st_uid}, not to user {os.geteuid()}: {remedy}")
    if found.st_mode & 0o077:
        raise PermissionError(f"other users may enter {os.fspath(path)}: chmod 700 {os.fspath(path)}")
