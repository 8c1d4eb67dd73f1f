"""Replays on a terminal: the progress, and the table."""
from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial

from rich.progress import Progress, TaskID

from xlogmem._base.screens import FirstThatFits, Table, console, progress
from xlogmem._base.texts import printable
from xlogmem._base.units import counted, format_bytes
from xlogmem_bench.programs import Programs
from xlogmem_bench.recorded import Reading, recorded
from xlogmem_bench.replay.candidates import NotHere
from xlogmem_bench.replay.measure import Row, replayed

__all__ = ["run", "show"]

MOST_FAILED = 5                 # lines about allocations that had failed
HEADINGS = ("resource", "pairs", "streams", "ns a pair", "most in use", "least pool", "most held", "refused")
FAILED = ("failed in log", "least pool for them")
TURNS = 16                      # of a replay, for the bar: how many sizes of pools are tried is not known before


def run(logs: Sequence[str], resources: Sequence[str], least: bool, device: int | None = None
        ) -> tuple[list[Row], list[str], bool]:
    """Replay each log, of a snapshot this device, on each resource, with a bar; the errors of `recorded`.  The second
    list has what there is to say beside the rows; a resource that cannot be used here has no row, and is an error if
    there is no row at all.  The last is True if all resources have rows."""
    rows: list[Row] = []
    notes: list[str] = []
    missing: dict[str, str] = {}
    of_log = 1 + TURNS * len(resources)
    with progress("now") as bar:
        task = bar.add_task("replaying", total=len(logs) * of_log, now="")
        for number, log in enumerate(logs):
            bar.update(task, completed=number * of_log, now=printable(f"reading {log}"))
            reading = Reading(device=device)
            events = list(recorded(log, reading, failed_too=True))
            programs = Programs(event for event in events if event.number not in reading.failed_numbers)
            with_failed = Programs(events) if reading.failed and least else None
            notes += notes_of(log, reading)
            for place, name in enumerate(resources):
                bar.update(task, completed=number * of_log + 1 + TURNS * place)
                try:
                    rows.append(replayed(log, programs, name, least, partial(advance, bar, task, name), with_failed,
                                         len(reading.failed)))
                except NotHere as error:
                    missing[name] = str(error)
        bar.update(task, completed=len(logs) * of_log, now="")
    if missing and not rows:
        raise NotHere("; ".join(missing.values()))
    return rows, notes + [f"not replayed: {reason}" for reason in missing.values()], not missing


def notes_of(log: str, reading: Reading) -> list[str]:
    """Lines about a log: what was left out or guessed, and the allocations that had failed."""
    name = os.path.basename(log)
    shown = reading.failed[:MOST_FAILED]
    lines = [f"{name}: {note}" for note in reading.notes]
    lines += [f"{name}:{one.line}: an allocation of {format_bytes(one.nbytes)} had failed, with "
              f"{format_bytes(one.in_use)} in use" for one in shown]
    if len(reading.failed) > len(shown):
        lines.append(f"{name}: {counted(len(reading.failed) - len(shown), 'more allocation')} had failed")
    return lines


def advance(bar: Progress, task: TaskID, resource: str, what: str) -> None:
    bar.update(task, advance=1, now=f"{resource}: {what}")


def show(rows: Sequence[Row]) -> None:
    failed = [row for row in rows if row.failed_in_log]
    wide = Table("log", *HEADINGS, *(FAILED if failed else ()), title="replays", left=(0, 1))
    narrow = Table(*HEADINGS, title="replays")
    for row in rows:
        wide.add(name_of(row), *cells(row), *(cells_of_failed(row) if failed else ()))
        narrow.add(f"{name_of(row)}:")
        narrow.add(*cells(row))
    if failed:
        narrow.add("")
        for row in failed:
            count, least = cells_of_failed(row)
            narrow.add(f"{name_of(row)} on {row.resource}: failed in log {count}, least pool for them {least}")
    console().print(FirstThatFits(wide, narrow))


def name_of(row: Row) -> str:
    return printable(os.path.basename(row.log))


def cells(row: Row) -> list[str]:
    return [row.resource, f"{row.pairs:,}", f"{row.streams:,}",
            "-" if row.ns_per_pair is None else f"{row.ns_per_pair:,.0f}", in_bytes(row.peak_bytes),
            in_bytes(row.least_pool_size), in_bytes(row.most_held), f"{row.refused:,}"]


def cells_of_failed(row: Row) -> list[str]:
    return [f"{row.failed_in_log:,}", in_bytes(row.least_pool_with_failed)]


def in_bytes(nbytes: int | None) -> str:
    return "-" if nbytes is None else format_bytes(nbytes)
