"""NVIDIA's nvdisasm: where it is installed, and what it prints of a kernel's machine code.

It comes with the CUDA toolkit and with Triton, not with the driver: where there is none, the check does without.
"""
from __future__ import annotations

import functools
import importlib.machinery
import importlib.util
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

__all__ = ["find", "listing"]

NAME = "nvdisasm"
VARIABLE = "XLOGMEM_CHECK_NVDISASM"
SECONDS = 60.0                                          # for one kernel; large ones take one second
NOT_FOR_IT = ("LD_PRELOAD", "CUDA_INJECTION64_PATH")    # the check itself, which is loaded into the program alone
RENAMED = {110: 101}                                    # of CUDA 13; earlier releases have the other name


@functools.cache
def find() -> str | None:
    """The path of nvdisasm: the one that the environment names, else the first one that is there."""
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
    """Without importing it; a module that was put into `sys.modules` by hand may have none."""
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


def listing(code: bytes, sm: int) -> str | None:
    """What nvdisasm prints of a kernel's code, which is for this SM (90 of sm_90); None where it cannot be had."""
    program = find()
    if program is None or not code:
        return None
    with tempfile.TemporaryDirectory(prefix="xlogmem-") as folder:
        file = Path(folder, "code")
        file.write_bytes(code)
        # An older nvdisasm knows the other chips of a generation, which have the same instructions.
        for name in dict.fromkeys((sm, RENAMED.get(sm, sm), sm // 10 * 10)):
            text = _output_of(program, "-b", f"SM{name}", str(file))
            if text:
                return text
    return None


def _output_of(*command: str) -> str | None:
    environment = {name: value for name, value in os.environ.items() if name not in NOT_FOR_IT}
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=SECONDS,
                              env=environment, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout if done.returncode == 0 else None
