"""Planted defects: the table, the enum and the places in the code agree, and a release build has none of them.

That each defect is noticed is not tested here: `xlogmem selftest --defects` does, and so does any test of ordering that
is run with ``XLOGMEM_DEFECT=name`` in a debug build.
"""
from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest
from places import ROOT

from xlogmem import _defects, _driver

SOURCE = ROOT / "xlogmem"
RELEASE = _driver.BUILD == "release"


@pytest.fixture
def _none_planted():
    """A run with XLOGMEM_DEFECT is about that defect: these tests would take it out."""
    if os.environ.get("XLOGMEM_DEFECT"):
        pytest.skip("a defect is planted for the whole run")
    yield
    _defects.plant(None)


def test_table_enum_and_code_agree():
    """Each constant of the enum has a row of its name, and one rule that it breaks somewhere in the code."""
    enum = (SOURCE / "_defects.pxd").read_text().split("cdef enum Defect:")[1].split("END_OF_DEFECTS")[0]
    constants = re.findall(r"^    ([A-Z_]+)$", enum, re.MULTILINE)
    assert constants.pop(0) == "NO_DEFECT"
    assert {name: defect.number for name, defect in _defects.DEFECTS.items()} == {
        constant.lower().replace("_", "-"): number for number, constant in enumerate(constants, 1)}
    code = "".join(path.read_text() for path in SOURCE.glob("**/*.pyx") if path.stem != "_defects")
    assert set(re.findall(r"planted\(defect\.([A-Z_]+)\)", code)) == set(constants)


def test_every_defect_says_what_it_breaks():
    assert len(_defects.DEFECTS) >= 30
    for name, defect in _defects.DEFECTS.items():
        assert re.fullmatch(r"[a-z]+(-[a-z]+)*", name)
        assert re.search(r"\bW\d+\b|: ", defect.rule), f"{name} names no rule"
        assert defect.what.endswith("."), name
    assert len({defect.what for defect in _defects.DEFECTS.values()}) == len(_defects.DEFECTS)


def test_unknown_names_are_refused(_none_planted):
    with pytest.raises(ValueError, match="defect 'no-such' is unknown; choose one of"):
        _defects.plant("no-such")


@pytest.mark.skipif(not RELEASE, reason="a debug build has them")
def test_a_release_build_refuses_and_says_what_to_do():
    for name in _defects.DEFECTS:
        with pytest.raises(RuntimeError, match=r"release build.*XLOGMEM_BUILD=debug"):
            _defects.plant(name)
    _defects.plant(None)
    assert _defects.reached() == 0


@pytest.mark.skipif(RELEASE, reason="a release build has no defects")
def test_a_planted_defect_counts_until_the_next_is_planted(four, _none_planted):
    x = four()
    block = x.alloc(x.S)
    _defects.plant("finish-removes-all")
    for times in (1, 2):
        x.use(x.S, (block, "write"))
        assert _defects.reached() == times
    _defects.plant("free-forgets-readers")
    assert _defects.reached() == 0
    x.use(x.S, (block, "write"))
    assert _defects.reached() == 0
    _defects.plant(None)
    block.free()
    assert _defects.reached() == 0


@pytest.mark.parametrize(("name", "word"), [("no-such", "is unknown"), ("free-forgets-readers", "release build")])
def test_the_environment_plants_at_import(name, word):
    program = "from xlogmem import _defects; import xlogmem; print('imported')"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100,
                         env=os.environ | {"XLOGMEM_DEFECT": name})
    assert (run.stdout == "imported\n") == (not RELEASE and name in _defects.DEFECTS), run.stderr
    assert run.returncode == 0 or word in run.stderr
