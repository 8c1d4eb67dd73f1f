"""``xlogmem selftest --defects``: does the oracle notice each rule being broken?

Each defect that a build with checks can plant (tests/defects.toml) gets a process of its own, because a broken rule may
end it or never let it end; there the programs run until one goes wrong.  Defects that name a test are left to it.  A
process without a defect comes first: if a program goes wrong there too, what the others find proves nothing.  This
module is also what such a process runs.
"""
from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any

from xlogmem import sim
from xlogmem._driver import BUILD

__all__ = ["Result", "available", "find_all", "searched"]

CONTROL = 10                                # seconds without a defect
STUCK = 30                                  # seconds beyond the limit after which a process counts as stuck


@dataclass(frozen=True)
class Result:
    """Result for one defect: `programs` is the number of the program that found it, None: not found; `reached` is the
    number of times that the broken rule was reached, None if the process ended without a report."""

    name: str
    rule: str
    programs: int | None
    seen: str
    reached: int | None

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def available() -> bool:
    """True if this build has defects."""
    return BUILD != "release"


def _planted() -> Any:
    """The module that selects a defect; release builds have none."""
    return importlib.import_module("xlogmem._defects")


def searched() -> list[str]:
    """The names of the defects that programs have to find."""
    return [name for name, defect in _planted().DEFECTS.items() if not defect.test]


def find_all(names: list[str], seconds: float) -> Iterator[Result]:
    """Look for each of these defects for so many seconds at most, several at a time.

    Raises
    ------
    RuntimeError
        A program went wrong without a defect, or a process ended before its first program.
    """
    control = _find("", min(seconds, CONTROL))
    if control.programs is not None:
        raise RuntimeError(f"programs go wrong without a defect too: {control.seen}")
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        yield from pool.map(lambda name: _find(name, seconds), names)


def _find(name: str, seconds: float) -> Result:
    """Run programs with a defect, or without one (""), in a process of its own, and return the result."""
    rule = _planted().DEFECTS[name].rule if name else ""
    command = [sys.executable, "-m", "xlogmem_selftest.defects", name, str(seconds)]
    environment = os.environ | sim.settings(quiet=True)
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds + STUCK, env=environment)
        output, errors, code = done.stdout, done.stderr, done.returncode
    except subprocess.TimeoutExpired as expired:
        output = (expired.stdout or b"").decode() if isinstance(expired.stdout, bytes) else expired.stdout or ""
        errors, code = "the program did not end", -1
    lines = output.splitlines()
    begun = sum(line == "program" for line in lines)
    if lines and lines[-1].startswith("{"):
        end = json.loads(lines[-1])
        return Result(name, rule, begun if end["seen"] else None, end["seen"], end["reached"])
    last = [line for line in errors.splitlines() if line.strip()][-1:] or [f"exit code {code}"]
    broken = [line for line in errors.splitlines() if "broken invariant" in line]
    if not begun:                                       # it never came to run a program: no finding
        raise RuntimeError(f"the process for {name or 'no defect'} failed: {errors[-2000:]}")
    return Result(name, rule, begun, (broken or last)[0], None)


def _hunt(name: str, seconds: float) -> None:
    """In a process of its own: a line for each program that begins, and how it ended."""
    import xlogmem_selftest as selftest
    from xlogmem.commands.start import start_driver

    start_driver()
    _planted().plant(name or None)
    seen = ""

    def begin(report: selftest.Report) -> None:
        print("program", flush=True)

    report = selftest.run(selftest.Settings(programs=None, seconds=seconds, shrink=False), begin)
    if report.failure:
        seen = report.failure.violations[0]
    print(json.dumps({"seen": seen, "reached": _planted().reached()}), flush=True)
    os._exit(0)                                         # a broken runtime is not worth closing


if __name__ == "__main__":
    _hunt(sys.argv[1], float(sys.argv[2]))
