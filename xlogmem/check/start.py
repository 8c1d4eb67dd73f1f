"""Inside of the checked program: connects the driver with the engine, and writes the findings at the end."""
from __future__ import annotations

import atexit
import json
import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict

from xlogmem._base.private import Folder, private_folder
from xlogmem.blocks import report_to_check
from xlogmem.check import audit, findings, front_ends, ignored, processes, sites
from xlogmem.check.frames import Frame, place_in
from xlogmem.check.front_ends import FrontEnd, Report

__all__ = ["begin", "found", "watch"]


def begin(folder: str) -> None:
    """Check this process from here on, and write its findings to a file in the folder when the interpreter ends.

    A program could do nothing about findings of frees that the interpreter makes while it ends: so this call comes
    first, its handler runs after all of the program's, and nothing after the handler counts.
    """
    front_end = watch()
    with suppress(FileNotFoundError):                   # the program has ended, and this process goes on
        Ending(front_end, private_folder(folder))


def watch() -> FrontEnd:
    """Begin the check: the driver feeds the engine, calls have places, and xlogmem's runtimes report to it."""
    front_end = front_ends.begin()
    report_to_check(front_end.hooks())
    front_end.audit(os.environ.get("XLOGMEM_AUDIT") == "1")
    return front_end


def found(report: Report) -> list[findings.Finding]:
    """Return the findings of a report, with their places."""
    return [findings.resolved(one, omissions=report.omissions) for one in report.findings]


def places() -> Iterator[str]:
    """Yield the places in the program by their numbers, as lines ``NUMBER FILE:LINE FUNCTION``."""
    for number in sites.numbers():
        place = place_in(findings.stack_of(number))
        if place is not None:
            yield f"{number} {place.file}:{place.line} {place.function}"


class Ending:
    """The end of this process, and of children that it forks.

    A child may use the driver if its parent has not initialised it.  One of `multiprocessing`, forked or from a fork
    server, ends with `os._exit`, which runs no function of `atexit`; when it begins it drops the functions
    that its parent had registered in that module for the end, and calls those that are registered for after a fork.
    """

    LAST = -1000                                        # of the priorities in multiprocessing

    def __init__(self, front_end: FrontEnd, folder: Folder) -> None:
        self.front_end, self.folder = front_end, folder
        self.account()
        atexit.register(self.write)
        os.register_at_fork(after_in_child=self.after_fork)

    def after_fork(self) -> None:
        if self.front_end.is_lost():
            return
        with suppress(OSError):                         # the check has ended meanwhile
            self.account()
        workers = sys.modules.get("multiprocessing.util")
        if workers is not None:
            workers.register_after_fork(self, Ending.in_worker)

    def account(self) -> None:
        """Make the journal and the trace of this process, which no other process writes to."""
        self.process = os.getpid()
        self.name, journal = processes.new_journal(self.folder, self.process)
        self.front_end.keep_findings(journal)
        ignored.report_entered(self.entered)
        if "XLOGMEM_CHECK_RECORD" in os.environ:
            self.front_end.record(self.folder.new_file(f"{self.name}.trace", os.O_WRONLY | os.O_APPEND))

    def entered(self, block: ignored.Ignored) -> None:
        if os.getpid() == self.process:
            processes.note(self.folder, self.name, {"ignored": asdict(block) | {"used": 0}})

    def in_worker(self) -> None:
        from multiprocessing.util import Finalize

        Finalize(None, self.write, exitpriority=self.LAST)

    def write(self) -> None:
        """Write one file for each process; a child whose parent had the driver has nothing to write."""
        if os.getpid() == self.process:
            write(self.front_end, self.folder, self.name)


def error_of(error: BaseException | None) -> str:
    """Name the error that ended this process and its place in the program; empty if none has.  Test runners leave the
    error of a test there, which has callers of its own: the process has not ended with it."""
    if error is None or (error.__traceback__ and error.__traceback__.tb_frame.f_back):
        return ""
    stack = [Frame(frame.f_code.co_filename, line, frame.f_code.co_qualname)
             for frame, line in traceback.walk_tb(error.__traceback__)]
    place = place_in(tuple(reversed(stack)))
    return f"ended early, with {type(error).__name__}" + (f" at {place}" if place else "")


def write(front_end: FrontEnd, folder: Folder, name: str) -> None:
    front_end.stop()
    report = front_end.report()
    kept, count = ignored.left_out(found(report))
    document = {"process": os.getpid(), "notes": report.notes, "error": error_of(getattr(sys, "last_value", None)),
                "findings": [one.as_json() for one in kept],
                "omissions": audit.entries(report.omissions),
                "ignored": ignored.as_json(), "left_out": count}
    front_end.record(None)
    # A process may outlive the program, as the resource tracker of multiprocessing does: the report is out, and the
    # folder gone.
    with suppress(FileNotFoundError):
        if folder.has(f"{name}.trace"):
            with folder.replacing(f"{name}.places") as file:
                file.writelines(f"# place {line}\n".encode(errors="surrogateescape") for line in places())
        with folder.replacing(f"{name}.json") as file:
            file.write(json.dumps(document).encode())
