"""Runs the zoo on a machine with a GPU:  python tests/zoo/run.py OUT [--public FOLDER] [OPTION...]

Each right program runs alone (bare), under `xlogmem check --gpu` (driver) and with `--pools real` (real); each wrong
variant under the check alone.  README.md beside this file says what has to come out.  A table goes to the standard
output, everything to OUT/zoo.json, what failed to OUT/zoo.txt, with the reports.  Exit status 1 if anything failed.

The Python that runs this has to have xlogmem, built or installed; needs the standard library otherwise.
"""
from __future__ import annotations

import argparse
import contextlib
import fnmatch
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import zoo_report as report
from zoo_judge import Outcome, judged, step_ms
from zoo_manifest import MODES, NUMPY24, Program, Wrong, programs, why_not

ENVIRONMENT = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "2",
               "MPLBACKEND": "Agg", "PYTHONUNBUFFERED": "1", "PYTHONDONTWRITEBYTECODE": "1",
               "TOKENIZERS_PARALLELISM": "false", "MASTER_ADDR": "127.0.0.1"}
# Of a run that is played again by itself: other programs had taken the memory; Triton 3.6 ends so now and then.
NOT_ITS_OWN = ("out of memory", "Out of memory", "ALLOC_FAILED", "terminate called without an active exception")
LEAST = 75                                              # right programs that a whole run has
ports_given: set[int] = set()
ports_lock = threading.Lock()


@dataclass(frozen=True)
class Run:
    """A program or one of its variants, in a mode."""

    program: Program
    mode: str
    wrong: Wrong | None = None

    @property
    def name(self) -> str:
        return f"{self.program.name} {self.wrong.name}" if self.wrong else self.program.name


def runs_of(chosen: list[Program], modes: list[str]) -> list[Run]:
    """The longest first, so that none is left alone at the end."""
    found = []
    for program in chosen:
        found += [Run(program, mode, program.itself)
                  for mode in program.modes if mode in modes]
        found += [Run(program, mode, wrong) for wrong in program.wrong for mode in wrong.modes if mode in modes]
    return sorted(found, key=lambda run: -run.program.seconds)


def free_port() -> int:
    """One that no other program of this run gets."""
    with ports_lock:
        while True:
            with socket.socket() as listener:
                listener.bind(("127.0.0.1", 0))
                port: int = listener.getsockname()[1]
            if port not in ports_given:
                ports_given.add(port)
                return port


def environment_of(program: Program, steps: int | None) -> dict[str, str]:
    variables = os.environ | ENVIRONMENT | {"MASTER_PORT": str(free_port())} | program.environment
    if steps and program.timed:
        variables["ZOO_STEPS"] = str(steps)
    if "numpy24" in program.needs:
        variables["PYTHONPATH"] = os.pathsep.join(filter(None, [os.environ[NUMPY24], os.environ.get("PYTHONPATH")]))
    return variables


def command_of(run: Run, folder: Path, document: Path) -> list[str]:
    variant = [run.wrong.name] if run.wrong and run.program.right else []
    arguments = [argument.replace("{tmp}", str(folder)) for argument in run.program.arguments]
    command = [sys.executable, str(run.program.file), *arguments, *variant]
    if run.mode == "bare":
        return command
    pools = ["--pools", "real"] if run.mode == "real" else []
    return [sys.executable, "-m", "xlogmem", "check", "--gpu", "--possible", "--json", str(document), *pools, "--",
            *command]


def waited_for(process: subprocess.Popen[bytes], seconds: float) -> tuple[int | None, int]:
    """Its status and the most memory that one of its processes had, in MiB; None: it was killed, with its children."""
    end = time.monotonic() + seconds
    while True:
        pid, status, usage = os.wait4(process.pid, os.WNOHANG)
        if pid:
            process.returncode = os.waitstatus_to_exitcode(status)
            return process.returncode, usage.ru_maxrss >> 10
        if time.monotonic() > end:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return None, 0
        time.sleep(0.02)


def text_of(file: IO[bytes], most: int = 200_000) -> str:
    file.seek(max(0, file.seek(0, os.SEEK_END) - most))
    return file.read().decode(errors="replace")


def outcome_of(run: Run, steps: int | None = None) -> Outcome:
    """Runs it, in a session of its own, and collects what it wrote."""
    with (tempfile.TemporaryDirectory(prefix="zoo-", ignore_cleanup_errors=True) as name,
          tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err):
        folder, document = Path(name), Path(name, "findings.json")
        begin = time.monotonic()
        process = subprocess.Popen(command_of(run, folder, document), stdin=subprocess.DEVNULL, stdout=out, stderr=err,
                                   cwd=run.program.folder or folder, env=environment_of(run.program, steps),
                                   start_new_session=True)
        status, peak = waited_for(process, run.program.seconds)
        seconds = time.monotonic() - begin
        with contextlib.suppress(ProcessLookupError):   # what it left running
            os.killpg(process.pid, signal.SIGKILL)
        found = json.loads(document.read_text()) if status is not None and document.exists() else None
        return Outcome(status, text_of(out), text_of(err), seconds, found, peak)


def is_timed(run: Run) -> bool:
    return run.program.timed and run.wrong is None


def least_step(turns: Iterable[Outcome | None]) -> float | None:
    """The shortest of several turns, in ms: hosts are noisy."""
    return min((step for outcome in turns if outcome and (step := step_ms(outcome.out))), default=None)


def slowdown_of(run: Run, step: float | None, alone: float | None) -> float | None:
    return round(step / alone, 2) if step and alone and run.mode != "bare" and not run.wrong else None


def row_of(run: Run, outcome: Outcome | None, bare: Outcome | None, step: float | None, alone: float | None,
           skipped: str | None) -> report.Row:
    """What the table says of a run; without an outcome it was skipped, or there was no time for it."""
    if outcome is None:
        return report.Row(run.program.name, run.program.kind, run.wrong.name if run.wrong else "", run.mode,
                          failures=[] if skipped else ["not run: no time was left"], skipped=skipped or "")
    return report.Row(
        run.program.name, run.program.kind, run.wrong.name if run.wrong else "", run.mode,
        seconds=round(outcome.seconds, 1), bare_seconds=round(bare.seconds, 1) if bare else None,
        certain=outcome.count(True), possible=outcome.count(False), status=outcome.own_status, step_ms=step,
        slowdown=slowdown_of(run, step, alone), peak_mb=outcome.peak_mb,
        notes=(outcome.document or {}).get("notes", {}),
        failures=judged(run.program, run.wrong, bare, outcome, run.mode))


def played(runs: list[Run], options: argparse.Namespace) -> tuple[list[report.Row], dict[int, Outcome]]:
    """Everything, several at a time; the rows, and the outcomes by the number of the row."""
    end = time.monotonic() + options.seconds
    skipped = {run.program.name: why_not(run.program) for run in runs}

    def play(run: Run) -> Outcome | None:
        if skipped[run.program.name] or time.monotonic() > end:
            return None
        return outcome_of(run, options.steps)

    with ThreadPoolExecutor(options.workers) as workers:
        outcomes = list(workers.map(play, runs))
        turns = [outcomes, *(list(workers.map(lambda run: play(run) if is_timed(run) else None, runs))
                             for _ in range(options.turns - 1))]
    for number, outcome in enumerate(outcomes):
        if outcome and outcome.status and any(text in outcome.err for text in NOT_ITS_OWN):
            outcomes[number] = play(runs[number])
    bare = {run.program.name: outcome for run, outcome in zip(runs, outcomes, strict=True)
            if run.mode == "bare" and outcome}
    steps = [least_step(of_one) for of_one in zip(*turns, strict=True)]
    alone = {run.program.name: step for run, step in zip(runs, steps, strict=True) if run.mode == "bare"}
    rows = [row_of(run, outcome, bare.get(run.program.name), step, alone.get(run.program.name),
                   skipped[run.program.name])
            for run, outcome, step in zip(runs, outcomes, steps, strict=True)]
    return rows, {number: outcome for number, outcome in enumerate(outcomes) if outcome}


def options_of(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Run the zoo on a machine with a GPU; tests/zoo/README.md says more.")
    parser.add_argument("out", type=Path, help="the folder that zoo.json and zoo.txt go to")
    parser.add_argument("--public", type=Path, help="the folder with the checkouts of public programs: public.toml")
    parser.add_argument("--only", action="append", metavar="PATTERN", help="these programs alone, as `torch_*`")
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES))
    parser.add_argument("--workers", type=int, default=8, help="so many at a time (default: 8)")
    parser.add_argument("--seconds", type=float, default=480, help="what has not begun by then fails (default: 480)")
    parser.add_argument("--timed", action="store_true", help="only the programs that print the time of a step")
    parser.add_argument("--turns", type=int, default=1, help="these so many times: the least time of a step counts")
    parser.add_argument("--steps", type=int, help="so many steps in these")
    parser.add_argument("--slowest", type=float, help="fail where a step of 20 ms or more takes so many times as long")
    return parser.parse_args(arguments)


def chosen_from(everything: list[Program], options: argparse.Namespace) -> list[Program]:
    return [program for program in everything if (program.timed or not options.timed)
            and (not options.only or any(fnmatch.fnmatch(program.name, pattern) for pattern in options.only))]


def main(arguments: list[str] | None = None) -> int:
    options = options_of(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    chosen = chosen_from(programs(options.public and options.public.resolve()), options)
    rows, outcomes = played(runs_of(chosen, options.modes), options)
    if options.slowest:
        report.judge_slowdown(rows, options.slowest)
    problems = report.problems_of(rows, 0 if options.only or options.timed else LEAST)
    report.write(options.out, rows, outcomes, problems)
    print(report.table(rows))
    print(report.summary(rows, problems))
    return 1 if problems or any(row.failures for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
