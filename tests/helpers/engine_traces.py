"""Traces for the engine of the check (`tests/check/traces`), and the program that feeds them to it, compiled.

With planted defects too: `tests/check/defects.toml` has edits of the engine's sources, which are all applied to a copy;
the environment selects one when the program runs.
"""
from __future__ import annotations

import os
import re
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from places import ROOT

HERE = ROOT / "tests/check"
ENGINE = ROOT / "cpp/engine"
PLANTED = re.compile(r'planted\("([a-z-]+)"\)')
PLANTED_SOURCE = """\
#include "planted.hpp"
#include <cstdlib>
#include <cstring>
namespace check {
unsigned long planted_reached = 0;
bool planted(const char* name) {
    static const char* const wanted = std::getenv("CHECK_DEFECT");
    if (!wanted || std::strcmp(wanted, name)) return false;
    planted_reached++;
    return true;
}
}
"""


@dataclass
class Case:
    """A trace, and its repaired twin."""

    file: str
    name: str
    wrong: list[str] = field(default_factory=list)
    right: list[str] = field(default_factory=list)
    wrong_findings: list[str] = field(default_factory=list)
    right_findings: list[str] = field(default_factory=list)
    has_twin: bool = False

    def __str__(self) -> str:
        return f"{self.file}: {self.name}"

    @property
    def wrong_name(self) -> str:
        return f"{self} - wrong"

    @property
    def right_name(self) -> str:
        return f"{self} - right"


def _add(case: Case, line: str) -> None:
    if line.startswith("=> "):
        case.wrong_findings.append(line.removeprefix("=> "))
    elif line.startswith("=+> "):
        case.right_findings.append(line.removeprefix("=+> "))
    else:
        case.has_twin |= line[0] in "+-"
        if line[0] != "+":
            case.wrong.append(line.removeprefix("- "))
        if line[0] != "-":
            case.right.append(line.removeprefix("+ "))


def _read() -> Iterator[Case]:
    for path in sorted((HERE / "traces").glob("*.txt")):
        case = None
        for line in path.read_text().splitlines():
            if line.startswith("== "):
                if case:
                    yield case
                case = Case(path.stem, line.removeprefix("== "))
            elif case and line and not line.startswith("#"):
                _add(case, line)
        assert case
        yield case


CASES = list(_read())


def _rounds(line: str, number: int) -> str:
    """The line in this round of a repeat; sums and products with % are worked out."""
    def value(match: re.Match[str]) -> str:
        return str(int(match["factor"] or 1) * number + int(match["more"] or 0))

    return re.sub(r"%(?:\*(?P<factor>\d+))?(?:\+(?P<more>\d+))?", value, line)


def _unrolled(lines: list[str]) -> Iterator[str]:
    body: list[str] | None = None
    times = 0
    for line in lines:
        if line.startswith("repeat "):
            body, times = [], int(line.split()[1])
        elif line == "done":
            assert body is not None
            for number in range(times):
                yield from (_rounds(each, number) for each in body)
            body = None
        elif body is not None:
            body.append(line)
        else:
            yield line


def compiler() -> str | None:
    return shutil.which("g++") or shutil.which("c++")


def build(folder: Path, engine: Path = ENGINE, *options: str) -> Path:
    """The program that replays traces, of these sources of the engine: one file, because most of the time goes into the
    headers of the standard library."""
    folder.mkdir(exist_ok=True)
    sources = [*sorted(engine.glob("*.cpp")), HERE / "replay.cpp"]
    (folder / "all.cpp").write_text("".join(f'#include "{source}"\n' for source in sources))
    program = folder / "replay"
    subprocess.run([compiler() or "g++", "-std=c++17", "-Og", "-Wall", "-Wextra", "-Werror", "-D_GLIBCXX_ASSERTIONS",
                    *options, "-I", str(engine.parent), "-I", str(ENGINE.parent), str(folder / "all.cpp"), "-o",
                    str(program)], check=True)
    return program


def programs() -> dict[str, list[str]]:
    """All traces, by their names."""
    right = {case.right_name: case.right for case in CASES if case.has_twin}
    return {case.wrong_name: case.wrong for case in CASES} | right


def written(program: Path, traces: dict[str, list[str]]) -> Path:
    """A file of this process beside the program, as the program reads it."""
    script = program.with_name(f"traces-{os.getpid()}.txt")
    lines = (line for name, calls in traces.items() for line in (f"== {name}", *_unrolled(calls)))
    script.write_text("".join(f"{line}\n" for line in lines))
    return script


def run(program: Path, traces: dict[str, list[str]], defect: str | None = None) -> dict[str, list[str]]:
    """What is found in each trace, by its name.  A crash is a finding, too."""
    done = subprocess.run([program, written(program, traces)], capture_output=True, text=True, timeout=60,
                          env=os.environ | {"CHECK_DEFECT": defect or ""})
    assert defect or done.returncode == 0, done.stderr
    found: dict[str, list[str]] = {}
    for line in done.stdout.splitlines():
        if line.startswith("== "):
            name = line.removeprefix("== ")
            found[name] = []
        else:
            found[name].append(line)
    return found


@dataclass(frozen=True)
class Defect:
    """A broken rule of the engine: in `file` the lines `old`, which stand there once, become `new`."""

    name: str
    rule: str
    edits: tuple[tuple[str, str, str], ...]


def defects_of(path: Path) -> list[Defect]:
    rows = tomllib.loads(path.read_text())["defect"]
    return [Defect(row["name"], row["rule"], tuple((edit["file"], edit["old"], edit["new"]) for edit in row["edit"]))
            for row in rows]


def defects() -> list[Defect]:
    return defects_of(HERE / "defects.toml")


def planted_texts(folder: Path, planted: list[Defect]) -> dict[str, str]:
    """The sources of a folder with all defects, each of which is selected at run time."""
    texts = {path.name: path.read_text() for path in folder.glob("*.[ch]pp")}
    for defect in planted:
        for file, old, new in defect.edits:
            assert texts[file].count(old) == 1, f"{defect.name}: {texts[file].count(old)} times: {old}"
            assert f'planted("{defect.name}")' in new, defect.name
            texts[file] = texts[file].replace(old, new)
    for file, text in texts.items():
        if PLANTED.search(text):
            place = re.search(r"^(#include|namespace)", text, re.M).start()
            texts[file] = f'{text[:place]}#include "planted.hpp"\n{text[place:]}'
    return texts | {"planted.hpp": "#pragma once\nnamespace check { bool planted(const char* name); }\n",
                    "planted.cpp": PLANTED_SOURCE}


def planted_sources() -> dict[str, str]:
    """The engine's sources with all defects."""
    return planted_texts(ENGINE, defects())


def build_planted(folder: Path) -> Path:
    engine = folder / "cpp/engine"
    engine.mkdir(parents=True)
    for file, text in planted_sources().items():
        (engine / file).write_text(text)
    return build(folder / "objects", engine, "-DPLANTED")
