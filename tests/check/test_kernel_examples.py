"""examples/kernels: each program is right, and wrong without its `use`.

On a GPU the results decide.  On the simulated driver, whose kernels compute nothing, the check does: it finds what the
wrong program leaves unordered, with both lines, and nothing in the right one.
"""
from __future__ import annotations

import importlib
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from checked_libraries import found, line_with, needs
from places import ROOT

FOLDER = ROOT / "examples/kernels"
LIBRARIES = {"cupy_raw_kernel": "cupy", "numba_kernel": "numba_cuda", "cuda_core_kernel": "cuda.core",
             "triton_kernel": "triton", "torch_prefetcher": "torch", "warp_kernel": "warp"}
# Those whose libraries start on the simulated driver: the lines of the kernels that write and read.
CHECKED = [
    pytest.param("cupy_raw_kernel", "fill((", "compare((", marks=needs("cupy", "nvidia.cuda_nvrtc")),
    pytest.param("numba_kernel", "fill[", "compare[", marks=needs("numba_cuda", "nvidia.cuda_nvcc")),
    pytest.param("cuda_core_kernel", "fill, ", "compare, *", marks=needs("cuda.core", "nvidia.cuda_nvrtc")),
]


def run(*command: str, environment: dict[str, str], folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *command], capture_output=True, text=True, timeout=110, env=environment,
                          cwd=folder)                   # not where the sources of xlogmem are


def findings(program: str, *arguments: str, environment: dict[str, str], folder: Path):
    """The exit status of the check, and what it found for certain: pair and lines."""
    out, file = folder / "out.json", FOLDER / f"{program}.py"
    done = run("-m", "xlogmem", "check", "--json", str(out), "--", sys.executable, str(file), *arguments,
               environment=environment, folder=folder)
    return done, {(one["pair"], line(one["first"], file), line(one["second"], file))
                  for one in json.loads(out.read_text())["findings"] if one["certain"]}


def line(access, file: Path) -> int | None:
    return next((frame["line"] for frame in access["captured"] or access["stack"] if Path(frame["file"]) == file), None)


@pytest.mark.simulator
@pytest.mark.parametrize(("program", "writes", "reads"), CHECKED)
def test_the_check_finds_the_use_that_is_left_out(program, writes, reads, clean_environment, tmp_path):
    done, races = findings(program, "--wrong", environment=clean_environment, folder=tmp_path)
    text = (FOLDER / f"{program}.py").read_text().partition("for number in range")
    first, second = (line_with(text[2], launch) + text[0].count("\n") for launch in (writes, reads))
    assert done.returncode == 1, done.stderr
    assert ("write/read", first, second) in races, done.stderr
    assert {pair for pair, *_ in races} == {"write/read", "read/free"}, done.stderr


@pytest.mark.simulator
@pytest.mark.parametrize(("program", "writes", "reads"), CHECKED)
def test_the_check_finds_nothing_with_it(program, writes, reads, clean_environment, tmp_path):
    done, races = findings(program, environment=clean_environment, folder=tmp_path)
    assert (done.returncode, races) == (0, set()), done.stderr


@pytest.mark.gpu
@pytest.mark.parametrize("program", LIBRARIES)
def test_the_results_on_a_gpu(program, clean_environment, tmp_path):
    """The exit status is 0 if the mode keeps what it promises."""
    if not found(LIBRARIES[program]):
        pytest.skip(f"needs another library: {LIBRARIES[program]}")
    if program == "numba_kernel" and not hasattr(importlib.import_module("numpy"), "row_stack"):
        pytest.skip("needs another library: numpy before 2.5, for numba-cuda")
    for arguments, pattern in ((), "1000 of 1000 .* right, 0 wrong"), (("--wrong",), "[0-9]+ of 1000 .* right, [1-9]"):
        done = run(str(FOLDER / f"{program}.py"), *arguments, environment=clean_environment, folder=tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr
        assert re.match(pattern, done.stdout), done.stdout


def test_every_example_is_tried():
    assert {file.stem for file in FOLDER.glob("*.py")} == set(LIBRARIES)


@pytest.mark.parametrize("program", LIBRARIES)
def test_the_wrong_twin_leaves_out_one_use_and_nothing_else(program):
    text = (FOLDER / f"{program}.py").read_text()
    assert len(re.findall(r"contextlib\.nullcontext\(\) if WRONG else xlogmem\.use\(", text)) == 1
    assert len(re.findall(r"\bWRONG\b", text)) == 3     # and where it is set, and what the exit status says
