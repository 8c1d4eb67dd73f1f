"""The words of tests/words.toml stand nowhere in the sources, documents, tests and tools: file, line and word if so."""
from __future__ import annotations

from pathlib import Path

import pytest
import words
from places import ROOT


def found(file: str, text: str) -> list[tuple[int, str]]:
    return [(finding.line, finding.word) for finding in words.find_in(file, text)]


def test_no_such_word_is_left():
    left = [str(finding) for finding, allowed in words.find_all(ROOT) if not allowed]
    assert not left, f"{len(left)} words\n" + "\n".join(left)


def test_every_allowance_is_used():
    """... and says why; one whose line is gone goes too."""
    used = {allowed for _, allowed in words.find_all(ROOT)}
    assert set(words.allowed()) <= used
    assert all(allowed.reason and allowed.where for allowed in words.allowed())


def test_everything_is_scanned():
    files = {file for file, _ in words.texts(ROOT)}
    for file in (
            "xlogmem/_core.pyx", "xlogmem/_core.pxd", "xlogmem/core/free.pxi", "xlogmem/blocks.pyi",
            "xlogmem/commands/cli.py", "xlogmem/include/xlogmem.h", "cpp/engine/engine.cpp",
            "README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "setup.py",
            "docs/design.md", "examples/together.py", "benchmarks/pool.py", ".ci/run", ".ci/house.py",
            "tests/conftest.py", "tests/defects.toml", "tests/tools/test_words.py", "tests/sanitizers/tsan.txt"):
        assert file in files
    assert {Path(file).suffix for file in files if file.startswith("xlogmem/")} == {
        ".py", ".pyx", ".pxd", ".pxi", ".pyi", ".hpp", ".h"}


@pytest.mark.parametrize("word", words.forbidden())
def test_each_word_is_found(word):
    """The twin: in prose, over two lines, in names, in any letter case, and with the place where it stands."""
    word = word.replace("*", "ing")
    snake, camel = word.replace(" ", "_"), word.title().replace(" ", "")
    text = (f"# A stream,\n# {word}.\n{word.upper()}\ncdef int of_{snake}_2\n{camel}Kind the{camel}\n"
            f"# {word.capitalize()}'s\n")
    assert found("xlogmem/_core.pyx", text) == [(line, word) for line in (2, 3, 4, 5, 5, 6)]
    assert found("docs/design.md", word.replace(" ", "\n")) == [(1, word)]
    assert found("docs/design.md", f"x{word}x") == []


def test_a_checkout_is_searched(tmp_path):
    """The twin of the whole: a planted sentence is reported with its file, line and what to say instead."""
    (tmp_path / "xlogmem" / "core").mkdir(parents=True)
    word = next(iter(words.forbidden()))
    (tmp_path / "xlogmem" / "core" / "free.pxi").write_text(f"# A page.\n# It is freed by {word}.\n")
    (tmp_path / "README.md").write_text("A clean text.\n")
    (finding, allowed), = words.find_all(tmp_path)
    assert allowed is None
    assert str(finding).startswith(f"xlogmem/core/free.pxi:2: {word} -> what is meant: the stream")


@pytest.mark.parametrize(("file", "text", "seen"), [
    ("x.py", 'raise TypeError(f"{what!r} %s stream")', True), ("x.pyx", '"""A call.\n\nThis %s stream.\n"""', True),
    ("x.pxi", "failure = b'the bytes %s token'", True), ("x.hpp", 'fail("it %s block");', True),
    ("x.py", "# it's \"so\": that %s stream", False), ("x.hpp", '/* "it" %s block */', False),
    ("x.py", 'x = "#"  # "\ny = "it %s stream"', True), ("x.md", "A handle %s stream.", False)])
@pytest.mark.parametrize("verb", ["is", "are"])
def test_what_a_thing_is_not_is_said_with_not(file, text, seen, verb):
    """In texts that users read: strings and docstrings, not comments."""
    texts = [word for _, word in found(file, text % f"{verb} no")]
    assert len(texts) == seen
    for right in (f"There {verb} no", f"{verb} not a", f"{verb} no longer a"):
        assert found(file, text % right) == []


@pytest.mark.parametrize("number", ["contract %d", "W%d"])
def test_rules_are_cited_by_number_only_in_tests_and_the_rules_themselves(number):
    text = f"ordered ({number % 34})"
    for file in ("xlogmem/_core.pyx", "README.md", "docs/design.md", "setup.py"):
        assert found(file, text) == [(1, number % 34)]
    for file in ("tests/core/test_free.py", "docs/promises.md", "docs/ordering.md"):
        assert found(file, text) == []
    assert found("README.md", "WARP W123 subcontract") == []
