"""Replays on a terminal: the progress, and the table."""
from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from functools import partial

from rich.console import Console
from rich.markup import escape
from rich.progress import Progress, TaskID, TextColumn
from rich.table import Table

from xlogmem._base.texts import printable
from xlogmem._base.units import format_bytes
from xlogmem_bench.programs import Programs
from xlogmem_bench.recorded import recorded
from xlogmem_bench.replay.measure import Row, replayed

__all__ = ["run", "show"]

TURNS = 16                      # of a replay, for the bar: how many sizes of pools are tried is not known before


def run(logs: Sequence[str], resources: Sequence[str], least: bool) -> list[Row]:
    """Replay each log on each resource, with a bar; the errors of `recorded` and `replayed`."""
    rows = []
    of_log = 1 + TURNS * len(resources)
    with Progress(*Progress.get_default_columns(), TextColumn("{task.fields[now]}"),
                  console=Console(stderr=True)) as bar:
        task = bar.add_task("replaying", total=len(logs) * of_log, now="")
        for number, log in enumerate(logs):
            bar.update(task, completed=number * of_log, now=escape(printable(f"reading {log}")))
            programs = Programs(recorded(log))
            for place, name in enumerate(resources):
                bar.update(task, completed=number * of_log + 1 + TURNS * place)
                rows.append(replayed(log, programs, name, least, partial(advance, bar, task, name)))
        bar.update(task, completed=len(logs) * of_log, now="")
    return rows


def advance(bar: Progress, task: TaskID, resource: str, what: str) -> None:
    bar.update(task, advance=1, now=escape(f"{resource}: {what}"))


def show(rows: Iterable[Row]) -> None:
    table = Table(title="replays")
    for heading in ("log", "resource", "pairs", "streams", "ns a pair", "most in use", "least pool", "most held",
                    "refused"):
        table.add_column(heading, justify="left" if heading in ("log", "resource") else "right")
    for row in rows:
        table.add_row(escape(printable(os.path.basename(row.log))), row.resource, f"{row.pairs:,}", f"{row.streams:,}",
                      "-" if row.ns_per_pair is None else f"{row.ns_per_pair:,.0f}", in_bytes(row.peak_bytes),
                      in_bytes(row.least_pool_size), in_bytes(row.most_held), f"{row.refused:,}")
    Console(width=None if sys.stdout.isatty() else 160).print(table)


def in_bytes(nbytes: int | None) -> str:
    return "-" if nbytes is None else format_bytes(nbytes)
