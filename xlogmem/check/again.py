"""A program that uses what a library does not have on the driver's pool: it is started again on the library's own.

`needs_own_pools` is what the process says that comes to such a feature, and `Listener` what the command hears, by a
pipe in the folder of the check.  The command ends the program, with all that it has started, and runs it once more.
"""
from __future__ import annotations

import errno
import functools
import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

__all__ = ["Listener", "announced", "end_processes", "needs_own_pools"]

PIPE = "again"
PATIENCE = 60                                           # seconds for the command to end this process
GRACE = 5                                               # seconds for processes to end by themselves


def needs_own_pools(feature: str, library: str) -> None:
    """Say it to the command, which ends this process.

    Raises
    ------
    RuntimeError
        There is no command: these are tests, or the command is gone.
    """
    text = f"{feature}, which {library} does not have on the driver's pool"
    try:
        say(text)
    except OSError as error:
        raise RuntimeError(
            f"xlogmem check: the program uses {text}, and the check has put that in the place of {library}'s own: set "
            "XLOGMEM_CHECK_POOLS=real, or run `xlogmem check --pools real`") from error
    time.sleep(PATIENCE)
    raise RuntimeError(f"xlogmem check: the program uses {text}: check it with --pools real")


def announced(function: Callable[..., Any], feature: str, library: str) -> Callable[..., Any]:
    """The function, which says first that the program needs the library's own pools."""
    @functools.wraps(function)
    def call(*arguments: Any, **keywords: Any) -> Any:
        needs_own_pools(feature, library)
        return function(*arguments, **keywords)

    return call


def say(text: str) -> None:
    folder = os.environ.get("XLOGMEM_CHECK")
    if folder is None:
        raise OSError(errno.ENOENT, "no command has started this process")
    pipe = os.open(Path(folder, PIPE), os.O_WRONLY | os.O_NONBLOCK)         # an error where no command listens
    try:
        os.write(pipe, f"{text}\n".encode()[:1024])     # at once: several processes may come to it
    finally:
        os.close(pipe)


class Listener:
    """Waits for a process of the program to say that it needs other pools, and ends the program then.

    Attributes
    ----------
    reason : str
        What the program needs; empty as long as it has not said anything.
    """

    def __init__(self, folder: str) -> None:
        self.reason = ""
        self._folder = folder
        os.mkfifo(Path(folder, PIPE))
        self._pipe = os.open(Path(folder, PIPE), os.O_RDWR)     # for both: it has no end while this is open
        self._thread = threading.Thread(target=self._listen, name="xlogmem check", daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        text = os.read(self._pipe, 4096).decode(errors="replace")
        self.reason = text.split("\n")[0]
        if self.reason:
            end_processes(self._folder)

    def close(self) -> None:
        """After the end of the program; what it has started is gone, too, if there is a reason."""
        os.write(self._pipe, b"\n")
        self._thread.join()
        os.close(self._pipe)


def end_processes(folder: str) -> None:
    """End all processes of this check: they have its folder in their environment."""
    for what in (signal.SIGTERM, signal.SIGKILL):
        deadline = time.monotonic() + GRACE
        reached: set[int] = set()
        while running := processes_of(folder):
            if time.monotonic() > deadline:
                break
            for process in running - reached:           # others may have been started meanwhile
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(process, what)
            reached |= running
            time.sleep(0.02)


def processes_of(folder: str) -> set[int]:
    """Those that run: one that has ended, and that its parent has not looked at, has no environment any more."""
    wanted = f"XLOGMEM_CHECK={folder}".encode()
    found = set()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        with suppress(OSError):                         # it has just ended, or is another user's
            if wanted in (entry / "environ").read_bytes().split(b"\0"):
                found.add(int(entry.name))
    return found
