"""Tests with other libraries are left out where these are not installed."""
from __future__ import annotations

import importlib.util
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

import pytest

# The folder of a compiler's wheel for CUDA 12, and its wheel for CUDA 13, where all have one folder.
COMPILERS = {"nvidia.cuda_nvrtc": "nvidia-cuda-nvrtc", "nvidia.cuda_nvcc": "nvidia-nvvm"}


def needs(library: str, *wheels: str) -> pytest.MarkDecorator:
    """NVIDIA's compilers come in wheels of their own, which need no GPU."""
    here = found(library) and all(found(name) or is_installed(COMPILERS.get(name, name)) for name in wheels)
    return pytest.mark.skipif(not here, reason=f"needs a checked library: {library}")


def found(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def is_installed(wheel: str) -> bool:
    try:
        return bool(distribution(wheel))
    except PackageNotFoundError:
        return False


def torch_for_cuda() -> bool:
    found = importlib.util.find_spec("torch")
    folders = found.submodule_search_locations or [] if found else []
    return any(Path(folder, "lib/libc10_cuda.so").exists() for folder in folders)


def is_here(library: str) -> bool:
    return torch_for_cuda() if library == "torch" else found(library)


def line_with(program: str, text: str) -> int:
    return next(number for number, line in enumerate(program.splitlines(), 1) if text in line)


def check_wait_and_repair(checked: Callable[..., Any], program: str, pair: str) -> None:
    """The only finding has the lines "# the first" and "# the second"; the repaired program has none."""
    run = checked(program)
    assert run.pairs == [(pair, True)], run.stderr
    for which in ("first", "second"):
        lines = [frame["line"] for frame in run.findings[0][which]["stack"]]
        assert line_with(program, f"# the {which}") in lines, run.stderr
    check_repaired(checked, program)


def check_wait_and_repair_in_cupy(checked: Callable[..., Any], program: str, pair: str) -> None:
    """CuPy may make several launches in a line, which is the program's innermost one."""
    run = checked(program)
    assert run.pairs, run.stderr
    assert set(run.pairs) == {(pair, True)}, run.stderr
    for which in ("first", "second"):
        lines = [frame["line"] for frame in run.findings[0][which]["stack"] if frame["file"].endswith("program.py")]
        assert lines[0] == line_with(program, f"# the {which}"), run.stderr
    check_repaired(checked, program)


IN_CUPY = """
import sys
import cupy, numpy
{begin}
a, b = (cupy.cuda.Stream(non_blocking=True) for _ in range(2))
cupy.cuda.Device().synchronize()
def wait():
    if "fixed" in sys.argv:
        b.wait_event(a.record())
with a:
    z = {call}       # the first
wait()
with b:
    w = {used} * 2      # the second
"""


def check_call_of_cupys(checked: Callable[..., Any], begin: str, call: str, used: str = "z") -> None:
    """Another stream reads `used` of what the call makes."""
    check_wait_and_repair_in_cupy(checked, IN_CUPY.format(begin=begin, call=call, used=used), "write/read")


def check_repaired(checked: Callable[..., Any], program: str) -> None:
    run = checked(program, "fixed")
    assert (run.returncode, run.pairs) == (0, []), run.stderr
