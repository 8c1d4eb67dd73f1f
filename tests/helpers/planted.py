"""Planted defects: reads `tests/defects.toml` and applies it to a copy of the sources, which a debug build compiles.

Used by setup.py for builds with checks (XLOGMEM_BUILD=debug, asan, tsan) and by the test that every edit still fits.
As a program it prints each defect that is left to a test, and that test: .ci/full plants the one and runs the other.
Needs nothing but the standard library, because builds run it.
"""
from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

__all__ = ["TABLE", "Defect", "Edit", "MisfitError", "apply", "edited_files", "load", "write_copy"]

TABLE = Path(__file__).parents[1] / "defects.toml"
PLANTED = re.compile(r"\bplanted\(defect\.([A-Z_]+)\)")
FUNCTION = re.compile(r"^( *)(?:cdef|cpdef|async def|def)\b[^=\n]*?\b(\w+)\(")
INCLUDE = re.compile(r'^include "([^"]+)"', re.MULTILINE)
COPIED = ("*.pyx", "*.pxd", "*.pxi", "*.hpp", "__init__.py")


class MisfitError(ValueError):
    """The table is wrong, or it and the sources do not belong together."""


@dataclass(frozen=True)
class Edit:
    """In the function `function` of `file`, the lines `old` become `new`."""

    file: str
    function: str
    old: str
    new: str

    def __str__(self) -> str:
        return f"{self.file}, {self.function}:\n{self.old}"

    @property
    def constants(self) -> set[str]:
        return set(PLANTED.findall(self.new))


@dataclass(frozen=True)
class Defect:
    """One broken rule: `rule` is what it breaks, `what` is what happens instead, `test` the file that notices a defect
    which random programs do not."""

    name: str
    rule: str
    what: str
    edits: tuple[Edit, ...]
    edited_with: tuple[str, ...]                        # defects whose edits plant this one too
    test: str

    @property
    def constant(self) -> str:
        return self.name.upper().replace("-", "_")


def _read(row: dict[str, Any]) -> Defect:
    edits = tuple(Edit(edit["file"], edit["in"], edit["old"], edit["new"]) for edit in row.get("edit", ()))
    return Defect(row["name"], row["rule"], row["what"], edits, tuple(row.get("edited_with", ())),
                  row.get("test", ""))


def load(table: Path = TABLE) -> list[Defect]:
    """The table, in its order.

    Raises
    ------
    MisfitError
        A key is missing, a name is not one or stands twice, no edit plants a defect, an edit plants an unknown one or
        is not of whole lines, or a defect is edited with one that does not plant it.
    """
    try:
        defects = [_read(row) for row in tomllib.loads(table.read_text())["defect"]]
    except KeyError as error:
        raise MisfitError(f"a row or an edit has no {error}") from None
    for defect in defects:
        if not re.fullmatch(r"[a-z]+(-[a-z]+)+", defect.name) or defect.name == "no-defect":
            raise MisfitError(f"{defect.name!r} is not a name: two words or more in lower case, joined by hyphens")
    planted_by = {defect.name: set().union(*(edit.constants for edit in defect.edits)) for defect in defects}
    if len(planted_by) != len(defects):
        raise MisfitError("a name of a defect stands twice")
    constants = {defect.constant for defect in defects}
    for defect in defects:
        for edit in defect.edits:
            if not edit.old.endswith("\n") or not edit.new.endswith("\n"):
                raise MisfitError(f"an edit is not of whole lines: {edit}")
        if unknown := planted_by[defect.name] - constants:
            raise MisfitError(f"the edits of {defect.name} plant what has no row: {', '.join(sorted(unknown))}")
        for other in defect.edited_with:
            if defect.constant not in planted_by.get(other, ()):
                raise MisfitError(f"{defect.name} is edited with {other}, whose edits do not plant it")
        if not defect.edited_with and defect.constant not in planted_by[defect.name]:
            raise MisfitError(f"no edit plants {defect.name}")
    return defects


def _functions(text: str, name: str) -> Iterator[tuple[int, int]]:
    """Where functions of this name begin and end, as offsets."""
    lines = text.splitlines(keepends=True)
    offsets = [0]
    for line in lines:
        offsets.append(offsets[-1] + len(line))
    for number, line in enumerate(lines):
        found = FUNCTION.match(line)
        if not found or found[2] != name:
            continue
        end = number + 1
        while end < len(lines) and ")" not in "".join(lines[number:end]):
            end += 1                                    # the arguments take several lines
        while end < len(lines) and (not lines[end].strip() or lines[end].startswith(f"{found[1]} ")):
            end += 1
        yield offsets[number], offsets[end]


def _place(text: str, edit: Edit) -> int:
    """Where the old lines begin.

    Raises
    ------
    MisfitError
        They do not stand in their function exactly once.
    """
    places = [start + match.start()
              for start, end in _functions(text, edit.function)
              for match in re.finditer(rf"^{re.escape(edit.old)}", text[start:end], re.MULTILINE)]
    if len(places) != 1:
        raise MisfitError(f"the lines of this edit stand {len(places)} times: {edit}")
    return places[0]


def apply(text: str, edits: list[Edit]) -> str:
    """The text with all edits.

    Raises
    ------
    MisfitError
        An edit does not fit, or two overlap.
    """
    placed = sorted(((_place(text, edit), edit) for edit in edits), key=lambda pair: pair[0])
    for (place, edit), (following, other) in pairwise(placed):
        if place + len(edit.old) > following:
            raise MisfitError(f"two edits overlap: {edit}\nand {other}")
    for place, edit in reversed(placed):
        text = text[:place] + edit.new + text[place + len(edit.old):]
    return text


def edited_files(package: Path, defects: list[Defect]) -> dict[str, str]:
    """The texts of all files that the table edits, with the edits; by path below the package.

    Raises
    ------
    MisfitError
        There is no such file, an edit does not fit, or two overlap.
    """
    edits: dict[str, list[Edit]] = {}
    for defect in defects:
        for edit in defect.edits:
            edits.setdefault(edit.file, []).append(edit)
    if missing := [file for file in edits if not (package / file).is_file()]:
        raise MisfitError(f"edited files that are not there: {', '.join(missing)}")
    return {file: apply((package / file).read_text(), found) for file, found in edits.items()}


def _with_imports(text: str) -> str:
    """A module's text that can say ``planted(defect.NAME)``."""
    first = re.search(r"^(?:from \S+ cimport|cimport|include) ", text, re.MULTILINE)
    if first is None:
        raise MisfitError("a module with planted defects has no cimport and no page")
    return (f"{text[:first.start()]}from xlogmem cimport _defects as defect\n"
            f"from xlogmem._defects cimport planted\n{text[first.start():]}")


def copied(package: Path, defects: list[Defect]) -> dict[str, str]:
    """The texts of what is compiled of the package, with all defects planted; by path below it."""
    edited = edited_files(package, defects)
    texts = {str(path.relative_to(package)): path.read_text()
             for pattern in COPIED for path in package.glob(f"**/{pattern}")} | edited
    for file, text in texts.items():
        pages = {str(Path(file).parent / page) for page in INCLUDE.findall(text)}
        if file.endswith(".pyx") and not edited.keys().isdisjoint({file, *pages}):
            texts[file] = _with_imports(text)
    return texts | generated(defects)


def write_copy(package: Path, target: Path) -> None:
    """Write that copy.  Files that are there already, as they should be, are left alone; others are removed."""
    texts = copied(package, load())
    for path in [path for path in target.glob("**/*") if path.is_file()]:
        if str(path.relative_to(target)) not in texts:  # of an earlier layout
            path.unlink()
    for file, text in texts.items():
        path = target / file
        if not path.exists() or path.read_text() != text:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)


def generated(defects: list[Defect]) -> dict[str, str]:
    """`xlogmem._defects`, the module that selects one of them at run time."""
    enum = "\n".join(f"    {defect.constant}" for defect in defects)
    rows = "".join(f"    {defect.name!r}: PlantedDefect({number}, {defect.rule!r}, {defect.what!r}, "
                   f"{defect.test!r}),\n"
                   for number, defect in enumerate(defects, 1))
    return {"_defects.pxd": HEAD.format(enum=enum), "_defects.pyx": MODULE.format(rows=rows)}


HEAD = """\
# Generated from tests/defects.toml for builds with checks.
cdef enum Defect:
    NO_DEFECT
{enum}

cdef bint planted(Defect defect) noexcept nogil
"""

MODULE = '''\
"""The defects of tests/defects.toml, one of which can be planted at a time.  Generated for builds with checks."""
import os
from collections import namedtuple

from libc.stdint cimport uint64_t

from xlogmem._base.cpp cimport atomic

__all__ = ["DEFECTS", "PlantedDefect", "plant", "reached"]

cdef atomic[int] selected                   # one for all compiled modules
cdef atomic[uint64_t] hits

PlantedDefect = namedtuple("PlantedDefect", "number rule what test")

DEFECTS = {{
{rows}}}


cdef bint planted(Defect defect) noexcept nogil:
    if selected.load() != defect:
        return False
    hits.fetch_add(1)
    return True


def plant(name):
    """Plant a defect in this process, instead of the one planted before; None: in none.

    Raises
    ------
    ValueError
        There is no defect of this name.
    """
    if name is not None and name not in DEFECTS:
        raise ValueError(f"defect {{name!r}} is unknown; choose one of {{', '.join(DEFECTS)}}")
    selected.store(NO_DEFECT if name is None else DEFECTS[name].number)
    hits.store(0)


def reached():
    """How often the code broke its rule since the last `plant`."""
    return hits.load()


plant(os.environ.get("XLOGMEM_DEFECT") or None)
'''


if __name__ == "__main__":
    for row in load():
        if row.test:
            print(row.name, row.test)
