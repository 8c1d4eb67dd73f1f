"""Programs in which one host allocation of xlogmem's fails: the first, the second, and so on.

``python tests/helpers/allocation_failures.py`` fails each in turn; ``--most 10`` ten for each program, the suite does
that.  It compiles failing_malloc.cpp, preloads it and starts itself again: one process, with everything imported and no
driver started, which forks a child for each allocation.

A child may end in three ways.  The program ends, because nothing was missing.  It raises MemoryError: then nothing of
it is left, and it runs again from its beginning.  Or one line says that there is no memory for xlogmem's tables, and
the process is aborted.  Anything else is wrong: another signal, another word on stderr, a child that hangs.
"""
from __future__ import annotations

import argparse
import ctypes
import gc
import importlib
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import xlogmem
from xlogmem import sim
from xlogmem.blocks import unfinished_runtimes

LINE = "xlogmem: out of host memory for its tables; the process is aborted\n"
SOURCE = Path(__file__).with_name("failing_malloc.cpp")
PATIENCE = 60                               # seconds after which a child hangs
IMPORTS = "import xlogmem._table, xlogmem.interop.interchange"
Program = Callable[[], None]


class Shim:
    """Counts xlogmem's allocations, and has one fail."""

    def __init__(self) -> None:
        library = ctypes.CDLL(None)
        self.count, self.counted = library.xlogmem_count_allocations, library.xlogmem_allocations_counted
        self.count.argtypes, self.counted.restype = [ctypes.c_long], ctypes.c_long


# ---------------------------------------------------------------------------------------------- in the child
def prepare() -> None:
    """The driver is started, and a context is current."""
    from cuda.bindings import driver as cuda

    from xlogmem.commands.start import start_driver
    from xlogmem.sim.kernels import check

    warnings.simplefilter("ignore")
    start_driver()
    check(cuda.cuCtxSetCurrent(check(cuda.cuDevicePrimaryCtxRetain(check(cuda.cuDeviceGet(0))))))


def attempt(program: Program, failing: int) -> dict[str, Any]:
    """Run the program with an allocation that fails (0: none), then again without one."""
    from xlogmem_selftest.world import ending

    from xlogmem import sim

    shim, before, outcome = Shim(), ending.alive(sim.simulator()), "ended"
    shim.count(failing)
    try:
        program()
    except MemoryError:
        outcome = "MemoryError"
    count = shim.counted()
    for again in (False, True):
        if again:
            program()
        if unfinished_runtimes():                       # a finalizer may not wait for the context
            xlogmem.DeviceRuntime().reap_pending()
        left, races = ending.alive(sim.simulator()), sim.simulator().races()
        if left != before or races:
            outcome += f", and then{' again' if again else ''} {before} became {left}, {races}"
    return {"count": count, "outcome": outcome}


def run_child(program: Program, failing: int, output: int, result: int) -> None:
    """Never returns."""
    signal.setitimer(signal.ITIMER_REAL, PATIENCE)      # SIGALRM ends the process
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.dup2(output, 1)
    os.dup2(output, 2)
    status = 1
    try:
        prepare()
        os.write(result, json.dumps(attempt(program, failing)).encode())
        status = 0
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


# ---------------------------------------------------------------------------------------------- in the server
def text_of(output: Any) -> str:
    output.seek(0)
    return output.read().decode(errors="replace")


def in_child(program: Program, failing: int) -> tuple[str, int, str]:
    """What became of it, how many allocations there were, and what is wrong with that (nothing: "")."""
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as result:
        child = os.fork()
        if child == 0:
            run_child(program, failing, output.fileno(), result.fileno())
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        said, answer = text_of(output), text_of(result)
    if status == -signal.SIGABRT and said == LINE:
        return "aborted", 0, ""
    seen = json.loads(answer) if answer else {"count": 0, "outcome": "nothing"}
    if status == 0 and not said and seen["outcome"] in ("ended", "MemoryError"):
        return seen["outcome"], seen["count"], ""
    ending = signal.Signals(-status).name if status < 0 else f"status {status}"
    return "wrong", seen["count"], f"{ending}, {seen['outcome']}: {said[-2000:]}"


def in_new_process(failing: int) -> tuple[str, int, str]:
    """The same for allocations while the modules are imported."""
    program = f"{IMPORTS}\nimport ctypes\nprint(ctypes.CDLL(None).xlogmem_allocations_counted())"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE,
                          env=os.environ | {"FAILING_MALLOC_NUMBER": str(failing)})
    if done.returncode == 0 and not done.stderr:
        return "ended", int(done.stdout), ""
    if done.returncode == -signal.SIGABRT and done.stderr == LINE:
        return "aborted", 0, ""
    return "wrong", 0, f"status {done.returncode}: {done.stderr[-2000:]}"


def chosen(count: int, most: int | None) -> list[int]:
    """All allocations, or so many of them, spread evenly."""
    if most is None or count <= most:
        return list(range(1, count + 1))
    return sorted({1 + number * (count - 1) // (most - 1) for number in range(most)})


def serve(names: list[str] | None, most: int | None) -> Iterator[dict[str, Any]]:
    """One row for each program."""
    from allocation_programs import IMPORTED_ONCE, programs

    for module in IMPORTED_ONCE:
        with suppress(ImportError):
            importlib.import_module(module)
    runs: dict[str, Callable[[int], tuple[str, int, str]]] = {"import": in_new_process}
    for name, program in programs().items():
        runs[name] = lambda failing, program=program: in_child(program, failing)
    gc.collect()
    gc.freeze()
    for name in names or runs:
        start = time.monotonic()
        outcome, count, wrong = runs[name](0)
        row: dict[str, Any] = {"program": name, "allocations": count, "wrong": [wrong] if wrong or not count else []}
        outcomes: Counter[str] = Counter()
        for failing in chosen(count, most):
            outcome, _, wrong = runs[name](failing)
            outcomes[outcome] += 1
            if wrong:
                row["wrong"].append(f"allocation {failing}: {wrong}")
        yield row | {"outcomes": dict(outcomes), "seconds": round(time.monotonic() - start, 1)}


# ---------------------------------------------------------------------------------------------- from outside
def compiler() -> str | None:
    return shutil.which("g++") or shutil.which("c++")


def start(folder: Path, *arguments: str) -> Iterator[dict[str, Any]]:
    """Compile the library, and run the programs with it; the rows of `serve`, as they come."""
    library = folder / "failing_malloc.so"
    subprocess.run([compiler() or "g++", "-O1", "-shared", "-fPIC", str(SOURCE), "-o", str(library), "-ldl"],
                   check=True)
    package = str(Path(xlogmem.__file__).parent)
    path = os.pathsep.join(filter(None, (str(SOURCE.parent), os.environ.get("PYTHONPATH"))))
    environment = os.environ | {"PYTHONPATH": path, "LD_PRELOAD": str(library), "FAILING_MALLOC_PACKAGE": package,
                                "XLOGMEM_SIMULATE": "1"} | sim.settings(quiet=True)
    with subprocess.Popen([sys.executable, __file__, "--serve", *arguments], env=environment, stdout=subprocess.PIPE,
                          text=True) as server:
        yield from map(json.loads, server.stdout or ())
    if server.returncode:
        raise RuntimeError(f"the server ended with {server.returncode}")


def show(rows: Iterator[dict[str, Any]]) -> int:
    """Print what comes; 1 if anything is wrong."""
    total: Counter[str] = Counter()
    wrong = 0
    for row in rows:
        print(f"{row['program']:<26} {row['allocations']:>5} allocations, {row['seconds']:>6} s:", row["outcomes"],
              flush=True)
        for text in row["wrong"]:
            print(f"    {text}")
            wrong = 1
        total.update(row["outcomes"])
    print(f"{sum(total.values())} processes:", dict(total))
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("programs", nargs="*")
    parser.add_argument("--most", type=int, help="allocations of each program that fail; the default is all")
    parser.add_argument("--serve", action="store_true", help="the library is preloaded")
    given = parser.parse_args()
    if given.serve:
        for row in serve(given.programs, given.most):
            print(json.dumps(row), flush=True)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        return show(start(Path(folder), *sys.argv[1:]))


if __name__ == "__main__":
    sys.exit(main())
