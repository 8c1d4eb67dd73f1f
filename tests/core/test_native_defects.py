"""Planted defects of the headers for C++: each breaks one rule, and a test of the headers notices."""
from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from children import variables
from engine_traces import defects_of, planted_texts
from native_calls import CCCL, build, build_resource
from places import ROOT

import xlogmem
from xlogmem import _driver

FILE = Path(__file__).with_name("native_defects.toml")
TESTS = {row["name"]: row["test"] for row in tomllib.loads(FILE.read_text())["defect"]}
pytestmark = [pytest.mark.simulator,
              pytest.mark.skipif(_driver.BUILD != "release", reason="the headers are the same in each build")]


@pytest.fixture(scope="module")
def programs(tmp_path_factory) -> Path:
    """What the tests of the headers call, with all defects; the environment selects one."""
    folder = tmp_path_factory.mktemp("planted")
    for file, text in planted_texts(Path(xlogmem.get_include()), defects_of(FILE)).items():
        (folder / file).write_text(text)
    options = f"-I{folder}", str(folder / "planted.cpp")
    build(folder, *options)
    if None not in CCCL:
        build_resource(folder, *options)
    return folder


def run(programs: Path, defect: str, *tests: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests], cwd=ROOT, text=True,
                          capture_output=True, timeout=300,
                          env=variables(PLANTED_PROGRAMS=programs, CHECK_DEFECT=defect))


def test_each_defect_breaks_a_rule_of_its_own():
    rules = {defect.name: defect.rule for defect in defects_of(FILE)}
    assert len(rules) == len(set(rules.values())) == len(TESTS) > 15
    for name, rule in rules.items():
        assert re.fullmatch(r"[a-z]+(-[a-z]+)+", name)
        assert re.fullmatch(r"[A-Z].*\.", rule), name


def test_without_a_defect_nothing_is_wrong(programs):
    """... or every one would be found, whatever it does."""
    done = run(programs, "", *sorted(set(TESTS.values())))
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("defect", TESTS)
def test_a_defect_is_noticed(programs, defect):
    if "test_native_headers" in TESTS[defect] and None in CCCL:
        pytest.skip("needs RMM: its headers, and those of CUDA")
    done = run(programs, defect, TESTS[defect])
    assert done.returncode == 1, done.stdout            # of pytest: a test has failed
