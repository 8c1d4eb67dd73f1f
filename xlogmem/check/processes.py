"""The processes of a check, and the files in its folder by which each accounts for itself.

Each process, and each program that takes the place of another one in a process (`exec`), has a name: the process's
number, with a second number where there was one of that name.  Its files have this name and an ending:

    .journal    from the beginning on, findings as they are made: cpp/engine/journal.hpp
    .json       at an orderly end, the findings in place of those of the journal, and their gaps
    .trace      of `--record`
"""
from __future__ import annotations

import itertools
import json
import os
import struct
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from xlogmem._base.private import Folder
from xlogmem.check import ignored, native
from xlogmem.check.findings import resolved
from xlogmem.check.frames import Frame
from xlogmem.check.notes import of_journal

__all__ = ["Account", "accounts", "new_journal", "note"]

PAGE = struct.Struct("=9Q")
BEGIN = 4096                                            # Journal::kPage: the lines are behind the page
MARK = int.from_bytes(b"XLOGJRNL", "little")
PATIENCE = 5.0                                          # seconds for processes that end with the program


class Page(NamedTuple):
    """JournalPage of cpp/engine/findings.hpp, which explains the fields."""

    mark: int = MARK
    used: int = 0
    ended: int = 0
    failed: int = 0
    withheld: int = 0
    aside: int = 0
    noted: int = 0
    fed: int = 0
    lines: int = 0


def new_journal(folder: Folder, process: int) -> tuple[str, int]:
    """Make the journal of a process that begins, with its page; returns the name of the process and a descriptor."""
    for number in itertools.count():
        name = f"{process}-{number}" if number else str(process)
        with suppress(FileExistsError):
            file = folder.new_file(f"{name}.journal", os.O_RDWR | os.O_APPEND)
            with suppress(OSError):                     # the disk is full: the account says so
                os.write(file, PAGE.pack(*Page()).ljust(BEGIN, b"\0"))
            return name, file
    raise AssertionError


def note(folder: Folder, name: str, line: dict[str, Any]) -> None:
    """Add a line to the journal of this process."""
    if not folder.is_open():
        return
    with suppress(OSError):                             # it has outlived the check
        file = os.open(f"{name}.journal", os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC,
                       dir_fd=folder.descriptor)
        with open(file, "wb", buffering=0) as opened:
            if os.fstat(file).st_size >= BEGIN:         # else the line would lie where the page was
                opened.write(json.dumps(line).encode() + b"\n")


@dataclass
class Account:
    """Findings and notes that a process left."""

    process: int
    document: dict[str, Any]                            # as `start.write` makes it
    used: bool                                          # it has initialised the driver
    lost: str = ""                                      # why findings may be missing, as a sentence
    notes: list[str] = field(default_factory=list)


def accounts(folder: Folder) -> list[Account]:
    """Read the files of all processes, when the program has ended."""
    names = sorted({name.rpartition(".")[0] for name in folder.names() if name.endswith((".journal", ".json"))})
    until = time.monotonic() + PATIENCE
    while any(is_open(folder, name) for name in names) and time.monotonic() < until:
        time.sleep(0.01)
    return [account for name in names if (account := account_of(folder, name)) is not None]


def is_open(folder: Folder, name: str) -> bool:
    """True if this process has used the driver, and goes on."""
    return (not folder.has(f"{name}.json") and page_of(folder.read(f"{name}.journal", PAGE.size)).used > 0
            and is_alive(process_of(name)))


def process_of(name: str) -> int:
    return int(name.split("-")[0])


def page_of(journal: bytes) -> Page:
    """The page, filled up with zeros where the file is too short."""
    return Page(*PAGE.unpack_from(journal.ljust(PAGE.size, b"\0")))


def is_alive(process: int) -> bool:
    with suppress(OSError):
        state = Path(f"/proc/{process}/stat").read_text(errors="replace").rpartition(")")[2].split()[0]
        return state not in ("Z", "X")
    return False


def account_of(folder: Folder, name: str) -> Account | None:
    """None for a process that wrote no .json and never used the driver."""
    process = process_of(name)
    journal = folder.read(f"{name}.journal") if folder.has(f"{name}.journal") else b""
    page, said = page_of(journal), said_in(journal[BEGIN:])
    is_whole = (len(journal) >= BEGIN and page.mark == MARK
                and sum("number" in one or "cleared" in one for one in said) >= page.lines)
    document = None
    if folder.has(f"{name}.json"):
        with suppress(ValueError):
            document = json.loads(folder.read(f"{name}.json"))
        is_whole = is_whole and document is not None
    if not is_whole:
        return Account(process, document or document_of(process, said), True,
                       f"process {process} was lost: its file in the check's folder was truncated, overwritten or "
                       "removed, and findings may be missing")
    if document is not None:
        return Account(process, document, bool(page.used),
                       f"process {process} was not judged to its end" if page.failed else "")
    if not page.used:
        return None
    account = Account(process, document_of(process, said), True)
    open_ends = [f"{count} {what}" for count, what in ((page.noted - page.fed, "calls"),
                                                       (page.withheld + page.aside, "findings")) if count]
    if is_alive(process) and not page.ended:
        account.lost = f"process {process} still runs: the check has its findings so far, and no later ones"
    elif page.failed or open_ends:
        account.lost = (f"process {process} was lost: a signal, a crash, os._exit or exec ended it, and "
                        f"{' and '.join(open_ends) or 'its last findings'} were not judged")
    elif not page.ended:
        account.notes.append(f"process {process} was ended by a signal, a crash, os._exit or exec: its calls are "
                             "judged; its audit and notes are missing, and so is what the program itself did to memory "
                             "after its last call")
    return account


def said_in(lines: bytes) -> list[dict[str, Any]]:
    """Parse the lines of a journal, up to one that is not whole: the process ended while writing it, or it was
    overwritten."""
    said = []
    for line in lines.splitlines(keepends=True):
        one = None
        with suppress(ValueError):
            one = json.loads(line.decode(errors="replace"))     # names of kernels are bytes
        if not isinstance(one, dict) or not line.endswith(b"\n"):
            break
        said.append(one)
    return said


def document_of(process: int, lines: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Return the findings of a journal as the process itself would have written them."""
    records: dict[int, dict[str, Any]] = {}
    stacks: dict[int, tuple[Frame, ...]] = {}
    blocks: list[dict[str, Any]] = []
    notes: list[str] = []
    lines = list(lines)
    native.resolve(said["frames"] for said in lines if "stack" in said)
    for said in lines:
        if "stack" in said:
            stacks[said["stack"]] = native.frames_of(said["frames"])
        elif "number" in said:
            records[said["number"]] = said["finding"]
        elif "ignored" in said:
            blocks.append(said["ignored"])
        elif "notes" in said:
            notes = of_journal(said["notes"])
        else:
            records.clear()
    found = [resolved(record, lambda number: stacks.get(number, ())) for record in records.values() if record]
    entered = [ignored.Ignored(**block) for block in blocks]
    kept, count = ignored.left_out(found, entered)
    return {"process": process, "notes": notes, "findings": [one.as_json() for one in kept], "omissions": [],
            "ignored": ignored.as_json(entered), "left_out": count}
