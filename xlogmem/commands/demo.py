"""``xlogmem demo``."""
from __future__ import annotations

import json
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import click
from rich.text import Text

from xlogmem._base.screens import Table, console, progress
from xlogmem._base.texts import printable
from xlogmem._base.units import counted
from xlogmem.commands.start import start_driver
from xlogmem.errors import XlogmemError
from xlogmem.observe.history import record_history

if TYPE_CHECKING:
    from xlogmem.commands.pipeline import Demo, Outcome

__all__ = ["demo"]

# Within 80 columns: commands copied from it may not be broken.
NEXT = """
Next:
  xlogmem check program.py                 find your program's missing waits
  xlogmem.enable("cupy"), xlogmem.use(...) let your program queue them
  docs/using.md, docs/check.md             how, in the checkout of xlogmem"""


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
        with progress("run", disable=as_json) as bar:
            task = bar.add_task("rounds", total=2 * rounds, run="without")

            def advance(count: int) -> None:
                bar.update(task, advance=count)

            with recorded(history, "without"):
                without = pipeline.run(protected=False, advance=advance)
            bar.update(task, run="with xlogmem.use")
            with recorded(history, "with"):
                protected = pipeline.run(protected=True, advance=advance)
    except (XlogmemError, OSError) as error:
        raise click.ClickException(printable(str(error))) from error
    if as_json:
        click.echo(json.dumps(figures(pipeline, without, protected)))
    else:
        console().print(table_of(pipeline, without, protected))
    if protected.corrupted or protected.races:
        raise SystemExit(1)
    if not as_json:
        click.echo(NEXT)


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
    table = Table("", "rounds corrupted", "races reported", "events recorded", "stream waits", "host ns per use",
                  title=f"{counted(pipeline.rounds, 'round')} of produce, consume, free and reuse on two streams of "
                        f"{pipeline.device}")
    for name, outcome in (("without xlogmem.use", without), (f"with it ({pipeline.policy})", protected)):
        table.add(name, Text(f"{outcome.corrupted}", style="red" if outcome.corrupted else "green"),
                  "–" if outcome.races is None else str(outcome.races),
                  str(outcome.records), str(outcome.waits),
                  "–" if outcome.host_ns_per_use is None else f"{outcome.host_ns_per_use:.0f}")
    return table
