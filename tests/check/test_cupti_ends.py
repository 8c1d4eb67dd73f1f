"""Calls of the driver while threads and the process end are watched like others, and corrupt nothing.

Under `.ci/sanitize asan` the library and the program are instrumented: a use of what has ended is a report there.
"""
from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from cupti_library import COMPILER, NEEDED, library
from engine_traces import compiler
from fabricated import folder_of, headers

from xlogmem._driver import BUILD

pytestmark = [*NEEDED, COMPILER]


@pytest.fixture
def program(tmp_path: Path) -> Path:
    made = tmp_path / "ends"
    cuda = folder_of("cuda.h", "nvidia-cuda-runtime-cu12", "nvidia-cuda-runtime")
    toolkit = folder_of("crt/host_defines.h", "nvidia-cuda-nvcc-cu12", "nvidia-cuda-crt")
    sanitizer = ["-fsanitize=address"] if BUILD == "asan" else []
    includes = [f"-I{folder}" for folder in (headers(), cuda, toolkit)]
    subprocess.run([compiler() or "g++", "-std=c++17", *sanitizer, *includes,
                    Path(__file__).with_name("ends.cpp"), "-o", made, "-ldl", "-pthread"], check=True)
    return made


@pytest.mark.parametrize("time", range(3))
def test_calls_while_threads_and_the_process_end(program, clean_environment, time):
    environment = {name: value for name, value in clean_environment.items() if name != "LD_PRELOAD"}
    done = subprocess.run([program, library()], capture_output=True, text=True, timeout=60,
                          env=environment | {"MALLOC_PERTURB_": "165", "MALLOC_CHECK_": "3"})
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        "in a thread", "end of a thread", "key of a thread", "in main", "end of the main thread", "atexit",
        "end of the process"]
