"""Watching processes: one that runs, or a program and its children."""
from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from typing import IO, Any, Protocol

import click
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from xlogmem._base.texts import json_line, printable
from xlogmem.check.command import waited_for
from xlogmem.observe.live.figures import ProcessFigures
from xlogmem.observe.live.pictures import NOTHING, picture
from xlogmem.observe.live.reading import EndedError, LiveError, UnpublishedError, published_under, read

__all__ = ["JsonLines", "Screen", "Shown", "Texts", "follow", "run"]

DRAIN = 1.0                                 # seconds for output of a program's children after its end
STANDARD_ERROR = 2                          # the descriptor, also where sys.stderr is something else


class Shown(Protocol):
    """Output for pictures: JSON lines, text, or the screen."""

    def show(self, processes: list[ProcessFigures]) -> None: ...


class JsonLines:
    """One object a line, on standard output."""

    def show(self, processes: list[ProcessFigures]) -> None:
        print(json_line({"processes": [process.to_dict() for process in processes]}), flush=True)


class Texts:
    """One picture after the other, as text."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._before: dict[int, ProcessFigures] = {}

    def show(self, processes: list[ProcessFigures]) -> None:
        self._console.print(self._drawn(processes))

    def _drawn(self, processes: list[ProcessFigures]) -> Group:
        pictures = [picture(process, self._before.get(process.pid)) for process in processes]
        self._before = {process.pid: process for process in processes}
        return Group(*(pictures or [Text(NOTHING)]))


class Screen(Texts):
    """One picture, which the next one replaces."""

    def __init__(self, live: Live) -> None:
        super().__init__(live.console)
        self._live = live

    def show(self, processes: list[ProcessFigures]) -> None:
        self._live.update(self._drawn(processes), refresh=True)


def follow(pid: int, shown: Shown, interval: float, once: bool) -> None:
    """Show a process until it has ended.

    Raises
    ------
    LiveError
        Its figures cannot be read.
    """
    seen = False
    while True:
        try:
            process = read(pid)
        except (EndedError, UnpublishedError):          # its socket goes a little earlier than the process
            if not seen:
                raise
            click.echo(f"xlogmem top: process {pid} has ended", err=True)
            return
        shown.show([process])
        if once:
            return
        seen = True
        time.sleep(interval)


def run(command: list[str], shown: Shown, interval: float, once: bool, above: Console | None) -> int:
    """Run a program and show it, and those that it starts, until it ends.

    Parameters
    ----------
    command
        The program and its arguments.
    shown, interval, once
        Where pictures go; seconds between them; whether one with a runtime is enough.
    above
        The terminal above whose picture the program's lines go; None: standard output has no lines of the program's,
        which go to standard error.

    Returns
    -------
    int
        Its exit status; 128 and the signal's number if a signal ended it.

    Raises
    ------
    OSError
        It cannot be started.
    """
    problems: set[str] = set()
    wanted = True
    with ExitStack() as stack:                          # whatever happens, it waits for the program
        program = start(command, above, stack)
        while program.poll() is None:
            with suppress(subprocess.TimeoutExpired, KeyboardInterrupt):    # the program gets the latter, too
                program.wait(interval)
                break
            try:
                processes = list(read_all(program.pid, problems)) if wanted else []
                if wanted and (not once or any(process.runtimes for process in processes)):
                    shown.show(processes)
                    wanted = not once
            except KeyboardInterrupt:
                continue
            except OSError as error:                    # who read the pictures has left
                wanted = once = False
                say(f"nothing more is shown: {error}", problems)
        if once and wanted:
            say("the program ended before it had a runtime to show", problems)
    status = program.returncode
    return status if status >= 0 else 128 - status


def start(command: list[str], above: Console | None, stack: ExitStack) -> subprocess.Popen[bytes]:
    variables = os.environ | {"XLOGMEM_PUBLISH": "1"}
    if above is None:
        program = subprocess.Popen(command, env=variables, stdout=STANDARD_ERROR)
        stack.callback(waited_for, program)
        return program
    # Output of the program would end up in the middle of the picture.
    stdout, stderr = (subprocess.PIPE if stream.isatty() else None for stream in (sys.stdout, sys.stderr))
    if stdout is not None:
        variables.setdefault("PYTHONUNBUFFERED", "1")   # as on the terminal
    threads: list[threading.Thread] = []
    stack.callback(drain, threads)                      # after the program has ended
    program = subprocess.Popen(command, env=variables, stdout=stdout, stderr=stderr)
    stack.callback(waited_for, program)
    for pipe in filter(None, (program.stdout, program.stderr)):
        thread = threading.Thread(target=copy_lines, args=(pipe, above), daemon=True)
        thread.start()
        threads.append(thread)
    return program


def drain(threads: list[threading.Thread]) -> None:
    for thread in threads:
        thread.join(DRAIN)


def copy_lines(pipe: IO[Any], console: Console) -> None:
    for line in pipe:
        console.print(Text.from_ansi(line.decode(errors="replace").rstrip("\r\n")), soft_wrap=True)


def read_all(pid: int, problems: set[str]) -> Iterable[ProcessFigures]:
    """The figures of a program and those that it has started, where they can be read; each problem is printed once."""
    try:
        for one in published_under(pid):
            try:
                yield read(one)
            except (EndedError, UnpublishedError):
                continue                                # meanwhile
            except LiveError as error:
                say(str(error), problems)
    except LiveError as error:                          # a folder
        say(str(error), problems)


def say(text: str, said: set[str]) -> None:
    """Print a line on standard error, once; where its reader has left, the program is waited for all the
    same."""
    if text not in said:
        said.add(text)
        with suppress(OSError):
            click.echo(printable(f"xlogmem top: {text}"), err=True)
