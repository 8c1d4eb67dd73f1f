"""Watching processes: one that runs, or a program and its children."""
from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from contextlib import ExitStack
from typing import IO, Any, Protocol

import click
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from xlogmem._base.texts import json_line, printable
from xlogmem.observe.live.figures import ProcessFigures
from xlogmem.observe.live.pictures import NOTHING, picture
from xlogmem.observe.live.reading import EndedError, LiveError, UnpublishedError, published_under, read

__all__ = ["JsonLines", "Screen", "Shown", "Texts", "follow", "run"]

DRAIN = 1.0                                 # seconds for what a program's own children still print when it has ended


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
    with ExitStack() as stack:
        program = start(command, above, stack)
        problems: set[str] = set()
        wanted = True
        while True:
            try:
                status = program.wait(interval)
                break
            except subprocess.TimeoutExpired:
                pass
            except KeyboardInterrupt:                   # is meant for the program, which gets it too
                continue
            if wanted:
                processes = list(read_all(program.pid, problems))
                if not once or any(process.runtimes for process in processes):
                    shown.show(processes)
                    wanted = not once
        if once and wanted:
            click.echo("xlogmem top: the program ended before it had a runtime to show", err=True)
    return status if status >= 0 else 128 - status


def start(command: list[str], above: Console | None, stack: ExitStack) -> subprocess.Popen[bytes]:
    variables = os.environ | {"XLOGMEM_PUBLISH": "1"}
    if above is None:
        return subprocess.Popen(command, env=variables, stdout=sys.stderr.fileno())
    # Output of the program would end up in the middle of the picture.
    stdout, stderr = (subprocess.PIPE if stream.isatty() else None for stream in (sys.stdout, sys.stderr))
    if stdout is not None:
        variables.setdefault("PYTHONUNBUFFERED", "1")   # as on the terminal
    program = subprocess.Popen(command, env=variables, stdout=stdout, stderr=stderr)
    for pipe in filter(None, (program.stdout, program.stderr)):
        thread = threading.Thread(target=copy_lines, args=(pipe, above), daemon=True)
        thread.start()
        stack.callback(thread.join, DRAIN)
    return program


def copy_lines(pipe: IO[Any], console: Console) -> None:
    for line in pipe:
        console.print(Text.from_ansi(line.decode(errors="replace").rstrip("\r\n")), soft_wrap=True)


def read_all(pid: int, problems: set[str]) -> Iterable[ProcessFigures]:
    """The figures of a program and those that it has started, where they can be read; each problem is printed once."""
    for one in published_under(pid):
        try:
            yield read(one)
        except (EndedError, UnpublishedError):
            continue                                    # meanwhile
        except LiveError as error:
            if str(error) not in problems:
                problems.add(str(error))
                click.echo(printable(f"xlogmem top: {error}"), err=True)
