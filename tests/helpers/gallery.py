"""The programs of examples/races, and what the check has to find in each."""
from __future__ import annotations

import functools
import importlib.util
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from page_guard import NEEDED
from places import ROOT

FOLDER = ROOT / "examples/races"
BY_HOST = " by the host"
CHECK = [sys.executable, "-m", "xlogmem", "check"]
# What a library has to be able to do under the check before its programs can be expected to.
STARTS = {"cupy": "import cupy; cupy.zeros(1)",
          "numba": "from numba import cuda; cuda.jit(lambda x: None)[1, 1](cuda.device_array(1))"}


@dataclass(frozen=True)
class Race:
    """A row of the table."""

    program: str
    thread: str
    libraries: tuple[str, ...]
    finding: str
    by_host: bool       # the second operation is the host's own access

    @property
    def file(self) -> Path:
        return FOLDER / f"{self.program}.py"

    def line(self, mark: str) -> int:
        number, = (number for number, line in enumerate(self.file.read_text().splitlines(), 1)
                   if re.search(rf" # {mark}\b", line))
        return number

    def __str__(self) -> str:
        return self.program


def rows() -> list[Race]:
    text = (FOLDER / "README.md").read_text()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()
             if re.match(r"\| \d\d_", line)]
    return [Race(program, re.search(r"\((.*)\)", thread).group(1), tuple(libraries.split(", ")),
                 finding.removesuffix(BY_HOST), finding.endswith(BY_HOST))
            for program, thread, libraries, finding in cells]


RACES = rows()
CHECKED = [pytest.param(race, marks=NEEDED if race.by_host else (), id=race.program) for race in RACES]


@functools.cache
def why_not(library: str, place: str = "--no-gpu") -> str | None:
    """Why programs of this library cannot run here, in that place."""
    try:
        if importlib.util.find_spec(library) is None:
            return f"{library} is not installed"
    except ModuleNotFoundError:
        return f"{library} is not installed"
    if library not in STARTS:
        return None
    environment = {name: value for name, value in os.environ.items() if not name.startswith("XLOGMEM_")}
    done = subprocess.run([*CHECK, place, "--", sys.executable, "-c", STARTS[library]], capture_output=True, text=True,
                          env=environment, timeout=120)
    return None if done.returncode == 0 else f"{library} does not start under the check ({place})"


def require(race: Race, place: str = "--no-gpu") -> None:
    for library in race.libraries:
        if reason := why_not(library, place):
            pytest.skip(reason)
