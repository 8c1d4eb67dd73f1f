"""The check's library for GPUs, and what these tests need of this machine."""
from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from engine_traces import compiler
from fabricated import headers

import xlogmem.check

HERE = Path(__file__).parent
BUILT = sorted(Path(xlogmem.check.__file__).parent.glob("_cupti*.so"))
NEEDED = [pytest.mark.skipif(not BUILT, reason="built without the check on a GPU: CUPTI's headers were not installed"),
          pytest.mark.skipif(headers() is None, reason="CUPTI's headers are not installed")]
COMPILER = pytest.mark.skipif(compiler() is None, reason="no C++ compiler here")


def library() -> str:
    return str(BUILT[0])


def build_driver(folder: Path) -> Path:
    """A driver that answers what the parameters of kernels are, and nothing else."""
    driver = folder / "libcuda.so.1"
    subprocess.run([compiler() or "g++", "-std=c++17", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1",
                    HERE / "kernel_parameters.cpp", "-o", driver], check=True)
    return driver


def play(of: str, driver: Path, *modules: str, defect: str = "") -> dict[str, list[str]]:
    """What is found in the scenes of these modules; with a defect, up to the first that is not as expected."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("XLOGMEM_")}
    done = subprocess.run([sys.executable, HERE / "play_scenes.py", of, driver, *modules], capture_output=True,
                          text=True, env=environment | {"PYTHONPATH": str(HERE), "CHECK_DEFECT": defect}, timeout=120)
    assert done.returncode == 0, done.stderr
    found: dict[str, list[str]] = json.loads(done.stdout)
    return found
