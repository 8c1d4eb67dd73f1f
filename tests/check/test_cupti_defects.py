"""Planted defects of the front end on a GPU: each breaks one rule, and the scenes notice."""
from __future__ import annotations

import importlib
import re
import subprocess
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
from cupti_library import COMPILER, NEEDED, build_driver, play
from engine_traces import compiler, defects_of, planted_texts
from fabricated import SCENES, folder_of, headers
from made_once import made_once
from places import ROOT

FILE = ROOT / "tests/check/cupti_defects.toml"
SOURCES = ROOT / "cpp"
ROWS = tomllib.loads(FILE.read_text())["defect"]
MODULES = {row["name"]: [f"scenes_of_{module}" for module in row["scenes"]] for row in ROWS}
CUDA = folder_of("cuda.h", "nvidia-cuda-runtime-cu12", "nvidia-cuda-runtime")
CRT = folder_of("crt/host_defines.h", "nvidia-cuda-nvcc-cu12", "nvidia-cuda-crt")
pytestmark = [*NEEDED, COMPILER,
              pytest.mark.skipif(None in (CUDA, CRT), reason="the headers of CUDA are not installed")]


@pytest.fixture(scope="module")
def driver(tmp_path_factory):
    return build_driver(tmp_path_factory.mktemp("driver"))


def build_planted(folder: Path) -> Path:
    parts = {"cupti": folder / "cupti", "kernels": folder / "kernels", "engine": SOURCES / "engine",
             "host": SOURCES / "host", "native": SOURCES / "native"}
    for part in (".", "cupti", "kernels"):
        (folder / part).mkdir(exist_ok=True)
        here = [replace(defect, edits=tuple(edit for edit in defect.edits if (SOURCES / part / edit[0]).exists()))
                for defect in defects_of(FILE)]
        for file, text in planted_texts(SOURCES / part, here).items():
            (folder / part / file).write_text(text)
    for part in (".", "kernels"):
        (folder / part / "planted.cpp").unlink()            # it is in the other part
    for part, sources in parts.items():
        files = sorted(sources.glob("*.cpp"))
        (folder / f"{part}.cpp").write_text("".join(f'#include "{file}"\n' for file in files))
    subprocess.run([compiler() or "g++", "-std=c++20", "-O0", "-s", "-shared", "-fPIC", "-fvisibility=hidden",
                    "-pthread", f"-I{folder}", f"-I{SOURCES}", f"-I{headers()}", f"-I{CUDA}", f"-I{CRT}",
                    *(str(folder / f"{part}.cpp") for part in parts),
                    f"-Wl,--version-script={SOURCES / 'cupti/exports.map'}", "-o", str(folder / "planted.so")],
                   check=True)
    return folder / "planted.so"


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    """The library with all defects, of which the environment selects one."""
    return str(made_once(tmp_path_factory, "cupti-planted", build_planted))


def wrong(found: dict[str, list[str]]) -> list[str]:
    """The scenes in which something else was found than expected."""
    expected = {}
    for name, (_, findings) in SCENES.items():
        expected |= {f"{name}, broken": findings, f"{name}, repaired": []}
    return [name for name, findings in found.items() if findings != expected[name]]


def test_each_defect_breaks_a_rule_of_its_own():
    rules = {defect.name: defect.rule for defect in defects_of(FILE)}
    assert len(rules) == len(set(rules.values())) == len(ROWS) > 30
    for name, rule in rules.items():
        assert re.fullmatch(r"[a-z]+(-[a-z]+)+", name)
        assert re.fullmatch(r"[A-Z].*\.", rule), name


def test_without_a_defect_nothing_is_wrong(planted, driver):
    """... or every one would be found, whatever it does."""
    modules = sorted({module for modules in MODULES.values() for module in modules})
    for module in modules:
        importlib.import_module(module)
    found = play(planted, driver, *modules)
    assert len(found) == 2 * len(SCENES)
    assert wrong(found) == []


@pytest.mark.parametrize("name", MODULES)
def test_a_defect_is_noticed(planted, driver, name):
    for module in MODULES[name]:
        importlib.import_module(module)
    assert wrong(play(planted, driver, *MODULES[name], defect=name))
