"""Inside of the program that is checked: the driver feeds the engine, and what it finds is written at the end."""
from __future__ import annotations

import atexit
import json
import os
import sys
from pathlib import Path

from xlogmem import sim
from xlogmem.check import findings, sites

__all__ = ["begin", "watch"]


def begin(folder: str) -> None:
    """Check this process from here on, and write its findings to a file in the folder when the interpreter ends.

    What the interpreter frees while it ends is not a finding that a program could do anything about: this comes first,
    so that its handler runs after all of the program's, and nothing after it counts.
    """
    watch()
    atexit.register(write, Path(folder), os.getpid())


def watch() -> sim.Simulator:
    """From here on the driver has the engine, and its calls have places."""
    simulator = sim.install()
    if sites.start():
        simulator.find_sites(sites.address_of_function())
    return simulator


def write(folder: Path, process: int) -> None:
    """One file for each process; a forked child has no driver, and nothing to say."""
    if os.getpid() != process:
        return
    simulator = sim.simulator()
    simulator.find_sites(None)
    found = [findings.resolved(one) for one in simulator.findings()]
    document = {"process": process, "program": sys.argv, "findings": [one.as_json() for one in found]}
    (folder / f"{process}.json").write_text(json.dumps(document))
