"""The program that a command runs: `program.py` and `-m module` with this Python, and everything else as it is."""
from __future__ import annotations

import os
import shutil
import sys
from typing import Any

import click

from xlogmem._base.signatures import nearest
from xlogmem._base.texts import printable

__all__ = ["RunsProgram", "given_to_the_program", "nearest_option", "options_of", "program"]

HINT = "xlogmem.commands.programs.hint"                 # in `meta` of the context


def options_of(context: click.Context) -> list[str]:
    """The long options of a command, as they are written."""
    return [option for one in context.command.get_params(context) for option in (*one.opts, *one.secondary_opts)
            if option.startswith("--")]


def nearest_option(name: str, context: click.Context) -> list[str]:
    """The long option that a mistyped one looks most like, if it does: the dashes, which all have, do not count."""
    known = {option.lstrip("-"): option for option in options_of(context)}
    near = nearest(name.lstrip("-"), known)
    return [known[near]] if near else []


class RunsProgram(click.Command):
    """A command whose own options precede the program that it runs; later words belong to the program."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        settings["context_settings"] = {"ignore_unknown_options": True, "allow_interspersed_args": False}
        super().__init__(*arguments, **settings)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        given = list(args)
        before = args[:args.index("--")] if "--" in args else args
        joined = next((i for i, word in enumerate(before) if len(word) > 2 and word.startswith(("-m", "-c"))), None)
        if joined is not None:                          # -mpackage: an unknown option, behind which click goes on
            args.insert(joined, "--")
        try:
            rest = super().parse_args(ctx, args)
        except click.MissingParameter:
            raise click.UsageError(f"give a program, such as: xlogmem {self.name} program.py", ctx=ctx) from None
        words = ctx.params.get("command") or ()
        if words and given[:-len(words)][-1:] != ["--"]:
            ours = set(options_of(ctx)) - set(ctx.help_option_names)        # a program has that, too
            named = list(dict.fromkeys(option for word in words[1:] if (option := word.partition("=")[0]) in ours))
            if named:
                ctx.meta[HINT] = printable(
                    f"{' and '.join(named)} {'was' if len(named) == 1 else 'were'} given to {words[0]}, not to "
                    f"xlogmem {self.name}: options of the command stand before the program.  (`--` before the program "
                    "silences this line.)")
        return rest


def given_to_the_program() -> str:
    """A line about options of this command that stand behind the program, and so belong to it; empty if there is
    none."""
    return str(click.get_current_context().meta.get(HINT, ""))


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
        context = click.get_current_context()
        name = printable(first.partition("=")[0])
        raise click.NoSuchOption(name, possibilities=nearest_option(name, context), ctx=context)
    if first.endswith(".py"):
        if not os.path.isfile(first):
            raise click.UsageError(printable(f"{first!r}: there is no such file in {os.getcwd()}"))
        return [sys.executable, *words]
    if not shutil.which(first):
        what = "is not executable" if os.path.isfile(first) else "is neither a program nor a Python file (*.py)"
        raise click.UsageError(printable(f"{first!r} {what}"))
    return list(words)
