"""NVIDIA's nvdisasm: finding it, and listing a kernel's machine code with it.

nvdisasm comes with the CUDA toolkit and with Triton, not with the driver: where there is none, the check does without.
"""
from __future__ import annotations

import functools
import importlib.machinery
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

__all__ = ["find", "listing", "listings"]

NAME = "nvdisasm"
VARIABLE = "XLOGMEM_CHECK_NVDISASM"
SECONDS = 60.0                                          # for one kernel; large ones take one second
NOT_FOR_IT = ("LD_PRELOAD", "CUDA_INJECTION64_PATH")    # the check itself, which is loaded into the program alone
RENAMED = {110: 101}                                    # of CUDA 13; earlier releases have the other name


@functools.cache
def find() -> str | None:
    """Return the path of nvdisasm: the path that the environment names, else the first that is there."""
    return next((path for path in _places() if os.access(path, os.X_OK) and os.path.isfile(path)), None)


def _places() -> Iterator[str]:
    named = os.environ.get(VARIABLE)
    if named:
        yield named
        return
    yield from _found_by_pathfinder()
    spec = _spec_of("triton")
    for folder in spec.submodule_search_locations or () if spec else ():
        yield str(Path(folder, "backends/nvidia/bin", NAME))
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        if os.environ.get(variable):
            yield str(Path(os.environ[variable], "bin", NAME))
    yield str(Path("/usr/local/cuda/bin", NAME))
    yield shutil.which(NAME) or ""


def _spec_of(module: str) -> importlib.machinery.ModuleSpec | None:
    """Return the spec of a module without importing it; a module put into `sys.modules` by hand may have none."""
    try:
        return importlib.util.find_spec(module)
    except (ImportError, ValueError):
        return None


def _found_by_pathfinder() -> Iterator[str]:
    try:
        from cuda.pathfinder import find_nvidia_binary_utility
    except ImportError:                                 # an older one, or none
        return
    try:
        yield find_nvidia_binary_utility(NAME) or ""
    except Exception:                                   # of a toolkit that it does not understand
        return


def listings(codes: Sequence[tuple[bytes, int]]) -> list[str | None]:
    """Return nvdisasm's listing of each code, given with the code's SM (90 of sm_90); None where there is no listing.

    Several processes run at a time, and no threads: a program is checked to its end, when Python starts none any more.
    """
    program, made = find(), list[str | None]()
    at_once = os.cpu_count() or 1
    with tempfile.TemporaryDirectory(prefix="xlogmem-") as folder:
        for first in range(0, len(codes) if program else 0, at_once):
            show_progress(first, len(codes))
            running = [Run(program, code, Path(folder, str(number)))
                       for number, code in enumerate(codes[first:first + at_once], first)]
            made += [run.listing() for run in running]
        show_progress(len(made), len(made))
    return made or [None] * len(codes)


def show_progress(done: int, count: int) -> None:
    """Write on a terminal how far it is, in a line that the next one replaces; the last one is empty."""
    with suppress(OSError, ValueError):                 # a terminal that is gone, or closed by the program
        if sys.stderr is not None and sys.stderr.isatty():
            so_far = f"xlogmem check: reading the code of kernels, {done} of {count}" if done < count else ""
            print(f"\r\x1b[K{so_far}", end="", file=sys.stderr, flush=True)


def listing(code: bytes, sm: int) -> str | None:
    """The listing of one code; see `listings`."""
    return listings([(code, sm)])[0]


class Run:
    """A process of nvdisasm, which prints the listing of one code into a file."""

    def __init__(self, program: str | None, code: tuple[bytes, int], file: Path) -> None:
        self.program, (text, self.sm), self.file = program, code, file
        file.write_bytes(text)
        # An older nvdisasm knows the other chips of a generation, which have the same instructions.
        self.names = list(dict.fromkeys((self.sm, RENAMED.get(self.sm, self.sm), self.sm // 10 * 10)))
        self.process = self.start(self.names.pop(0)) if text else None

    def start(self, name: int) -> subprocess.Popen[bytes] | None:
        environment = {variable: value for variable, value in os.environ.items() if variable not in NOT_FOR_IT}
        try:
            with open(self.output, "wb") as output:
                return subprocess.Popen([self.program or "", "-b", f"SM{name}", str(self.file)], env=environment,
                                        stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.DEVNULL)
        except OSError:
            return None

    @property
    def output(self) -> Path:
        return self.file.with_suffix(".txt")

    def listing(self) -> str | None:
        while self.process is not None:
            try:
                status = self.process.wait(SECONDS)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
                return None
            text = self.output.read_text(errors="replace")
            if status == 0 and text:
                return text
            self.process = self.start(self.names.pop(0)) if self.names else None
        return None
