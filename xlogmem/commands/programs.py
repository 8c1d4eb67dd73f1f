"""The program that a command runs: `program.py` and `-m module` with this Python, and everything else as it is."""
from __future__ import annotations

import os
import shutil
import sys

import click

from xlogmem._base.texts import printable

__all__ = ["program"]


def program(words: tuple[str, ...]) -> list[str]:
    """Return what to run for the words after a command's own options.

    Raises
    ------
    click.NoSuchOption
        The first word is an option that neither the command nor Python's `-m` and `-c` know.
    click.UsageError
        There is no such file, or no such program.
    """
    first = words[0]
    if first.startswith("-"):
        if first[:2] in ("-m", "-c"):
            return [sys.executable, *words]
        from difflib import get_close_matches

        context = click.get_current_context()
        options = [option for parameter in context.command.params for option in parameter.opts]
        name = printable(first.partition("=")[0])
        raise click.NoSuchOption(name, possibilities=get_close_matches(name, options), ctx=context)
    if first.endswith(".py"):
        if not os.path.isfile(first):
            raise click.UsageError(printable(f"{first!r}: there is no such file in {os.getcwd()}"))
        return [sys.executable, *words]
    if not shutil.which(first):
        what = "is not executable" if os.path.isfile(first) else "is neither a program nor a Python file (*.py)"
        raise click.UsageError(printable(f"{first!r} {what}"))
    return list(words)
