"""Random calls of the driver: the check finds what an oracle expects, and a mistake of the engine is noticed."""
from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from children import variables
from engine_traces import compiler, planted_sources
from fabricated import folder_of
from made_once import made_once
from places import ROOT

SOURCES = ROOT / "cpp"
CUDA = folder_of("cuda.h", "nvidia-cuda-runtime-cu12", "nvidia-cuda-runtime")
DEFECTS = {"join-replaces": "false", "blocking-by-operations": "false", "ended-before-all": "missed",
           "free-not-compared": "missed", "lanes-in-line": "missed", "one-write-remembered": "missed",
           "counters-meet": "false"}
pytestmark = pytest.mark.simulator


def compare(programs: int, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "xlogmem_selftest.check", "--programs", str(programs)],
                          capture_output=True, text=True, timeout=300, env=variables(quiet=True, **environment))


def build_planted(folder: Path) -> Path:
    parts = {"engine": folder / "engine", "kernels": SOURCES / "kernels", "driver": SOURCES / "driver",
             "host": SOURCES / "host", "native": SOURCES / "native"}
    parts["engine"].mkdir()
    for file, text in planted_sources().items():
        (parts["engine"] / file).write_text(text)
    for part, sources in parts.items():
        (folder / f"{part}.cpp").write_text("".join(f'#include "{file}"\n' for file in sorted(sources.glob("*.cpp"))))
    driver = folder / "libcuda.so.1"
    subprocess.run([compiler() or "g++", "-std=c++20", "-O0", "-s", "-shared", "-fPIC", "-fvisibility=hidden",
                    "-pthread", f"-I{folder}", f"-I{SOURCES}", f"-I{CUDA}",
                    *(str(folder / f"{part}.cpp") for part in parts), "-Wl,-soname,libcuda.so.1",
                    f"-Wl,--version-script={SOURCES / 'driver/exports.map'}", "-o", str(driver)], check=True)
    return driver


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The simulated driver whose engine has all planted defects, of which the environment selects one."""
    return made_once(tmp_path_factory, "driver-planted", build_planted)


def test_nothing_is_missed_and_nothing_is_false():
    done = compare(400)
    assert done.returncode == 0, done.stdout + done.stderr
    pairs = int(done.stdout.split(" calls, ")[1].split(" pairs")[0].replace(",", ""))
    assert pairs > 4000
    assert done.stdout.endswith("400 programs: 0 missed, 0 false\n")


@pytest.mark.skipif(compiler() is None or CUDA is None, reason="no C++ compiler, or no headers of CUDA here")
@pytest.mark.parametrize("name", DEFECTS)
def test_a_mistake_of_the_engine_is_noticed(planted, name):
    """And the program is printed in the few calls that it takes."""
    preloaded = " ".join(filter(None, [os.environ.get("LD_PRELOAD"), str(planted)]))
    done = compare(800, LD_PRELOAD=preloaded, CHECK_DEFECT=name)
    assert done.returncode == 1, done.stdout + done.stderr
    program = done.stdout.split("program ")[1].splitlines()
    assert program[-1].startswith(DEFECTS[name])
    assert len(program) < 25
