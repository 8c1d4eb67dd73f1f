"""Finds the words of `tests/words.toml`, and what else does not stand in xlogmem's texts, in a checkout.

Used by tests/tools/test_words.py and .ci/house.py; needs nothing but the standard library.
"""
from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

__all__ = ["INCLUDE", "STRINGS", "TABLE", "Allowed", "Finding", "allowed", "find_all", "find_in", "forbidden", "texts"]

TABLE = Path(__file__).parents[1] / "words.toml"
SCANNED = ("xlogmem/**/*.py", "xlogmem/**/*.py[xi]", "xlogmem/**/*.px[di]", "xlogmem/**/*.[ch]pp", "xlogmem/**/*.h",
           "cpp/**/*.[ch]pp", "benchmarks/*.py", "benchmarks/src/**/*.p[yx]*", "benchmarks/src/**/*.hpp",
           "*.md", "docs/*.md", "docs/*.py", "docs/_extensions/*.py", "docs/*.rst", "docs/*/*.rst", "benchmarks/*.md",
           "examples/*", ".ci/*", "*.py", "tests/**/*.py", "tests/**/*.toml", "tests/**/*.txt")
NUMBERED = ("tests/", "docs/promises.md", "docs/ordering.md")   # may cite numbers of rules
NUMBER = re.compile(r"\bcontract \d+|\bW\d{1,2}\b")
NO = re.compile(r"(?<![Tt]here )\b(?:is|are) no (?!longer\b|more\b|less\b|fewer\b|later\b|earlier\b)\w+")
# Comments, which may contain quotes; strings, of which docstrings are the long ones.
PYTHON = re.compile(r"""#[^\n]*|(?P<text>\"{3}.*?\"{3}|'{3}.*?'{3}|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')""",
                    re.DOTALL)
C = re.compile(r"""//[^\n]*|/\*.*?\*/|'(?:\\.|[^'\\\n])'|(?P<text>"(?:\\.|[^"\\\n])*")""", re.DOTALL)
STRINGS = {".py": PYTHON, ".pyi": PYTHON, ".pyx": PYTHON, ".pxd": PYTHON, ".pxi": PYTHON,
           ".cpp": C, ".hpp": C, ".h": C}
INCLUDE = re.compile(r'^include "([^"]+)"', re.MULTILINE)   # of a page
GAP = r"""[\s#*/"']+"""                                 # between two words, which may be on two lines


@dataclass(frozen=True)
class Finding:
    """A word that does not stand in xlogmem, and where it does."""

    file: str
    line: int
    word: str
    instead: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.word} -> {self.instead}"


@dataclass(frozen=True)
class Allowed:
    """Where `where` matches a line, `word` is right there."""

    word: str
    where: str
    reason: str


@cache
def forbidden() -> dict[str, str]:
    """Each word, and what to say instead."""
    return {word: row["instead"] for row in tomllib.loads(TABLE.read_text())["forbidden"] for word in row["words"]}


@cache
def allowed() -> tuple[Allowed, ...]:
    return tuple(Allowed(**row) for row in tomllib.loads(TABLE.read_text()).get("allowed", ()))


@cache
def _pattern() -> re.Pattern[str]:
    words = (re.escape(word).replace(r"\*", r"\w*").replace(r"\ ", GAP) for word in forbidden())
    return re.compile(rf"\b(?:{'|'.join(words)})\b")


def _in_words(text: str) -> str:
    """The text in lower case, with a gap between the parts of identifiers, and the same lines."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])|_|(?<=[A-Za-z])(?=\d)", " ", text).lower()


def _instead(word: str) -> str:
    rows = forbidden()
    return rows.get(word) or next(instead for name, instead in rows.items()
                                  if name.endswith("*") and word.startswith(name[:-1]))


def find_in(file: str, text: str) -> list[Finding]:
    """What is wrong in the text of a file, whose name says what kind of text it is; allowed words too."""
    return sorted(_find_in(file, text), key=lambda finding: finding.line)


def _find_in(file: str, text: str) -> Iterator[Finding]:
    plain = _in_words(text)
    for match in _pattern().finditer(plain):
        word = re.sub(GAP, " ", match[0])
        yield Finding(file, plain.count("\n", 0, match.start()) + 1, word, _instead(word))
    if strings := STRINGS.get(Path(file).suffix):
        for string in strings.finditer(text):
            for match in NO.finditer(string["text"] or ""):
                yield Finding(file, text.count("\n", 0, string.start() + match.start()) + 1, match[0], "is not a")
    if not file.startswith(NUMBERED):
        for match in NUMBER.finditer(text):
            yield Finding(file, text.count("\n", 0, match.start()) + 1, match[0], "the rule in words")


def texts(root: Path) -> Iterator[tuple[str, str]]:
    """The scanned files of a checkout, without the table of these words."""
    for path in sorted({path for pattern in SCANNED for path in root.glob(pattern)}):
        file = path.relative_to(root).as_posix()
        if path.is_file() and file != "tests/words.toml" and "__pycache__" not in file:
            yield file, path.read_text()


def find_all(root: Path) -> Iterator[tuple[Finding, Allowed | None]]:
    """What stands in a checkout, and which row of the table allows it."""
    for file, text in texts(root):
        lines = text.splitlines()
        for finding in find_in(file, text):
            yield finding, next((row for row in allowed() if row.word == finding.word
                                 and re.search(row.where, lines[finding.line - 1])), None)
