"""The ``xlogmem`` command.

Each command prints for a person, or one JSON object with ``--json``.  On a machine without a GPU they run on the
simulated driver and say so in a line that cannot be overlooked.
"""
from __future__ import annotations

import json
import os
import sys
from importlib.metadata import version
from typing import Any

import click
from rich.console import Console
from rich.table import Table

import xlogmem
from xlogmem import _driver
from xlogmem.errors import DriverNotFoundError, XlogmemError

__all__ = ["main"]


def start_driver() -> None:
    """Load the GPU's driver; where there is none, the simulated one, which announces itself."""
    try:
        _driver.initialize()
    except DriverNotFoundError:
        from xlogmem import sim

        sim.install()
        _driver.initialize()


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
@click.option("--rounds", default=100, show_default=True, type=click.IntRange(1, 1_000_000),
              help="How often the pipeline runs.")
@click.option("--policy", type=click.Choice(["adaptive", "precise", "lazy"]),
              help="When a commit records an event at once.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def demo(rounds: int, policy: str | None, as_json: bool) -> None:
    """A pipeline that corrupts data, and the same pipeline put right.

    A producer fills a block late, a consumer on another stream reads it at once and again later, and the memory is
    freed and used again meanwhile.  The exit code is 1 if anything was corrupted with the recorder.
    """
    start_driver()
    from xlogmem.demo import Demo

    try:
        pipeline = Demo(rounds, policy)
        without = pipeline.run(protected=False)
        protected = pipeline.run(protected=True)
    except XlogmemError as error:
        raise click.ClickException(str(error)) from error
    if as_json:
        click.echo(json.dumps({
            "device": pipeline.device,
            "simulated": pipeline.simulated,
            "policy": pipeline.policy,
            "rounds": rounds,
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
        }))
    else:
        table = Table(title=f"{rounds} rounds of produce, consume, free and reuse on two streams of {pipeline.device}")
        for heading in ("", "rounds corrupted", "races reported", "events recorded", "stream waits", "host ns per use"):
            table.add_column(heading, justify="left" if not heading else "right")
        for name, outcome in (("without xlogmem.use", without), (f"with it ({pipeline.policy})", protected)):
            table.add_row(name, f"[{'red' if outcome.corrupted else 'green'}]{outcome.corrupted}[/]",
                          "–" if outcome.races is None else str(outcome.races),
                          str(outcome.records), str(outcome.waits),
                          "–" if outcome.host_ns_per_use is None else f"{outcome.host_ns_per_use:.0f}")
        Console().print(table)
    if protected.corrupted or protected.races:
        raise SystemExit(1)
