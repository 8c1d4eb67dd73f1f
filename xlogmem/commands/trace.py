"""``xlogmem trace``."""
from __future__ import annotations

from pathlib import Path

import click

from xlogmem._base.screens import Table, console
from xlogmem._base.texts import printable
from xlogmem._base.units import counted, format_bytes
from xlogmem.observe.history import perfetto, timeline, torch
from xlogmem.observe.history.files import History, HistoryError, read

__all__ = ["trace"]


@click.command()
@click.argument("history", type=click.Path(exists=True, dir_okay=False), metavar="FILE")
@click.option("--html", "html_file", type=click.Path(dir_okay=False), metavar="OUT",
              help="Write a page for a browser: streams, waits, bytes by tag, blocks.")
@click.option("--perfetto", "perfetto_file", type=click.Path(dir_okay=False), metavar="OUT",
              help="Write a trace of Chrome's (JSON), for ui.perfetto.dev.")
@click.option("--torch", "torch_file", type=click.Path(dir_okay=False), metavar="OUT",
              help="Write a snapshot of PyTorch's (pickle), for pytorch.org/memory_viz.")
def trace(history: str, html_file: str | None, perfetto_file: str | None, torch_file: str | None) -> None:
    """Convert a recorded history to HTML, Perfetto or PyTorch format.

    FILE is written by `xlogmem.record_history`.  Without an option a summary table is printed.
    """
    try:
        with console(stderr=True).status(printable(f"reading {history}")):
            events = read(history)
        if html_file:
            save(html_file, timeline.page(events, Path(history).name).encode(), "open it in a browser")
        if perfetto_file:
            save(perfetto_file, perfetto.dumped(events), "open it in ui.perfetto.dev")
        if torch_file:
            save(torch_file, torch.dumped(events), "open it in pytorch.org/memory_viz")
    except (HistoryError, OSError) as error:
        raise click.ClickException(printable(str(error))) from error
    if not (html_file or perfetto_file or torch_file):
        console().print(table_of(events))
    if events.dropped:
        click.echo(f"xlogmem trace: the {events.dropped:,} oldest events are missing: there was no room (max_events)",
                   err=True)


def save(file: str, content: bytes, advice: str) -> None:
    Path(file).write_bytes(content)
    click.echo(printable(f"{file}, {format_bytes(len(content))}: {advice}"))


def table_of(history: History) -> Table:
    """Return a table with the number of events of each kind."""
    table = Table("event", "how many", title=counted(len(history), "event"))
    for kind, count in history.counted().most_common():
        table.add(kind, f"{count:,}")
    return table
