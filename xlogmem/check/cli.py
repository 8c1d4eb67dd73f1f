"""``xlogmem check``."""
from __future__ import annotations

import json
import sys

import click

from xlogmem.check import command as runner
from xlogmem.check import report, suppressions

__all__ = ["check"]


@click.command(context_settings={"ignore_unknown_options": True})
@click.option("--json", "json_file", type=click.Path(dir_okay=False), help="Write the findings to this file, too.")
@click.option("--sarif", "sarif_file", type=click.Path(dir_okay=False), help="The same as SARIF, for code review.")
@click.option("--possible", is_flag=True, help="Show what is possible, too: it depends on what a kernel does.")
@click.option("--strict", is_flag=True, help="Possible findings fail the check as certain ones do.")
@click.option("--suppress", "suppress_file", type=click.Path(exists=True, dir_okay=False),
              help="Leave out what this TOML file lists; see docs/check.md.")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def check(json_file: str | None, sarif_file: str | None, possible: bool, strict: bool, suppress_file: str | None,
          command: tuple[str, ...]) -> None:
    """Run a program, and find accesses to device memory that nothing puts in order.

    `xlogmem check -- python program.py` runs the program on the simulated driver: no GPU is needed, and no kernel
    computes anything.  Exit status 0: nothing was found.  1: certain findings.  3: the program itself failed.
    """
    try:
        known = suppressions.loaded(suppress_file) if suppress_file else []
        outcome = runner.run(list(command))
    except (FileNotFoundError, PermissionError, ValueError) as error:
        raise click.UsageError(str(error)) from error
    findings, suppressed = suppressions.applied(known, outcome.findings)
    for finding in findings:
        if finding.certain or possible or strict:
            click.echo(report.as_text(finding) + "\n", err=True)
    for one in known:
        if not one.used:
            click.echo(f"xlogmem check: nothing fits the suppression {one.patterns} ({one.reason})", err=True)
    if not outcome.processes:
        click.echo("xlogmem check: no Python process was checked: is the command a Python program?", err=True)
    click.echo(f"xlogmem check: {report.summary(findings, suppressed)}, on the simulated driver", err=True)
    if json_file:
        with open(json_file, "w") as file:
            json.dump({"status": outcome.status, "findings": [one.as_json() for one in findings]}, file, indent=1)
    if sarif_file:
        with open(sarif_file, "w") as file:
            json.dump(report.as_sarif(findings), file, indent=1)
    if any(one.certain or strict for one in findings):
        sys.exit(runner.CERTAIN)
    if outcome.status:
        click.echo(f"xlogmem check: the program ended with status {outcome.status}", err=True)
        sys.exit(runner.PROGRAM_FAILED)
