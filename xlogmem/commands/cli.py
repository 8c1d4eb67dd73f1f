"""The ``xlogmem`` command.

Each command prints a table, or one JSON object with ``--json``.  On a machine without a GPU the commands run on the
simulated driver, which announces itself.
"""
from __future__ import annotations

import json
import os
import re
import sys
from dataclasses import replace
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.markup import escape
from rich.progress import Progress, TextColumn
from rich.table import Table

import xlogmem
from xlogmem import _driver
from xlogmem.commands.check import check
from xlogmem.commands.demo import demo
from xlogmem.commands.start import start_driver
from xlogmem.commands.top import top
from xlogmem.commands.trace import trace
from xlogmem.errors import DriverNotFoundError, XlogmemError

if TYPE_CHECKING:
    from xlogmem.bench.settings import Settings as BenchSettings
    from xlogmem.selftest import Report, Settings

__all__ = ["main"]


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(xlogmem.__version__, prog_name="xlogmem")
def main() -> None:
    """Stream-ordered GPU memory that knows who is using it."""


@main.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def info(as_json: bool) -> None:
    """Versions, driver, devices and settings."""
    facts: dict[str, Any] = {
        "xlogmem": xlogmem.__version__,
        "build": _driver.BUILD,
        "python": sys.version.split()[0],
        "cuda_bindings": version("cuda-bindings"),
    }
    try:
        _driver.initialize()
        facts["driver"] = ".".join(map(str, _driver.driver_version()))
        facts["simulated"] = _driver.is_simulated()
        facts["devices"] = [_driver.device_name(i) for i in range(_driver.device_count())]
    except DriverNotFoundError as error:
        facts |= {"driver": None, "simulated": False, "devices": [], "problem": str(error)}
    facts["resource"] = os.environ.get("XLOGMEM_RESOURCE") or "async"
    facts["policy"] = os.environ.get("XLOGMEM_POLICY") or "adaptive"
    if as_json:
        click.echo(json.dumps(facts))
        return
    table = Table(show_header=False, box=None)
    for name, value in facts.items():
        table.add_row(name, ", ".join(value) if isinstance(value, list) else str(value))
    Console().print(table)


@main.command()
@click.option("--seconds", type=click.FloatRange(min=0), help="Begin no program after this time.  [default: 30]")
@click.option("--programs", type=click.IntRange(min=1), help="Run this many programs.")
@click.option("--threads", type=click.IntRange(1, 64),
              help="Threads that share a program and a runtime.  [default: some programs with 1, others with 8]")
@click.option("--length", default=160, show_default=True, type=click.IntRange(1, 100_000),
              help="Steps of each thread in a program.")
@click.option("--seed", default=0, show_default=True, type=click.IntRange(min=0), help="Seed of the first program.")
@click.option("--policy", type=click.Choice(["adaptive", "precise", "lazy"]),
              help="When a commit records an event at once.  [default: each program draws one]")
@click.option("--no-recorder", is_flag=True, help="Record no launch.  This has to fail: a check of the check.")
@click.option("--replay", metavar="SEED[:STEPS]", help="Run one program, or what is left of it after shrinking.")
@click.option("--libraries", metavar="NAMES",
              help="Programs that exchange memory with other libraries, in one thread: cupy, torch, numba, cuda.core, "
              "rmm, separated by commas, or all.  Those that are not installed, or do not work here, are listed.")
@click.option("--devices", type=click.IntRange(1, 16),
              help="Programs across this many devices, and no others; 1: none of these.  [default: where several "
              "devices have access to each other, a quarter of the time]")
@click.option("--defects", is_flag=True,
              help="Plant each known defect in turn and check that it is found (debug builds).")
@click.option("--defect", "chosen", multiple=True, metavar="NAME",
              help="Plant this defect, and check that it is found; can be repeated.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def selftest(seconds: float | None, programs: int | None, threads: int | None, length: int, seed: int,
             policy: str | None, no_recorder: bool, replay: str | None, libraries: str | None, devices: int | None,
             defects: bool, chosen: tuple[str, ...], as_json: bool) -> None:
    """Run random programs and verify every use, free and reuse.

    On the simulated driver each pair of accesses is judged by happens-before; on a GPU blocks carry patterns, and
    kernels check them.  A program that fails is shrunk and printed, and the exit code is 1.
    """
    start_driver()
    from xlogmem import selftest
    from xlogmem.selftest.defects import available
    from xlogmem.selftest.programs import Program

    if (defects or chosen or os.environ.get("XLOGMEM_DEFECT")) and not available():
        raise click.ClickException("defects can be planted in debug builds only: XLOGMEM_BUILD=debug pip install -e .")
    if defects or chosen:
        find_defects(chosen, seconds or 60, as_json)
        return
    if replay is not None and not re.fullmatch(r"\d+(:\d+(,\d+)*)?", replay):
        raise click.BadParameter(f"{replay!r} is not SEED or SEED:STEP,STEP,...", param_hint="--replay")
    if devices is not None and devices > selftest.peers():
        raise click.BadParameter(f"{selftest.peers()} have access to each other", param_hint="--devices")
    replayed = () if replay is None else (Program.parse(replay, length * (threads or 1), threads or 1, devices or 1),)
    if seconds is None and programs is None:
        seconds = 30
    report = run_programs(selftest.Settings(
        programs=programs, seconds=seconds, length=length, threads=threads, seed=seed, policy=policy,
        protect=not no_recorder, replay=replayed, libraries=chosen_libraries(libraries, threads),
        devices=devices), quiet=as_json)
    if as_json:
        click.echo(json.dumps(report.as_dict()))
    else:
        print_report(report)
    if report.violations or (libraries and not report.exchanges):
        raise SystemExit(1)


def chosen_libraries(names: str | None, threads: int | None) -> tuple[str, ...]:
    """The names of `--libraries`."""
    from xlogmem.selftest.libraries import LIBRARIES

    if names is None:
        return ()
    chosen = tuple(LIBRARIES) if names == "all" else tuple(dict.fromkeys(names.split(",")))
    if unknown := [name for name in chosen if name not in LIBRARIES]:
        raise click.BadParameter(f"{unknown[0]!r} is unknown; choose from {', '.join(LIBRARIES)}, or all",
                                 param_hint="--libraries")
    if threads not in (None, 1):
        raise click.BadParameter("with --libraries programs have one thread", param_hint="--threads")
    return chosen


def run_programs(settings: Settings, quiet: bool) -> Report:
    """Run them, and show the progress."""
    from xlogmem import selftest

    with Progress(*Progress.get_default_columns(), TextColumn("{task.fields[done]}"),
                  console=Console(stderr=True), disable=quiet) as bar:
        task = bar.add_task("random programs", total=settings.programs or settings.seconds, done="")

        def progress(report: Report) -> None:
            bar.update(task, completed=report.programs if settings.programs else report.seconds,
                       done=f"{report.programs:,} programs, {report.operations:,} operations, "
                            f"{report.violations} violations")

        report = selftest.run(settings, progress)
        progress(report)
    return report


def print_report(report: Report) -> None:
    from xlogmem.selftest import COUNTED

    console = Console(highlight=False)
    table = Table(title=f"{report.device}", show_header=False)
    for name in ("programs", "operations", "violations", "seconds", *COUNTED):
        value = getattr(report, name)
        table.add_row(name.replace("_", " "), f"{value:,.1f}" if isinstance(value, float) else f"{value:,}")
    console.print(table)
    for name, counts in report.exchanges.items():
        console.print(f"with {name}: {counts['exported']:,} blocks exported, {counts['imported']:,} arrays imported, "
                      f"{counts['allocated']:,} allocated from xlogmem")
    for name, reason in report.missing.items():
        console.print(f"without {name}: {reason}", markup=False, soft_wrap=True)
    if failure := report.failure:
        console.print(f"program {failure.program} ({failure.kind}) failed:", style="red", markup=False)
        for line in (*failure.violations, *failure.script):
            console.print(line, markup=False, soft_wrap=True)
        console.print(f"again: xlogmem selftest --replay {failure.program}"
                      + (f" --threads {failure.threads}" if failure.threads > 1 else "")
                      + (f" --devices {failure.devices}" if failure.devices > 1 else "")
                      + (f" --libraries {','.join(report.exchanges)}" if report.exchanges else ""),
                      markup=False, soft_wrap=True)


def find_defects(chosen: tuple[str, ...], seconds: float, as_json: bool) -> None:
    """Each defect in its own process; without names all of them."""
    from xlogmem.selftest import defects

    names = list(chosen) or defects.searched()
    if unknown := set(names) - set(defects.searched()):
        raise click.BadParameter(f"{', '.join(sorted(unknown))}: random programs look for no such defect",
                                 param_hint="--defect")
    results = []
    with Progress(console=Console(stderr=True), disable=as_json) as bar:
        try:
            for result in bar.track(defects.find_all(names, seconds), total=len(names),
                                    description="planted defects"):
                results.append(result)
        except RuntimeError as error:
            raise click.ClickException(str(error)) from error
    found = sum(result.programs is not None for result in results)
    if as_json:
        click.echo(json.dumps({"results": [result.as_dict() for result in results],
                               "defects": len(results), "found": found}))
    else:
        table = Table(title="planted defects")
        for heading in ("defect", "breaks", "found in program", "by"):
            table.add_column(heading)
        for result in results:
            table.add_row(result.name, result.rule, "[red]not found[/]" if result.programs is None
                          else str(result.programs), escape(result.seen[:80]))
        Console().print(table)
        click.echo(f"defects {len(results)}, found {found}")
    if found < len(results):
        raise SystemExit(1)


@main.command()
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
    from xlogmem.bench import results, settings
    from xlogmem.bench.cases import FAMILIES

    if unknown := [family for family in families if family not in FAMILIES]:
        raise click.BadParameter(f"{unknown[0]!r} is unknown; choose from {', '.join(FAMILIES)}", param_hint="--family")
    if summary and not families and not only:
        only = tuple(dict.fromkeys(case for _, case, _ in results.SUMMARY))
    chosen: dict[str, Any] = dict(settings.QUICK if quick else {})
    chosen |= {name: value for name, value in limits.items() if value is not None}
    console = Console(width=None if sys.stdout.isatty() else 160)
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
            results.print_table(document, console, everything)
        for name in plot_files:
            results.plot(document, name)
        agree = before is None or results.print_agreement(document, before, console)
    except (XlogmemError, RuntimeError, ValueError) as error:
        raise click.ClickException(str(error)) from error
    if not agree:
        raise SystemExit(1)


def run_bench(settings: BenchSettings) -> dict[str, Any]:
    """Measure, and show the progress."""
    from xlogmem.bench import processes, results
    from xlogmem.bench.settings import selected

    names = [case.id for case in selected(settings)]
    if unknown := set(settings.only) - set(names):
        raise click.BadParameter(f"{min(unknown)!r} is unknown", param_hint="--case")
    start_driver()                          # before the processes do: a missing driver is an error at once
    if _driver.is_simulated():
        click.echo("xlogmem: SIMULATED driver: no GPU is involved, THE TIMES OF THIS RUN MEAN NOTHING. There is a 20th "
                   "of everything, so that each case can run", err=True)
        settings = replace(settings, scale=20)
    with Progress(*Progress.get_default_columns(), TextColumn("{task.fields[now]}"),
                  console=Console(stderr=True)) as bar:
        task = bar.add_task("measuring", total=len(names) * settings.processes, now="")
        done: set[tuple[int, str]] = set()

        def show(event: dict[str, Any]) -> None:
            if event["kind"] == "facts" and event["process"] == 0:
                for name, reason in event["missing"].items():
                    bar.console.print(f"without {name}: {reason}", markup=False, highlight=False)
            elif event["kind"] == "case":
                done.add((event["process"], event["case"]))
                bar.update(task, completed=len(done) - 1, now=escape(event["case"]))
            elif event["kind"] in ("failure", "died"):
                bar.console.print(f"{event.get('candidate', event['kind'])}: {event['text']}", markup=False,
                                  highlight=False)

        raw = processes.run(settings, show)
        bar.update(task, completed=len(names) * settings.processes, now="")
    return results.assembled(raw, settings, ["xlogmem", *sys.argv[1:]])


@main.command()
@click.argument("logs", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False), metavar="LOG...")
@click.option("--resource", "resources", multiple=True,
              type=click.Choice(["pool", "async", "direct", "rmm-pool", "rmm-arena", "rmm-async"]),
              help="What to replay on; can be repeated.  [default: pool]")
@click.option("--no-least", is_flag=True, help="Do not look for the least pool that suffices.")
@click.option("--csv", "csv_file", metavar="FILE", help="Write the rows to a file.")
@click.option("--json", "json_file", metavar="FILE", help="Write the rows, and the memory over time, to a file.")
@click.option("--plot", "plot_file", metavar="FILE",
              help="Draw the memory over time, PNG or SVG by the name's ending (needs matplotlib).")
def replay(logs: tuple[str, ...], resources: tuple[str, ...], no_least: bool, csv_file: str | None,
           json_file: str | None, plot_file: str | None) -> None:
    """Replay allocation logs on other resources: their cost, and the smallest pool.

    A LOG is a file of RMM's LoggingResourceAdaptor, or of xlogmem's, which may be compressed (.gz).  Each stream of it
    becomes a stream of the runtime.  A pair is an allocation and its free, from C++ on one thread.
    """
    start_driver()
    from xlogmem.bench.recorded import LogError
    from xlogmem.bench.replay import chart, console, require_writable, save_csv, save_json

    if _driver.is_simulated():
        click.echo("xlogmem: SIMULATED driver: no GPU is involved, THE TIMES OF THIS RUN MEAN NOTHING", err=True)
    try:
        if plot_file:                                   # before a minute of work
            chart.require_matplotlib()
        require_writable(csv_file, json_file, plot_file)
        rows = console.run(logs, resources or ("pool",), not no_least)
        console.show(rows)
        if csv_file:
            save_csv(rows, csv_file)
        if json_file:
            save_json(rows, json_file, xlogmem=xlogmem.__version__, device=_driver.device_name(0),
                      simulated=_driver.is_simulated())
        if plot_file:
            chart.plot(rows, plot_file)
    except (LogError, XlogmemError, RuntimeError, OSError) as error:
        raise click.ClickException(str(error)) from error


main.add_command(check)
main.add_command(demo)
main.add_command(top)
main.add_command(trace)
