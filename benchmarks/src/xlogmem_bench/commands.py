"""The commands ``xlogmem bench`` and ``xlogmem replay``."""
from __future__ import annotations

import os
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

import xlogmem
from xlogmem import _driver
from xlogmem._base.screens import console, progress
from xlogmem._base.texts import printable
from xlogmem.commands.start import start_driver
from xlogmem.errors import XlogmemError

if TYPE_CHECKING:
    from xlogmem_bench.settings import Settings

__all__ = ["bench", "replay"]

NOT_ALL = 3                     # exit status of a replay without some of its resources


@click.command()
@click.option("--quick", is_flag=True, help="A part of the cases, in one process: less than a minute.")
@click.option("--family", "families", multiple=True, metavar="NAME", help="Only this family; can be repeated.")
@click.option("--case", "only", multiple=True, metavar="ID", help="Only this case; can be repeated.")
@click.option("--log", "logs", multiple=True, type=click.Path(exists=True, dir_okay=False), metavar="FILE",
              help="Also replay a file of RMM's LoggingResourceAdaptor; can be repeated.")
@click.option("--json", "json_file", metavar="FILE", help="Write all figures to a file.")
@click.option("--plot", "plot_files", multiple=True, metavar="FILE",
              help="Draw a chart, PNG or SVG by the name's ending (needs matplotlib); can be repeated.")
@click.option("--compare", "earlier", type=click.Path(exists=True, dir_okay=False), metavar="FILE",
              help="Compare with the figures of an earlier run; the exit code is 1 if rows of xlogmem differ.")
@click.option("--read", "read_files", multiple=True, type=click.Path(exists=True, dir_okay=False), metavar="FILE",
              help="Run nothing: show, draw or compare the figures of an earlier run; repeated, those of several runs "
              "merged.")
@click.option("--summary", is_flag=True, help="Only the rows of the summary in docs/performance.md, as Markdown.")
@click.option("--all", "everything", is_flag=True,
              help="Print every row, not just the floor, xlogmem and the best peers.")
@click.option("--processes", type=click.IntRange(1, 20),
              help="How many processes measure, if the time suffices.  [default: 5, quick: 1]")
@click.option("--turns", type=click.IntRange(1, 1000), help="Turns of each row in a process.  [default: 7, quick: 5]")
@click.option("--seconds", type=click.FloatRange(min=1),
              help="For the whole run: a process that would not end in time is not begun, and cases that the first one "
              "does not reach are listed.  [default: 300]")
def bench(quick: bool, families: tuple[str, ...], only: tuple[str, ...], logs: tuple[str, ...], json_file: str | None,
          plot_files: tuple[str, ...], earlier: str | None, read_files: tuple[str, ...], summary: bool,
          everything: bool, **limits: float | None) -> None:
    """Benchmark xlogmem against raw driver calls and the installed libraries.

    All candidates take turns in one process, because the clocks of hosts change; the spread is that of the turns, in
    several processes.  docs/benchmarks.md says how to read the table.
    """
    from xlogmem_bench import results, settings
    from xlogmem_bench.cases import FAMILIES

    if unknown := [family for family in families if family not in FAMILIES]:
        raise click.BadParameter(f"{unknown[0]!r} is unknown; choose from {', '.join(FAMILIES)}", param_hint="--family")
    if summary and not families and not only:
        only = tuple(dict.fromkeys(case for _, case, _ in results.SUMMARY))
    chosen: dict[str, Any] = dict(settings.QUICK if quick else {})
    chosen |= {name: value for name, value in limits.items() if value is not None}
    output = console()
    try:
        before = results.loaded(earlier) if earlier else None
        if read_files:
            document = results.merged([results.loaded(name) for name in read_files])
        else:
            document = run_bench(settings.Settings(families=families or tuple(FAMILIES), quick=quick, only=only,
                                                   logs=tuple(map(os.path.abspath, logs)), **chosen))
        if json_file:
            results.saved(document, json_file)
        if summary:
            click.echo(results.markdown(document))
        else:
            results.print_table(document, output, everything)
        for name in plot_files:
            results.plot(document, name)
        agree = before is None or results.print_agreement(document, before, output)
    except (XlogmemError, RuntimeError, ValueError) as error:
        raise click.ClickException(printable(str(error))) from error
    if not agree:
        raise SystemExit(1)


def run_bench(settings: Settings) -> dict[str, Any]:
    """Measure, and show the progress."""
    from xlogmem_bench import processes, results
    from xlogmem_bench.settings import selected

    names = [case.id for case in selected(settings)]
    if unknown := set(settings.only) - set(names):
        raise click.BadParameter(f"{min(unknown)!r} is unknown", param_hint="--case")
    start_driver()                          # before the processes do: a missing driver is an error at once
    if _driver.is_simulated():
        click.echo("xlogmem: SIMULATED driver: no GPU is involved, THE TIMES OF THIS RUN MEAN NOTHING. There is a 20th "
                   "of everything, so that each case can run", err=True)
        settings = replace(settings, scale=20)
    with progress("now") as bar:
        task = bar.add_task("measuring", total=len(names) * settings.processes, now="")
        done: set[tuple[int, str]] = set()

        def show(event: dict[str, Any]) -> None:
            if event["kind"] == "facts" and event["process"] == 0:
                for name, reason in event["missing"].items():
                    bar.console.print(printable(f"without {name}: {reason}"), markup=False, highlight=False)
            elif event["kind"] == "case":
                done.add((event["process"], event["case"]))
                bar.update(task, completed=len(done) - 1, now=event["case"])
            elif event["kind"] in ("failure", "died"):
                bar.console.print(printable(f"{event.get('candidate', event['kind'])}: {event['text']}"),
                                  markup=False, highlight=False)

        raw = processes.run(settings, show)
        bar.update(task, completed=len(names) * settings.processes, now="")
    return results.assembled(raw, settings, ["xlogmem", *sys.argv[1:]])


@click.command()
@click.argument("logs", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False), metavar="LOG...")
@click.option("--resource", "resources", multiple=True,
              type=click.Choice(["pool", "async", "direct", "rmm-pool", "rmm-arena", "rmm-async"]),
              help="What to replay on; can be repeated.  [default: pool]")
@click.option("--device", type=click.IntRange(min=0),
              help="Of a PyTorch snapshot; by default that with the most calls.")
@click.option("--no-least", is_flag=True, help="Do not look for the least pool that suffices.")
@click.option("--csv", "csv_file", metavar="FILE", help="Write the rows to a file.")
@click.option("--json", "json_file", metavar="FILE", help="Write the rows, and the memory over time, to a file.")
@click.option("--plot", "plot_file", metavar="FILE",
              help="Draw the memory over time, PNG or SVG by the name's ending (needs matplotlib).")
def replay(logs: tuple[str, ...], resources: tuple[str, ...], device: int | None, no_least: bool, csv_file: str | None,
           json_file: str | None, plot_file: str | None) -> None:
    """Replay allocation logs on other resources: their cost, and the smallest pool.

    A LOG is a file of RMM's LoggingResourceAdaptor or of xlogmem's, or a memory snapshot of PyTorch; it may be
    compressed (.gz).  Each stream of it becomes a stream of the runtime.  A pair is an allocation and its free, from
    C++ on one thread.

    The exit status is 3 if one of several resources cannot be used here: the others have their rows.
    """
    start_driver()
    from xlogmem_bench.recorded import LogError
    from xlogmem_bench.replay import chart, require_writable, save_csv, save_json
    from xlogmem_bench.replay.console import run, show

    if _driver.is_simulated():
        click.echo("xlogmem: SIMULATED driver: no GPU is involved, THE TIMES OF THIS RUN MEAN NOTHING", err=True)
    try:
        if plot_file:                                   # before a minute of work
            chart.require_matplotlib()
        require_writable(csv_file, json_file, plot_file)
        rows, notes, complete = run(logs, resources or ("pool",), not no_least, device)
        show(rows)
        for note in notes:
            click.echo(printable(note), err=True)
        if csv_file:
            save_csv(rows, csv_file)
        if json_file:
            save_json(rows, json_file, xlogmem=xlogmem.__version__, device=_driver.device_name(0),
                      simulated=_driver.is_simulated())
        if plot_file:
            chart.plot(rows, plot_file)
    except (LogError, XlogmemError, RuntimeError, OSError) as error:
        raise click.ClickException(printable(str(error))) from error
    if not complete:
        raise SystemExit(NOT_ALL)
