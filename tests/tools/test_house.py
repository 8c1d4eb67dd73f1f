"""The figures of .ci/house.py are those of the text, imports go one way, and what .ci/sanitize leaves out is there."""
from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from types import ModuleType

import pytest
from places import ROOT

SCRIPT = ROOT / ".ci" / "house.py"


@pytest.fixture(scope="module")
def house() -> ModuleType:
    specification = importlib.util.spec_from_file_location("house", SCRIPT)
    module = importlib.util.module_from_spec(specification)
    sys.modules["house"] = module                       # dataclasses look there
    specification.loader.exec_module(module)
    return module


def functions(house: ModuleType, file: str, text: str) -> list[tuple[str, int, int, int]]:
    return [(found.name, found.line, found.lines, found.parameters) for found in house.functions({file: text})]


CYTHON = '''\
cdef extern from "x.h":
    int declared(int a, int b) nogil

cdef class Thing(Base):
    """A thing (of a kind)."""

    cdef int first_locked(self, vector[pair[int, int]]* a, int b=0) except -1 nogil:
        check(held(), "held (")         # a docstring may come after a check
        """Its text.

        More.
        """

        # A comment.
        call("text",
             "more")
        return 1

    def second(self, *,
               x: int) -> int: return x

cpdef third():
    def inner(a): return a
    text = """one
    two"""
    return text
'''
CPP = '''\
#define EACH(x) \\
    { x }
struct Thing {
    explicit Thing(int a) : a_(a) { call("{"); }
    // A comment: {
    int get(int a, std::map<int, int> b) const noexcept {
        if (a) {
            return 1;
        }
        return 2;
    }
    int a_ = 1;
};
'''


def test_functions_are_measured_without_comments_and_docstrings(house):
    assert functions(house, "xlogmem/a.pyx", CYTHON) == [
        ("first_locked", 7, 4, 2), ("second", 19, 1, 1), ("third", 22, 4, 0), ("inner", 23, 1, 1)]
    assert functions(house, "xlogmem/a.hpp", CPP) == [("Thing", 4, 1, 1), ("get", 6, 4, 2)]


def test_circles_are_found_and_late_imports_marked(house):
    files = {
        "xlogmem/__init__.py": "from xlogmem.a import A\n",
        "xlogmem/a.pyx": 'from xlogmem cimport (  # the order\n    _b,\n    c,\n)\ninclude "a/page.pxi"\n',
        "xlogmem/a/page.pxi": "cdef f():\n    if g:\n        from xlogmem.d import D\n",
        "xlogmem/_b.pxd": "cimport xlogmem.c\n", "xlogmem/_b.pyx": "# from xlogmem.a import A\n",
        "xlogmem/c.py": "if TYPE_CHECKING:\n    from xlogmem.a import A\n",
        "xlogmem/d.py": '"""\nfrom xlogmem.c import C\n"""\nimport xlogmem.a\n'}
    assert house.imports(files) == {
        ("xlogmem", "xlogmem.a"): False, ("xlogmem.a", "xlogmem._b"): False, ("xlogmem.a", "xlogmem.c"): False,
        ("xlogmem.a", "xlogmem.d"): True, ("xlogmem._b", "xlogmem.c"): False, ("xlogmem.d", "xlogmem.a"): False}
    (eager, path), = house.circles(house.imports(files))
    assert not eager
    assert {*path} == {"xlogmem.a", "xlogmem.d"}
    files["xlogmem/c.py"] = "try:\n    import xlogmem.a\nexcept ImportError:\n    pass\n"
    assert {"xlogmem.a", "xlogmem.c"} in [{*path} for eager, path in house.circles(house.imports(files)) if eager]


def test_no_module_needs_itself_to_be_imported(house):
    """Circles that exist are broken by an import in a function."""
    files = {path.relative_to(ROOT).as_posix(): path.read_text()
             for ending in ("py", "pyx", "pxd", "pxi") for path in (ROOT / "xlogmem").glob(f"**/*.{ending}")}
    edges = house.imports(files)
    assert ("xlogmem.blocks", "xlogmem._core") in edges
    assert [path for eager, path in house.circles(edges) if eager] == []


def test_the_figures_are_printed_of_any_checkout(tmp_path):
    (tmp_path / "xlogmem").mkdir()
    (tmp_path / "tests").mkdir()
    (tmp_path / "xlogmem" / "a.py").write_text("def f(a, b):\n" + 449 * "    pass\n" + "    # what a page has\n")
    (tmp_path / "tests" / "test_a.py").write_text("def test_a():\n    assert True\n")
    run = subprocess.run([sys.executable, str(SCRIPT), str(tmp_path)], capture_output=True, text=True, timeout=100)
    assert run.returncode == 0, run.stderr
    for line in ("== product: 1 files, 451 lines", "files over 400 lines: 1", "   451  xlogmem/a.py",
                 "   449  xlogmem/a.py:1 f", "     2  xlogmem/a.py:1 f", "circles of eager imports: 0",
                 "== prose: 4 words", "2500.0 clauses such as 'what a …' in 10,000 words, 0.0 pronouns in 100"):
        assert line in run.stdout


def test_what_the_sanitizers_leave_out_is_there():
    """pytest says nothing about files and tests that it cannot leave out."""
    script = (ROOT / ".ci" / "sanitize").read_text()
    file, test = re.search(r"--deselect\s+\\?\s*(\S+)::(\w+)", script).groups()
    assert f"def {test}(" in (ROOT / file).read_text()
    [left_out] = re.findall(r'-k "not (\w+)"', script)
    assert any(f"def test_a_{left_out}(" in path.read_text() for path in ROOT.glob("tests/*/test_*.py"))
    added = " ".join(re.findall(r"threaded\+=\((.*)\)", script)).split()
    assert len(added) == 3
    assert all((ROOT / name).is_file() for name in added)
