"""Running a program under the check, and what came of it."""
from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from xlogmem.check import audit, gpu, ignored
from xlogmem.check.again import Listener
from xlogmem.check.findings import Finding, merged

__all__ = ["CERTAIN", "PROGRAM_FAILED", "Outcome", "environments", "run", "run_again"]

CERTAIN, PROGRAM_FAILED = 1, 3          # exit codes; 2 is wrong usage
INJECT = Path(__file__).parent / "inject"


@dataclass
class Outcome:
    """What a program did under the check."""

    status: int                             # of the program; negative: the signal that ended it
    processes: int                          # that were checked
    lost: bool                              # the program ended without its findings: os._exit, or a signal
    findings: list[Finding]
    notes: dict[str, int]                   # what the findings may lack, in how many processes
    omissions: list[dict[str, Any]]         # of an audit
    ignored: list[dict[str, Any]]           # blocks of the program that ignore what is found there
    left_out: int                           # findings, by these
    needs: str                              # what the program uses that there is not on the pools that it had
    interrupted: bool                       # by Ctrl-C


def run(command: list[str], environment: dict[str, str], record: str | None = None) -> Outcome:
    """Run a command with these variables more, and collect what its Python processes found; what their engines were fed
    goes to a file.

    Raises
    ------
    FileNotFoundError
        There is no such program.
    """
    # A process that outlives the program may write to the folder while it is removed.
    with tempfile.TemporaryDirectory(prefix="xlogmem-check-", ignore_cleanup_errors=True) as folder:
        path = os.pathsep.join(filter(None, [str(INJECT), os.environ.get("PYTHONPATH")]))
        variables = os.environ | environment | {"XLOGMEM_CHECK": folder, "PYTHONPATH": path}
        if record:
            variables["XLOGMEM_CHECK_RECORD"] = "1"
        with closing(Listener(folder)) as listener:
            program = subprocess.Popen(command, env=variables)
            status, interrupted = waited_for(program)
        if record:
            with open(record, "wb") as file:
                for trace in sorted(Path(folder).glob("*.trace")):
                    file.write(f"== process {trace.stem}\n".encode() + trace.read_bytes())
        begun, ended = (Path(folder, f"{program.pid}.{what}").exists() for what in ("begun", "json"))
        documents = [json.loads(file.read_text()) for file in sorted(Path(folder).glob("*.json"))]
    notes = Counter(note for document in documents for note in document["notes"])
    return Outcome(status, len(documents), begun and not ended, merged(documents), dict(notes), audit.merged(documents),
                   ignored.merged(documents), sum(document["left_out"] for document in documents), listener.reason,
                   interrupted)


def run_again(command: list[str], environments: Sequence[dict[str, str]], record: str | None = None,
              say: Callable[[str], object] = print) -> Outcome:
    """`run` in the first environment, and in the next one if the program turns out to need what there is not in that.

    Parameters
    ----------
    say
        Called with a sentence before the program is started again.

    Raises
    ------
    FileNotFoundError
        There is no such program.
    """
    begun = place_in_input()
    for variables in environments:
        outcome = run(command, variables, record)
        if not outcome.needs or outcome.interrupted or variables is environments[-1]:
            break
        say(f"the program uses {outcome.needs}: started again with --pools real")
        if begun is not None:
            os.lseek(0, begun, os.SEEK_SET)
    return outcome


def place_in_input() -> int | None:
    """Where standard input is, if it is a file: from there on a program that is started again reads it."""
    try:
        return os.lseek(0, 0, os.SEEK_CUR)
    except OSError:                                     # a terminal or a pipe
        return None


def waited_for(program: subprocess.Popen[bytes]) -> tuple[int, bool]:
    """Its status, and whether Ctrl-C was pressed.  That is meant for the program, which gets it too; what it has found
    is still reported."""
    interrupted = False
    while True:
        try:
            return program.wait(), interrupted
        except KeyboardInterrupt:
            interrupted = True


def environments(on_gpu: bool | None, pools: str | None) -> tuple[list[dict[str, str]], str]:
    """The variables for a check on the GPU or on the simulated driver (None: on a GPU if there is one), and where that
    is in words.

    Parameters
    ----------
    pools
        Those that were chosen.  None: on a GPU the driver's, and after these the libraries' own, see `run_again`; on
        the simulated driver the libraries' own.

    Raises
    ------
    RuntimeError
        There is no GPU, or something that the check needs is not installed or in use.
    """
    if on_gpu is None:
        on_gpu = os.environ.get("XLOGMEM_SIMULATE") != "1" and gpu.is_there()
    elif on_gpu and not gpu.is_there():
        raise RuntimeError("there is no GPU here; --no-gpu checks on the simulated driver")
    if on_gpu:
        choices = [pools] if pools else ["driver", "real"]
        return [gpu.environment(choice) | {"XLOGMEM_SIMULATE": "0"} for choice in choices], "the GPU"
    return [{"XLOGMEM_SIM_QUIET": "1", "XLOGMEM_CHECK_GPU": "0"} | gpu.pools(pools or "real")], "the simulated driver"
