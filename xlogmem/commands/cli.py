"""The ``xlogmem`` command.

Each command prints a table, or one JSON object with ``--json``.  On a machine without a GPU the commands run on the
simulated driver, which announces itself.
"""
from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any

import click

import xlogmem
from xlogmem import _driver
from xlogmem._base.signatures import nearest
from xlogmem._base.texts import printable
from xlogmem.commands.programs import nearest_option, options_of
from xlogmem.errors import DriverNotFoundError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoints

__all__ = ["main"]

OWN = ("check", "demo", "top", "trace")                 # each in the module of its name, imported when it is called
GROUP = "xlogmem.commands"                              # entry points: commands that other packages bring
BENCH = ("bench", "replay", "selftest")                 # those of xlogmem-bench
MISSING = ("the package xlogmem-bench is not installed: pip install ./benchmarks (in a checkout of xlogmem), or "
           "conda install xlogmem-bench")


def entries() -> EntryPoints:
    """Return the entry points of commands."""
    from importlib.metadata import entry_points  # takes longer to import than a command of this package

    return entry_points(group=GROUP)


class Commands(click.Group):
    """The commands of this package and, where they are installed, those of others.

    A command whose package is not installed, or cannot be imported, says so when it is called.
    """

    def list_commands(self, context: click.Context) -> list[str]:
        return sorted({*super().list_commands(context), *OWN, *BENCH, *entries().names})

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        if own := super().get_command(context, name):
            return own
        if name in OWN:
            command: click.Command = getattr(import_module(f"xlogmem.commands.{name}"), name)
            return command
        for entry in entries().select(name=name):
            try:
                return entry.load()  # type: ignore[no-any-return]
            except Exception as error:      # of any kind: other packages raise it
                return unavailable(name, "Cannot be imported.",
                                   printable(f"{entry.value} cannot be imported: {type(error).__name__}: {error}"))
        if name in BENCH:
            return unavailable(name, "Not installed: xlogmem-bench.", MISSING)
        return None

    def resolve_command(self, context: click.Context, arguments: list[str]
                        ) -> tuple[str | None, click.Command | None, list[str]]:
        name = arguments[0]
        if self.get_command(context, name) is None:
            meant = f"check {name}" if os.path.isfile(name) else f"--{name}"
            if os.path.isfile(name) or meant in options_of(context):
                context.fail(printable(f"No such command {name!r}. Did you mean `xlogmem {meant}`?"))
            if near := nearest(name, self.list_commands(context)):      # click itself looks from 8.4 on
                context.fail(printable(f"No such command {name!r}. Did you mean {near!r}?"))
        return super().resolve_command(context, arguments)

    def parse_args(self, context: click.Context, arguments: list[str]) -> list[str]:
        if not arguments and not context.resilient_parsing:     # before 8.2 click's status is that of a command
            click.echo(context.get_help(), err=True, color=context.color)
            context.exit(2)
        with options_named():
            return super().parse_args(context, arguments)

    def invoke(self, context: click.Context) -> Any:
        with options_named():
            return super().invoke(context)


@contextmanager
def options_named() -> Iterator[None]:
    """Let the refusal of an option, of any command, name the nearest one, or all options where none is near."""
    try:
        yield
    except click.NoSuchOption as error:
        if not error.ctx:
            raise
        near = nearest_option(error.option_name, error.ctx)
        message = None if near else f"No such option {error.option_name!r}. The options are " + ", ".join(
            options_of(error.ctx))
        raise click.NoSuchOption(error.option_name, message, near, error.ctx) from None


def unavailable(name: str, short: str, reason: str) -> click.Command:
    """A command that fails with the reason, whatever its arguments are."""

    def fail(arguments: tuple[str, ...]) -> None:
        raise click.ClickException(f"xlogmem {name}: {reason}")

    return click.Command(name, callback=fail, params=[click.Argument(["arguments"], nargs=-1, type=click.UNPROCESSED)],
                         help=f"Not available: {reason}.", short_help=short,
                         context_settings={"ignore_unknown_options": True})


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(xlogmem.__version__, "-V", "--version", prog_name="xlogmem")
def main() -> None:
    """Stream-ordered GPU memory that knows who is using it."""


@main.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def info(as_json: bool) -> None:
    """Versions, driver, devices and settings."""
    from importlib.metadata import version

    from xlogmem._base.screens import Table, console

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
    table = Table("", "", left=(0, 1))
    for name, value in facts.items():
        table.add(name, ", ".join(value) if isinstance(value, list) else str(value))
    console().print(table)
