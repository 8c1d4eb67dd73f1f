"""The site of docs/, as far as it is known before it is built; .ci/docs builds it, and looks at what was built."""
from __future__ import annotations

import json
import re
import sys
import tomllib
import zlib
from itertools import pairwise
from os.path import normpath
from pathlib import Path

import built_site
import pytest
from places import ROOT

import xlogmem
from xlogmem._base.variables import VARIABLES

DOCS = ROOT / "docs"
REFERENCE = "\n".join(page.read_text() for page in sorted(DOCS.glob("reference/*.rst")))


@pytest.fixture
def extension(monkeypatch):
    monkeypatch.setattr(sys, "path", [str(DOCS / "_extensions"), *sys.path])
    for name in ("comments", "drawings", "outside", "tasks"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return __import__


def listed() -> dict[str, list[str]]:
    """Module -> the names that the pages of the reference list for it."""
    found: dict[str, list[str]] = {}
    module = ""
    for line in REFERENCE.splitlines():
        if match := re.match(r"\.\. currentmodule:: (\S+)", line):
            module = match[1]
        elif match := re.match(r"(?:   |\.\. auto(?:data|exception):: )(\w+)$", line):
            found.setdefault(module, []).append(match[1])
    return found


def test_the_reference_lists_each_public_name_once():
    names = listed()
    for module, public in built_site.public_names().items():
        wanted = public if module == "xlogmem" else public - set(xlogmem.__all__)
        assert wanted <= set(names.get(module, ())), module
        assert len(names.get(module, ())) == len(set(names.get(module, ()))), module
    assert len(built_site.public_names()) == 1 + len(xlogmem._MODULES)


def test_each_error_has_a_cause_and_a_cure():
    """One for the four of tokens, which are one thing to a program."""
    errors = (DOCS / "reference/errors.rst").read_text()
    sections = re.split(r"\n(?=\w+\n~~~)", errors)[1:]
    assert all(section.count(":Cause:") == section.count(":Cure:") == 1 for section in sections)
    named = re.findall(r"autoexception:: (\w+)", errors)
    public = {name for name in xlogmem.__all__ if isinstance(value := getattr(xlogmem, name), type)
              and issubclass(value, (Exception, Warning))}
    assert sorted(named) == sorted(public)
    assert len(sections) == len(public) - 4                     # XlogmemError, and three tokens below TokenError


def site(folder, body, names=("xlogmem.use",)):
    (folder / "index.html").write_text(f'<a href="other.html#there">x</a>{body}')
    (folder / "other.html").write_text('<p id="there">x</p><a href="index.html">x</a>')
    lines = "".join(f"{name} py:function 1 other.html#$ -\n" for name in names)
    (folder / "objects.inv").write_bytes(b"# 1\n# 2\n# 3\n# 4\n" + zlib.compress(lines.encode()))
    return folder


@pytest.mark.parametrize(("body", "wrong"), [
    ("", []),
    ('<a href="https://example.org">x</a><a href="#here">x</a><p id="here">x</p>', []),
    ('<a href="gone.html">x</a>', ["index.html: gone.html leads nowhere"]),
    ('<a href="other.html#gone">x</a>', ["index.html: other.html#gone leads nowhere"]),
    ('<img src="gone.svg">', ["index.html: gone.svg leads nowhere"]),
])
def test_a_link_that_leads_nowhere_is_found(body, wrong, tmp_path):
    assert list(built_site.broken_links(site(tmp_path, body))) == wrong


def test_a_page_to_which_nothing_leads_is_found(tmp_path):
    (site(tmp_path, "") / "alone.html").write_text('<a href="index.html">x</a>')
    assert list(built_site.broken_links(tmp_path)) == ["alone.html: no page leads there"]


def test_a_name_without_an_entry_is_found(tmp_path):
    every = {f"{module}.{name}" for module, names in built_site.public_names().items() for name in names}
    members = {member for name in xlogmem.__all__ for member in built_site.members(name)}
    variables = set(VARIABLES)
    known = built_site.inventory(site(tmp_path, "", sorted(every | members | variables)) / "objects.inv")
    assert len(members) > 100
    assert list(built_site.missing(known)) == []
    for gone in ("xlogmem.use", "xlogmem.history.read", "xlogmem.cudf.view", "xlogmem.DeviceBlock.free",
                 "XLOGMEM_POLICY"):
        assert list(built_site.missing(known - {gone})) == [f"{gone} has no entry"]
    # What another module has too is one thing.
    assert list(built_site.missing(known - {"xlogmem.allocators.enable"})) == []


def test_links_of_the_code_host_become_links_of_the_site(extension):
    outside = extension("outside")
    others = outside.stand_ins(DOCS)
    assert others[ROOT / "README.md"] == DOCS / "start/readme.md"
    page = DOCS / "start/readme.md"

    def rewritten(text, original=ROOT / "README.md", page=page):
        return outside.rewritten(text, original, page, DOCS, others)

    assert rewritten("[x](docs/using.md#types)") == "[x](../using.md#types)"
    assert rewritten("![two\nlines](docs/images/missing-wait.svg)") == "![two\nlines](../images/missing-wait.svg)"
    assert rewritten("[docs/using.md](docs/using.md#types)") == "[](../using.md#types)"
    assert rewritten("[x](docs/README.md)") == "[All pages](../index.rst)"
    assert rewritten("[x](CHANGELOG.md)") == "[x](../project/changelog.md)"
    assert rewritten("[x](https://example.org) [y](#here)") == "[x](https://example.org) [y](#here)"
    assert rewritten("```python\n[x](docs/using.md)\n```") == "```python\n[x](docs/using.md)\n```"
    here = DOCS / "design.md"
    assert rewritten("[x](../examples/races)", here, here) == "[x](howto/races.md)"
    assert rewritten("[x](../xlogmem)", here, here) == "x"              # a folder without a page


def test_each_page_of_the_project_that_a_page_links_to_is_on_the_site(extension):
    """Else it would be a file to download."""
    others = extension("outside").stand_ins(DOCS)
    linked = set()
    for page in [ROOT / "README.md", *DOCS.glob("*.md"), *others]:
        for path in re.findall(r"\]\((?!https?:|#)([^)\s#]+)", page.read_text()):
            target = (page.parent / path).resolve()
            linked.add(target / "README.md" if target.is_dir() else target)
    outside = {path for path in linked if path.suffix == ".md" and not path.is_relative_to(DOCS) and path.exists()}
    assert outside - set(others) == set()
    assert len(outside) > 8


def test_each_comment_of_the_headers_is_marked(extension):
    marked = extension("comments").marked
    header = marked((ROOT / "xlogmem/include/xlogmem.h").read_text(), "xlogmem.h")
    assert header.startswith("/** \\file xlogmem.h\n * xlogmem's C table")
    assert re.findall(r"/\*(?!\*)[^-\n]*", header) == ["/* "] * 2       # ---- from here on since ...
    assert "XLOGMEM_STALE = 4,                  /**< the block was freed */" in header
    assert "typedef struct xlogmem_runtime xlogmem_runtime;" in header
    assert "typedef struct xlogmem_table {" not in header
    assert "\n};\n" in header
    assert marked((ROOT / "xlogmem/include/xlogmem.hpp").read_text(), "xlogmem.hpp").startswith(
        "//! \\file xlogmem.hpp\n//! xlogmem for C++17")


def test_each_task_has_a_page_with_its_program(extension, tmp_path):
    tasks = extension("tasks")
    table = tomllib.loads((ROOT / "tests/tasks/tasks.toml").read_text())["task"]
    others = extension("outside").stand_ins(DOCS)
    slugs = {tasks.slug(task) for task in table}
    assert len(slugs) == len(table)
    for task in table:
        page = tasks.page_of(task, DOCS / "howto/tasks", ROOT / "tests/tasks", others)
        programs = set(re.findall(r"literalinclude:: (\S+)", page))
        assert {path.split("/")[-1] for path in programs} == set(re.findall(r"\d\d_\w+\.py", task.get("run", "")))
        assert all(Path(normpath(DOCS / "howto/tasks" / path)).exists() for path in programs)
        assert task["group"]
        assert len(task["how"].split()) < 70
        assert (".. note::" in page) == ("out" in task)
        more, = re.findall(r":doc:`/([^`]+)` has more", page)
        assert (DOCS / f"{more}.md").exists()


def test_a_notebook_has_no_outputs_and_says_that_it_simulates():
    """The build of the site runs those whose library is there, and an error there is one of the build."""
    notebooks = sorted(DOCS.rglob("*.ipynb"))
    notebooks = [path for path in notebooks if not {"_build", ".ipynb_checkpoints"} & set(path.parts)]
    names = [path.stem.removeprefix("first-") for path in notebooks]
    assert names == ["cudf", "cupy", "finding", "numba", "pytorch", "use"]
    start = (DOCS / "start/index.rst").read_text()
    for path in notebooks:
        first, *rest = json.loads(path.read_text())["cells"]
        assert "simulated driver" in "".join(first["source"])
        code = [cell for cell in rest if cell["cell_type"] == "code"]
        assert code
        assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)
        assert any("assert " in "".join(cell["source"]) for cell in code)
        assert f"   {path.stem}\n" in start
    conf = (DOCS / "conf.py").read_text()
    assert 'nb_execution_mode = "force"' in conf
    assert "nb_execution_raise_on_error = True" in conf


def test_each_drawing_is_drawn_once(extension):
    drawings = extension("drawings")
    table = tomllib.loads((DOCS / "concepts/drawings.toml").read_text())
    words = (DOCS / "concepts/words.rst").read_text()
    assert sorted(re.findall(r"^\.\. drawing:: (\S+)$", words, re.MULTILINE)) == sorted(table)
    for name, drawing in table.items():
        svg = drawings.svg(name, drawing)
        assert svg.count("<rect") == len(drawing["marks"])
        assert svg.count('class="arrow"') == len(drawing.get("arrows", ()))
        # A stream waits for what comes before, and draws no two things at one place.
        assert all(begin < end for _, begin, _, end, _ in drawing.get("arrows", ()))
        for lane in drawing["lanes"]:
            marks = sorted(mark[1:3] for mark in drawing["marks"] if mark[0] == lane)
            assert all(end <= begin for (_, end), (begin, _) in pairwise(marks)), (name, lane)
