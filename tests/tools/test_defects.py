"""Planted defects: the table and the sources belong together, each cites a rule, and a release build has none.

That each defect is noticed is not tested here: `xlogmem selftest --defects` does, and so does any test of ordering that
is run with ``XLOGMEM_DEFECT=name`` in a debug build.
"""
from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import planted
import pytest
from children import variables
from places import ROOT
from planted import MisfitError
from xlogmem_selftest import defects as selftest

from xlogmem import _driver

PACKAGE = ROOT / "xlogmem"
RELEASE = _driver.BUILD == "release"
debug_only = pytest.mark.skipif(RELEASE, reason="a release build has no defects")
release_only = pytest.mark.skipif(not RELEASE, reason="a debug build has defects")


# ---------------------------------------------------------------- The table and the sources


def test_every_edit_fits():
    """In every run, of a release build too: a refactoring that changes the lines of an edit has to change the edit."""
    defects = planted.load()
    assert len(defects) >= 100
    edited = planted.edited_files(PACKAGE, defects)
    there = set().union(*(planted.PLANTED.findall(text) for text in edited.values()))
    assert there == {defect.constant for defect in defects}


def test_every_defect_cites_a_rule_and_says_what_happens():
    rules = re.findall(r"^\*\*([a-z-]+)\.\*\*", (ROOT / "docs" / "ordering.md").read_text(), re.MULTILINE)
    assert len(set(rules)) == len(rules) > 80
    defects = planted.load()
    for defect in defects:
        assert re.fullmatch(r"[a-z]+(-[a-z]+)*", defect.name)
        document, rule = defect.rule.split(", ")
        assert document == "docs/ordering.md"
        assert rule in rules, f"{defect.name} cites {rule}"
        assert re.fullmatch(r"[A-Z][^\n]+\.", defect.what), defect.name
        assert not defect.test or (ROOT / defect.test).is_file(), defect.name
    assert len({defect.what for defect in defects}) == len(defects)


def test_the_product_has_no_planted_defects():
    """Only the copy that builds with checks compile says ``planted(...)``, and imports it."""
    texts = planted.copied(PACKAGE, planted.load())
    assert sum("planted(" in text for text in texts.values()) > 10
    for path in PACKAGE.glob("**/*.p*"):
        if path.suffix in (".py", ".pyi", ".pyx", ".pxd", ".pxi"):
            assert not re.search(r"\bplanted\(", path.read_text()), path
    for file, text in texts.items():
        if file.endswith(".pyx") and file != "_defects.pyx":
            pages = [texts[str(Path(file).parent / page)] for page in planted.INCLUDE.findall(text)]
            assert ("\nfrom xlogmem._defects cimport planted\n" in text) == any(
                "planted(" in part for part in (text, *pages)), file


SOURCE = """\
cimport it

cdef int first(int a,
               int b) noexcept nogil:
    if a:
        return b

    return a


cdef int second(int a) noexcept nogil:
    if a:
        return 1
    return a
"""

TABLE = """
[[defect]]
name = "first-broken"
rule = "docs/ordering.md, fork"
what = "It happens."

[[defect.edit]]
file = "it.pyx"
in = "first"
old = '''
    if a:
'''
new = '''
    if a and not planted(defect.FIRST_BROKEN) and not planted(defect.OTHER_BROKEN):
'''

[[defect]]
name = "other-broken"
rule = "docs/ordering.md, fork"
what = "Another thing happens."
edited_with = ["first-broken"]
"""


def edit(function: str, old: str, new: str, file: str = "it.pyx") -> str:
    """One more edit, of the last defect."""
    return f"\n[[defect.edit]]\nfile = {file!r}\nin = {function!r}\nold = '''\n{old}'''\nnew = '''\n{new}'''\n"


@pytest.fixture
def plant_in(tmp_path: Path) -> Callable[..., dict[str, str]]:
    """What becomes of SOURCE with a table."""
    def plant(table: str, source: str = SOURCE) -> dict[str, str]:
        (tmp_path / "it.pyx").write_text(source)
        (tmp_path / "defects.toml").write_text(table)
        return planted.copied(tmp_path, planted.load(tmp_path / "defects.toml"))

    return plant


def test_edits_are_of_one_function(plant_in):
    """The twin of the errors below: the same lines elsewhere are left alone, and the module can say ``planted``."""
    text = plant_in(TABLE + edit("second", "    return a\n", "    return 1\n"))["it.pyx"]
    assert text == (
        "from xlogmem cimport _defects as defect\nfrom xlogmem._defects cimport planted\n"
        + SOURCE.replace("    if a:\n        return b\n", "    if a and not planted(defect.FIRST_BROKEN) and not "
                         "planted(defect.OTHER_BROKEN):\n        return b\n")
        .replace("        return 1\n    return a\n", "        return 1\n    return 1\n"))


MISFITS = {
    "a name that is not one": (TABLE.replace('"first-broken"', '"first_broken"'), SOURCE,
                               "'first_broken' is not a name"),
    "the name of no defect": (TABLE.replace('"first-broken"', '"no-defect"'), SOURCE, "'no-defect' is not a name"),
    "a row without its rule": (TABLE.replace('rule = "docs/ordering.md, fork"\n', "", 1), SOURCE, "has no 'rule'"),
    "the lines were changed": (TABLE, SOURCE.replace("    if a:\n        return b", "    if b:\n        return b"),
                               "stand 0 times: it.pyx, first:\n    if a:\n"),
    "the lines are there twice": (TABLE, SOURCE.replace("        return b\n", "        return b\n    if a:\n"),
                                  "stand 2 times: it.pyx, first"),
    "the function is gone": (TABLE, SOURCE.replace("first", "third"), "stand 0 times: it.pyx, first"),
    "a part of a line": (TABLE + edit("second", "    if a", "    if not a"), SOURCE,
                         "not of whole lines: it.pyx, second"),
    "two edits overlap": (TABLE + edit("first", "    if a:\n        return b\n", "    return b\n"), SOURCE,
                          "two edits overlap"),
    "a file is gone": (TABLE + edit("first", "    if a:\n", "    if b:\n", "gone.pyx"), SOURCE,
                       r"not there: gone\.pyx"),
    "no edit": (TABLE.replace('edited_with = ["first-broken"]\n', ""), SOURCE, "no edit plants other-broken"),
    "an edit that does not plant it": (TABLE.replace(" and not planted(defect.OTHER_BROKEN)", ""), SOURCE,
                                       "other-broken is edited with first-broken, whose edits do not plant it"),
    "edited with nothing": (TABLE.replace('["first-broken"]', '["no-such"]'), SOURCE, "is edited with no-such"),
    "an unknown constant": (TABLE.replace("OTHER_BROKEN", "NO_SUCH"), SOURCE, "plant what has no row: NO_SUCH"),
    "a name stands twice": (TABLE.replace('"other-broken"', '"first-broken"'), SOURCE, "stands twice"),
    "a module without cimport": (TABLE, SOURCE.replace("cimport it\n", ""), "has no cimport"),
}


@pytest.mark.parametrize("case", MISFITS)
def test_what_does_not_fit_is_an_error(case, plant_in):
    table, source, said = MISFITS[case]
    with pytest.raises(MisfitError, match=said):
        plant_in(table, source)


def test_a_copy_follows_its_sources(tmp_path, monkeypatch):
    """What is as it was keeps its time, so that it is not compiled again; what is gone goes there too."""
    package, target = tmp_path / "package", tmp_path / "copy"
    package.mkdir()
    (package / "it.pyx").write_text(SOURCE)
    (package / "other.pxd").write_text("cdef int x\n")
    (tmp_path / "defects.toml").write_text(TABLE)
    table = planted.load(tmp_path / "defects.toml")
    monkeypatch.setattr(planted, "load", lambda: table)
    planted.write_copy(package, target)
    assert {path.name for path in target.iterdir()} == {"it.pyx", "other.pxd", "_defects.pyx", "_defects.pxd"}
    os.utime(target / "it.pyx", (1, 1))
    (package / "other.pxd").unlink()
    planted.write_copy(package, target)
    assert (target / "it.pyx").stat().st_mtime == 1
    assert not (target / "other.pxd").exists()
    (package / "it.pyx").write_text(SOURCE + "# more\n")
    planted.write_copy(package, target)
    assert (target / "it.pyx").read_text().endswith("# more\n")


# ---------------------------------------------------------------- Builds


@release_only
def test_a_release_build_has_no_defects():
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("xlogmem._defects")


@release_only
@pytest.mark.parametrize("command", [
    ["xlogmem", "selftest", "--programs", "1"], ["xlogmem", "selftest", "--defects"],
    ["pytest", "-p", "no:cacheprovider", "--collect-only", str(ROOT / "tests" / "core" / "test_index.py")]],
    ids=["selftest", "selftest --defects", "pytest"])
def test_a_release_build_refuses_and_says_what_to_do(command):
    """A run that found nothing because nothing was planted would look like a gap of the tests."""
    run = python("-m", *command, XLOGMEM_DEFECT="free-forgets-readers")
    assert run.returncode != 0
    assert "XLOGMEM_BUILD=debug pip install -e ." in run.stderr
    assert "Traceback" not in run.stderr


def test_defects_are_looked_for_only_if_programs_are_right_without_them(monkeypatch):
    """... or every one would be found, whatever it does."""
    seen = "xlogmem: broken invariant: the lock is held"
    monkeypatch.setattr(selftest, "_find", lambda name, seconds: selftest.Result(name, "", 1, seen, None))
    with pytest.raises(RuntimeError, match=f"without a defect too: {seen}"):
        next(selftest.find_all(["free-forgets-readers"], 1))


def python(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=100, cwd=ROOT,
                          env=variables(**environment))


@pytest.fixture
def defects() -> Iterator[ModuleType]:
    """The compiled module.  A run with XLOGMEM_DEFECT is about that defect, which these tests would take out."""
    if os.environ.get("XLOGMEM_DEFECT"):
        pytest.skip("a defect is planted for the whole run")
    module = importlib.import_module("xlogmem._defects")
    yield module
    module.plant(None)


@debug_only
def test_a_debug_build_has_the_table(defects):
    assert {name: tuple(defect) for name, defect in defects.DEFECTS.items()} == {
        defect.name: (number, defect.rule, defect.what, defect.test) for number, defect in enumerate(planted.load(), 1)}


@debug_only
def test_unknown_names_are_refused(defects):
    with pytest.raises(ValueError, match="defect 'no-such' is unknown; choose one of"):
        defects.plant("no-such")


@debug_only
def test_a_planted_defect_counts_until_the_next_is_planted(four, defects):
    x = four()
    block = x.alloc(x.S)
    defects.plant("finish-removes-all")
    for times, stream in ((1, x.T), (2, x.S)):
        x.use(stream, (block, "write"))
        assert defects.reached() == times
    defects.plant("free-forgets-readers")
    assert defects.reached() == 0
    x.use(x.S, (block, "write"))
    assert defects.reached() == 0
    defects.plant(None)
    block.free()
    assert defects.reached() == 0


@debug_only
@pytest.mark.parametrize(("name", "imported"), [("no-such", False), ("free-forgets-readers", True)])
def test_the_environment_plants_at_import(name, imported):
    run = python("-c", "import xlogmem; print('imported')", XLOGMEM_DEFECT=name)
    assert run.stdout == ("imported\n" if imported else ""), run.stderr
    assert imported or "is unknown" in run.stderr
