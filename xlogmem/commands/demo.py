"""``xlogmem demo``."""
from __future__ import annotations

import json
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.table import Table

from xlogmem._base.texts import printable
from xlogmem.commands.start import start_driver
from xlogmem.errors import XlogmemError
from xlogmem.observe.history import record_history

if TYPE_CHECKING:
    from xlogmem.commands.pipeline import Demo, Outcome

__all__ = ["demo"]


@click.command()
@click.option("--rounds", default=100, show_default=True, type=click.IntRange(1, 1_000_000),
              help="How often the pipeline runs.")
@click.option("--policy", type=click.Choice(["adaptive", "precise", "lazy"]),
              help="When a commit records an event at once.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--history", type=click.Path(), metavar="OUT",
              help="Write the histories OUT-without.xlog and OUT-with.xlog, for `xlogmem trace`.")
def demo(rounds: int, policy: str | None, as_json: bool, history: str | None) -> None:
    """Corrupt data in a pipeline with a missing wait, and repair it with xlogmem.use.

    A producer fills a block late, a consumer on another stream reads it at once and again later, and the memory is
    freed and reused meanwhile.  The exit code is 1 if anything was corrupted with the recorder.
    """
    start_driver()
    from xlogmem.commands.pipeline import Demo

    try:
        pipeline = Demo(rounds, policy)
        with recorded(history, "without"):
            without = pipeline.run(protected=False)
        with recorded(history, "with"):
            protected = pipeline.run(protected=True)
    except (XlogmemError, OSError) as error:
        raise click.ClickException(printable(str(error))) from error
    if as_json:
        click.echo(json.dumps(figures(pipeline, without, protected)))
    else:
        Console().print(table_of(pipeline, without, protected))
    if protected.corrupted or protected.races:
        raise SystemExit(1)


def recorded(path: str | None, run: str) -> AbstractContextManager[object]:
    return record_history(f"{path}-{run}.xlog", stacks="all") if path else nullcontext()


def figures(pipeline: Demo, without: Outcome, protected: Outcome) -> dict[str, Any]:
    return {
        "device": pipeline.device,
        "simulated": pipeline.simulated,
        "policy": pipeline.policy,
        "rounds": pipeline.rounds,
        "corrupted_without_recorder": without.corrupted,
        "corrupted_with_recorder": protected.corrupted,
        "races_without_recorder": without.races,
        "races_with_recorder": protected.races,
        "uses": protected.uses,
        "records": protected.records,
        "waits": protected.waits,
        "host_ns_per_use": round(protected.host_ns_per_use or 0),
        "seconds_without_recorder": round(without.seconds, 4),
        "seconds_with_recorder": round(protected.seconds, 4),
    }


def table_of(pipeline: Demo, without: Outcome, protected: Outcome) -> Table:
    table = Table(title=f"{pipeline.rounds} rounds of produce, consume, free and reuse on two streams of "
                        f"{pipeline.device}")
    for heading in ("", "rounds corrupted", "races reported", "events recorded", "stream waits", "host ns per use"):
        table.add_column(heading, justify="left" if not heading else "right")
    for name, outcome in (("without xlogmem.use", without), (f"with it ({pipeline.policy})", protected)):
        table.add_row(name, f"[{'red' if outcome.corrupted else 'green'}]{outcome.corrupted}[/]",
                      "–" if outcome.races is None else str(outcome.races),
                      str(outcome.records), str(outcome.waits),
                      "–" if outcome.host_ns_per_use is None else f"{outcome.host_ns_per_use:.0f}")
    return table
