"""Planted defects of the simulated libraries: each breaks one rule, and the calls notice."""
from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from engine_traces import HERE, compiler, defects_of, planted_texts
from fabricated import folder_of
from made_once import made_once
from places import HELPERS, ROOT

LIBRARIES = ("curand", "cublas", "cufft", "cusolver", "cusparse", "thrust")      # of cuBLASLt nothing is simulated
CUDA = folder_of("cuda.h", "nvidia-cuda-runtime-cu12", "nvidia-cuda-runtime")
DEFECTS = defects_of(HERE / "library_defects.toml")
pytestmark = [pytest.mark.skipif(compiler() is None, reason="no C++ compiler here"),
              pytest.mark.skipif(CUDA is None, reason="the headers of CUDA are not installed")]


def build_planted(folder: Path) -> Path:
    sources = [HELPERS / "library_calls.cpp"]
    for library in LIBRARIES:
        (folder / library).mkdir()
        here = [replace(defect, edits=tuple((file.removeprefix(f"{library}/"), old, new)
                                            for file, old, new in defect.edits if file.startswith(f"{library}/")))
                for defect in DEFECTS]
        for file, text in planted_texts(ROOT / "cpp" / library, here).items():
            (folder / library / file).write_text(text)
        sources += [path for path in sorted((folder / library).glob("*.cpp"))
                    if path.name != "stubs.cpp" and (path.name != "planted.cpp" or library == LIBRARIES[0])]
    subprocess.run([compiler() or "g++", "-std=c++20", "-O0", "-shared", "-fPIC", "-DLIBRARY_MAJOR=12",
                    f"-I{ROOT / 'cpp'}", f"-I{CUDA}", *map(str, sources), "-o", str(folder / "planted.so")], check=True)
    return folder / "planted.so"


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    """The libraries with all defects, of which the environment selects one."""
    return made_once(tmp_path_factory, "libraries-planted", build_planted)


def wrong(library: Path, defect: str = "") -> list[str]:
    done = subprocess.run([sys.executable, HELPERS / "play_libraries.py", library], capture_output=True, text=True,
                          env=os.environ | {"CHECK_DEFECT": defect, "PYTHONSAFEPATH": ""}, timeout=60)
    assert done.returncode == 0, done.stderr
    found: list[str] = json.loads(done.stdout)
    return found


def test_without_a_defect_nothing_is_wrong(planted):
    assert wrong(planted) == []


def test_each_defect_breaks_a_rule_of_its_own():
    assert len({defect.name for defect in DEFECTS}) == len({defect.rule for defect in DEFECTS}) == len(DEFECTS)


@pytest.mark.parametrize("name", [defect.name for defect in DEFECTS])
def test_a_defect_is_noticed(planted, name):
    assert wrong(planted, name)
