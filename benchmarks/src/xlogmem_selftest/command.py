"""The command ``xlogmem selftest``."""
from __future__ import annotations

import json
import os
import re
from typing import TYPE_CHECKING

import click
from rich.text import Text

from xlogmem._base.screens import Table, console, progress
from xlogmem.commands.start import start_driver

if TYPE_CHECKING:
    from xlogmem_selftest import Report, Settings

__all__ = ["selftest"]


@click.command()
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
    import xlogmem_selftest as selftest
    from xlogmem_selftest.defects import available
    from xlogmem_selftest.programs import Program

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
    from xlogmem_selftest.libraries import LIBRARIES

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
    import xlogmem_selftest as selftest

    with progress("done", disable=quiet) as bar:
        task = bar.add_task("programs", total=settings.programs or settings.seconds, done="")

        def advance(report: Report) -> None:
            bar.update(task, completed=report.programs if settings.programs else report.seconds,
                       done=f"{report.programs:,}, {report.operations:,} operations, {report.violations} violations")

        report = selftest.run(settings, advance)
        advance(report)
    return report


def print_report(report: Report) -> None:
    from xlogmem_selftest import COUNTED

    output = console()
    table = Table("", "", title=report.device)
    for name in ("programs", "operations", "violations", "seconds", *COUNTED):
        value = getattr(report, name)
        table.add(name.replace("_", " "), f"{value:,.1f}" if isinstance(value, float) else f"{value:,}")
    output.print(table)
    for name, counts in report.exchanges.items():
        output.print(f"with {name}: {counts['exported']:,} blocks exported, {counts['imported']:,} arrays imported, "
                     f"{counts['allocated']:,} allocated from xlogmem")
    for name, reason in report.missing.items():
        output.print(f"without {name}: {reason}", markup=False, soft_wrap=True)
    if failure := report.failure:
        output.print(f"program {failure.program} ({failure.kind}) failed:", style="red", markup=False)
        for line in (*failure.violations, *failure.script):
            output.print(line, markup=False, soft_wrap=True)
        output.print(f"again: xlogmem selftest --replay {failure.program}"
                     + (f" --threads {failure.threads}" if failure.threads > 1 else "")
                     + (f" --devices {failure.devices}" if failure.devices > 1 else "")
                     + (f" --libraries {','.join(report.exchanges)}" if report.exchanges else ""),
                     markup=False, soft_wrap=True)


def find_defects(chosen: tuple[str, ...], seconds: float, as_json: bool) -> None:
    """Each defect in its own process; without names all of them."""
    from xlogmem_selftest import defects

    names = list(chosen) or defects.searched()
    if unknown := set(names) - set(defects.searched()):
        raise click.BadParameter(f"{', '.join(sorted(unknown))}: random programs look for no such defect",
                                 param_hint="--defect")
    results = []
    with progress("last", disable=as_json) as bar:
        task = bar.add_task("planted defects", total=len(names), last="")
        try:
            for result in defects.find_all(names, seconds):
                results.append(result)
                bar.update(task, advance=1, last=result.name)
        except RuntimeError as error:
            raise click.ClickException(str(error)) from error
    found = sum(result.programs is not None for result in results)
    if as_json:
        click.echo(json.dumps({"results": [result.as_dict() for result in results],
                               "defects": len(results), "found": found}))
    else:
        table = Table("defect", "breaks", "found in program", "by", title="planted defects", left=(0, 1, 2, 3))
        for result in results:
            table.add(result.name, result.rule, Text("not found", style="red") if result.programs is None
                      else str(result.programs), result.seen[:80])
        console().print(table)
        click.echo(f"defects {len(results)}, found {found}")
    if found < len(results):
        raise SystemExit(1)
