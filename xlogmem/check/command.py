"""Running a program under the check, and collecting its findings."""
from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from xlogmem import sim
from xlogmem._base.private import Folder, private_folder
from xlogmem.check import audit, gpu, ignored, native, outputs, processes
from xlogmem.check.findings import Finding, merged
from xlogmem.check.notes import COMPUTED_NOTHING, MAY_HAVE_VERIFIED

__all__ = ["CERTAIN", "PROGRAM_FAILED", "WRONG_USAGE", "Outcome", "environment", "run"]

CERTAIN, WRONG_USAGE, PROGRAM_FAILED = 1, 2, 3          # exit codes
INJECT = Path(__file__).parent / "inject"


@dataclass
class Outcome:
    """Result of a program under the check."""

    status: int                             # of the program; negative: the signal that ended it
    ended: str                              # how it ended if that was early, such as "ended with status 7"
    used: bool                              # one of them made a call of the driver
    lost: list[str]                         # why findings may be missing, a sentence for each process
    findings: list[Finding]
    notes: dict[str, int]                   # gaps in the findings, in how many processes
    omissions: list[dict[str, Any]]         # of an audit
    ignored: list[dict[str, Any]]           # blocks of the program that ignore their findings
    left_out: int                           # findings, by these
    unrecorded: str                         # why the file of a record could not be written


def run(command: list[str], environment: dict[str, str], record: str | None = None) -> Outcome:
    """Run a command with these additional variables, and collect the findings of its Python processes; the input of
    their engines goes to a file.

    Raises
    ------
    FileNotFoundError
        There is no such program.
    """
    # A process that outlives the program may write to the folder while it is removed.
    with tempfile.TemporaryDirectory(prefix="xlogmem-check-", ignore_cleanup_errors=True) as folder, \
            private_folder(folder) as opened:
        path = os.pathsep.join(filter(None, [str(INJECT), os.environ.get("PYTHONPATH")]))
        variables = os.environ | environment | {"XLOGMEM_CHECK": folder, "PYTHONPATH": path}
        if environment.get("XLOGMEM_CHECK_GPU") == "0":
            variables |= native.environment(Path(folder, "libraries"))
        if record:
            variables["XLOGMEM_CHECK_RECORD"] = "1"
        program = subprocess.Popen(command, env=variables)
        with passed_on_to(program):
            status = waited_for(program)
        found = processes.accounts(opened)
        cut: list[str] = []
        unrecorded = outputs.written(record, lambda file: cut.extend(copy_traces(opened, file))) if record else ""
    documents = [one.document for one in found]
    notes = Counter(note for one in found for note in [*one.document["notes"], *one.notes]) + Counter(cut)
    lost = [one.lost for one in found if one.lost]
    errors = {document["process"]: error for document in documents if (error := document.get("error"))}
    error = errors.pop(program.pid, "")
    ended = ended_early(status, error)
    if status > 0 and not error and any(note.endswith(COMPUTED_NOTHING) for note in notes):
        notes[MAY_HAVE_VERIFIED] = 1
    notes.update(f"process {process} {error}: what it left out was not checked"
                 for process, error in errors.items())
    return Outcome(status, ended, any(one.used for one in found), lost, merged(documents), dict(notes),
                   audit.merged(documents), ignored.merged(documents),
                   sum(document["left_out"] for document in documents), unrecorded)


def ended_early(status: int, error: str) -> str:
    """Say how a program with this status ended; empty where it ended well.  `error` is that of its own process."""
    if not status or error:
        return error if status else ""
    if status > 0:
        return f"ended with status {status}"
    with suppress(ValueError):
        return f"was ended by {signal.Signals(-status).name}"
    return f"was ended by signal {-status}"


def copy_traces(folder: Folder, file: IO[str]) -> list[str]:
    """Copy the traces of all processes, one after the other, each with its places.  Of a trace that was cut the whole
    lines are copied; returns sentences about these."""
    names, notes = folder.names(), []
    for process in sorted(name.removesuffix(".trace") for name in names if name.endswith(".trace")):
        trace, places = folder.read(f"{process}.trace"), f"{process}.places"
        lines = [f"== process {process}\n".encode(), trace]
        if not is_whole(trace):
            lines = [lines[0], trace[:trace.rfind(b"\n") + 1], b"# cut here\n"]
            notes.append(f"process {process}: the file of --record lacks its last calls: the process did not end by "
                         "itself, the disk was full, or the file was truncated meanwhile")
        if places in names:
            lines.append(folder.read(places))
        file.write(b"".join(lines).decode("utf-8", "surrogateescape"))
    return notes


def is_whole(trace: bytes) -> bool:
    """True if the last line says how many bytes are before it: see cpp/engine/trace.hpp."""
    begin = trace.rfind(b"\n", 0, -1) + 1
    return trace[begin:] == f":end-of-trace {begin}\n".encode()


def waited_for(program: subprocess.Popen[bytes]) -> int:
    """Wait for a program, and return its status.  Ctrl-C is meant for the program, which gets it too; the program's
    findings are still reported."""
    while True:
        try:
            return program.wait()
        except KeyboardInterrupt:
            continue


@contextmanager
def passed_on_to(program: subprocess.Popen[bytes]) -> Iterator[None]:
    """Forward signals that would end this process, such as the SIGTERM of a job's time limit, to a program: else the
    program would go on alone, and its findings would be lost."""
    if threading.current_thread() is not threading.main_thread():       # which cannot set handlers
        yield
        return
    ends = [number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) == signal.SIG_DFL]
    for number in ends:
        signal.signal(number, lambda number, frame: program.send_signal(number))
    try:
        yield
    finally:
        for number in ends:
            signal.signal(number, signal.SIG_DFL)


def environment(on_gpu: bool | None, pools: str) -> tuple[dict[str, str], str]:
    """Return the variables for a check on the GPU or on the simulated driver (None: on a GPU if there is one), and the
    place of the check in words; for `pools` see `gpu.pools`.

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
        return gpu.environment(pools) | preloaded() | {"XLOGMEM_SIMULATE": "0"}, "the GPU"
    # PyTorch's layers use cuBLAS, which is simulated, in place of cuBLASLt.
    without_lt = {"DISABLE_ADDMM_CUDA_LT": "1"}
    return (sim.settings(quiet=True) | without_lt | preloaded() | {"XLOGMEM_CHECK_GPU": "0"}), "the simulated driver"


def preloaded() -> dict[str, str]:
    """Return the variable by which system calls on memory that the device still works on are seen: see
    cpp/preload/preload.c.  A sanitizer's library has to stay the first one."""
    library = next(Path(__file__).parent.glob("_preload*.so"))
    return {"LD_PRELOAD": ":".join(filter(None, [os.environ.get("LD_PRELOAD"), str(library)]))}
