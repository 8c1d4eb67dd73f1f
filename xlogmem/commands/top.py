"""``xlogmem top``."""
from __future__ import annotations

import sys

import click
from rich.console import Console
from rich.live import Live

from xlogmem._base.screens import console
from xlogmem._base.texts import printable
from xlogmem.commands.programs import RunsProgram, given_to_the_program, program
from xlogmem.observe.live.reading import LiveError
from xlogmem.observe.live.watching import JsonLines, Screen, Shown, Texts, follow, run

__all__ = ["top"]


@click.command(cls=RunsProgram)
@click.option("--pid", type=click.IntRange(min=1), help="Look at a process that runs, and publishes its figures.")
@click.option("--interval", type=click.FloatRange(min=0.05), default=1.0, show_default=True,
              help="Seconds between two pictures.")
@click.option("--once", is_flag=True, help="Print one picture as text; of a program, the first one with a runtime.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object a line.")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def top(pid: int | None, interval: float, once: bool, as_json: bool, command: tuple[str, ...]) -> None:
    """Show a process's memory, uses and waits, live.

    `xlogmem top program.py` (or `-m package`, or `-- command`) runs a program, shows it and the processes that it
    starts, and ends with its exit status.  `xlogmem top --pid PID` looks at a process that was started with
    XLOGMEM_PUBLISH=1, or has called xlogmem.publish(), until it ends.  With --once and --json the program's output
    goes to standard error.
    """
    if (pid is None) == (not command):
        raise click.UsageError("give either --pid PID or a program, such as: xlogmem top program.py")
    words = program(command) if command else []
    try:
        if as_json:
            watch(pid, words, JsonLines(), interval, once, None)
        elif once:
            watch(pid, words, Texts(console()), interval, once, None)
        elif sys.stderr.isatty():
            above = console(stderr=True)
            with Live(console=above, auto_refresh=False) as live:
                watch(pid, words, Screen(live), interval, once, above)
        else:
            watch(pid, words, Texts(console(stderr=True)), interval, once, console(stderr=True))
    except LiveError as error:
        raise click.ClickException(printable(str(error))) from error
    except OSError as error:
        raise click.UsageError(printable(str(error))) from error
    except KeyboardInterrupt:                           # the way to leave a process that goes on
        return
    finally:
        if hint := given_to_the_program():
            click.echo(f"xlogmem top: {printable(hint)}", err=True)


def watch(pid: int | None, words: list[str], shown: Shown, interval: float, once: bool,
          above: Console | None) -> None:
    if pid is not None:
        follow(pid, shown, interval, once)
    elif status := run(words, shown, interval, once, above):
        sys.exit(status)
