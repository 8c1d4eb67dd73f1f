"""``xlogmem check``."""
from __future__ import annotations

import os
import shutil
import sys
import textwrap

import click

from xlogmem._base.texts import printable
from xlogmem.check import audit, outputs, report, suppressions
from xlogmem.check import command as runner
from xlogmem.check.findings import by_places
from xlogmem.commands.programs import RunsProgram, given_to_the_program, program

__all__ = ["check"]


@click.command(cls=RunsProgram)
@click.option("--gpu/--no-gpu", "on_gpu", default=None,
              help="Run on the GPU, or on the simulated driver; by default on a GPU if there is one.")
@click.option("--pools", type=click.Choice(["driver", "real"]), default="driver", show_default=True,
              help="Let CuPy, RMM and JAX allocate from the driver's pool, where each allocation is seen, or from "
              "their own.  PyTorch's own stays.")
@click.option("--json", "json_file", type=click.Path(dir_okay=False), help="Write the findings to this file, too.")
@click.option("--sarif", "sarif_file", type=click.Path(dir_okay=False), help="The same as SARIF, for code review.")
@click.option("--possible", is_flag=True, help="Show what is possible, too: it depends on what a kernel does.")
@click.option("--strict", is_flag=True, help="Possible findings fail the check as certain ones do.")
@click.option("--suppress", "suppress_file", type=click.Path(exists=True, dir_okay=False),
              help="Leave out what this TOML file lists; see docs/check.md.")
@click.option("--record", "record_file", type=click.Path(dir_okay=False),
              help="Write the calls that were judged to this file; see docs/check.md.")
@click.option("--allow-none", is_flag=True, help="A command in which nothing is checked is not a failure.")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def check(on_gpu: bool | None, pools: str, json_file: str | None, sarif_file: str | None, possible: bool, strict: bool,
          suppress_file: str | None, record_file: str | None, allow_none: bool, command: tuple[str, ...]) -> None:
    """Find missing waits between streams in any CUDA Python program.

    `xlogmem check program.py` runs the program on a GPU or, where there is none, on the simulated driver, on which no
    kernel computes anything; `xlogmem check -m package` and `xlogmem check -- torchrun program.py` likewise.  Exit
    status 0: nothing was found.  1: certain findings.  2: wrong usage.  3: the program itself failed, nothing was
    checked, or a process was lost before everything was judged.
    """
    words = program(command)
    try:
        outputs.refuse({"--json": json_file, "--sarif": sarif_file, "--record": record_file}, words)
        known = suppressions.shipped() + (suppressions.loaded(suppress_file) if suppress_file else [])
        environment, driver = runner.environment(on_gpu, pools)
        if sys.stderr.isatty():                         # later lines would run into the program's output
            say(f"{named(command)} runs on {driver}; the findings come when it has ended")
        outcome = runner.run(words, environment, record_file)
    except (OSError, ValueError, RuntimeError) as error:
        raise click.UsageError(printable(str(error))) from error
    findings, suppressed = suppressions.applied(known, outcome.findings)
    suppressed += outcome.left_out
    for entry in by_places(one for one in findings if one.certain or possible or strict):
        show(report.as_entry(entry))
    for text in audit.as_texts(outcome.omissions):
        show(text)
    for one in known:
        if not one.used and not one.ships:
            say(f"nothing fits the suppression {one.patterns} ({one.reason})")
    for block in outcome.ignored:
        if not block["used"]:
            say(f"nothing to ignore at {block['place']} ({block['reason']})")
    for note in filter(None, [*outcome.notes, *outcome.lost, given_to_the_program()]):
        say(note)
    if not outcome.used:
        say("nothing was checked: no process made a call of the driver" + ("" if outcome.status else (
            ".  Python has to run without its options -I, -E and -S, and a compiled program to find libcuda.so.1 by "
            "its name")))
    ended = f"the program {outcome.ended}: what it left out was not checked.  Found so far: " if outcome.ended else ""
    hidden = "" if possible or strict else "see --possible; they fail the check with --strict"
    say(f"{ended}{report.summary(findings, suppressed, len(outcome.omissions), hidden)}, on {driver}")
    documents = [(json_file, report.as_json(findings) | {"driver": driver, "status": outcome.status,
                                                         "ended_early": outcome.ended, "notes": outcome.notes,
                                                         "omissions": outcome.omissions}),
                 (sarif_file, report.as_sarif(findings))]
    failures = [outputs.written(file, outputs.as_json(document)) for file, document in documents if file]
    failures = list(filter(None, [outcome.unrecorded, *failures]))
    for failure in failures:
        say(failure)
    if any(one.certain or strict for one in findings):
        sys.exit(runner.CERTAIN)
    if outcome.status or outcome.lost or (not outcome.used and not allow_none):
        sys.exit(runner.PROGRAM_FAILED)
    if failures:
        sys.exit(runner.WRONG_USAGE)


def named(command: tuple[str, ...]) -> str:
    """The program, without its arguments."""
    return " ".join(command[:2]) if command[0] == "-m" else command[0]


COLOURS = {"CERTAIN": "red", "AUDIT": "yellow", "POSSIBLE": "yellow", "  repair": "green"}


def show(text: str) -> None:
    """Print a finding; on a terminal in colour, unless NO_COLOR is set (https://no-color.org)."""
    lines = []
    for line in fitted(text):
        word = next((word for word in COLOURS if line.startswith(word + " ")), "")
        lines.append(click.style(word, fg=COLOURS[word], bold=True) + line[len(word):] if word else line)
    click.echo("\n".join([*lines, ""]), err=True, color=False if os.environ.get("NO_COLOR") else None)


def say(text: str) -> None:
    for line in fitted(printable(f"xlogmem check: {text}")):
        click.echo(printable(line), err=True)


def fitted(text: str) -> list[str]:
    """The lines of a text; on a terminal wrapped between words, with continued lines indented."""
    lines = text.splitlines()
    if not sys.stderr.isatty():
        return lines
    width = shutil.get_terminal_size().columns
    indents = [len(line) - len(line.lstrip()) for line in lines]
    return [printable(part) for line, indent in zip(lines, indents, strict=True)
            for part in textwrap.wrap(line, width, subsequent_indent=" " * (10 if indent == 2 else indent + 4),
                                      break_long_words=False, break_on_hyphens=False) or [line]]
