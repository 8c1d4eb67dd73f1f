"""Running a program under the check, and what came of it."""
from __future__ import annotations

import json
import os
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from xlogmem.check.findings import Finding, merged

__all__ = ["CERTAIN", "PROGRAM_FAILED", "Outcome", "run"]

CERTAIN, PROGRAM_FAILED = 1, 3          # exit codes; 2 is wrong usage
INJECT = Path(__file__).parent / "inject"


@dataclass
class Outcome:
    """What a program did under the check."""

    status: int                             # of the program; negative: the signal that ended it
    processes: int                          # that were checked
    findings: list[Finding]


def run(command: list[str]) -> Outcome:
    """Run a command, and collect what its Python processes found.

    Raises
    ------
    FileNotFoundError
        There is no such program.
    """
    with tempfile.TemporaryDirectory(prefix="xlogmem-check-") as folder:
        path = os.pathsep.join(filter(None, [str(INJECT), os.environ.get("PYTHONPATH")]))
        status = subprocess.run(command, env=os.environ | {"XLOGMEM_CHECK": folder, "PYTHONPATH": path,
                                                           "XLOGMEM_SIM_QUIET": "1"}).returncode
        documents = [json.loads(file.read_text()) for file in sorted(Path(folder).glob("*.json"))]
    return Outcome(status, len(documents), merged(documents))
