"""What the zoo consists of: zoo.toml (our programs) and public.toml (those of others), as records.

Needs nothing but the standard library.
"""
from __future__ import annotations

import importlib.util
import os
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

__all__ = ["CHECKED", "HERE", "MODES", "NUMPY24", "Mistake", "Program", "Wrong", "marks", "programs", "why_not"]

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
MODES = ("bare", "driver", "real")
CHECKED = MODES[1:]
NUMPY24 = "ZOO_NUMPY24"                                 # where a NumPy lies that Numba accepts
MARK = re.compile(r"# (first|then): ([\w-]+(?:, [\w-]+)*)")


class Mistake(ValueError):
    """What a manifest says that cannot be."""


@dataclass(frozen=True)
class Wrong:
    """A variant of a program in which a wait is missing.

    `places` is marked (the lines that comments of the program name) or any; with `certain` false a possible finding
    is enough, and `because` says why.  `modes` are those in which it has to be found.
    """

    name: str
    modes: tuple[str, ...] = CHECKED
    places: str = "marked"
    certain: bool = True
    because: str = ""

    def __post_init__(self) -> None:
        if self.places not in ("marked", "any"):
            raise Mistake(f"{self.name}: places = {self.places!r}")
        if unknown := set(self.modes) - set(CHECKED):
            raise Mistake(f"{self.name}: modes {sorted(unknown)}")
        if (not self.certain or set(self.modes) != set(CHECKED)) and not self.because:
            raise Mistake(f"{self.name}: `because` has to say why less is expected")


@dataclass(frozen=True)
class Program:
    """A program that is right, and its wrong variants.

    `file` holds the lines that findings name; `arguments` come after it (`{tmp}` is a folder of the run's own) and the
    variant after these.  `compare` is output (the last line and the status are those of the bare run) or status.
    A program of others that is wrong as it stands has `right` false, and `itself` says what has to be found.
    """

    name: str
    file: Path
    arguments: tuple[str, ...] = ()
    folder: Path | None = None                          # where it runs; else a folder of the run's own
    wrong: tuple[Wrong, ...] = ()
    needs: tuple[str, ...] = ()
    modes: tuple[str, ...] = MODES
    seconds: int = 120
    environment: dict[str, str] = field(default_factory=dict)
    compare: str = "output"
    timed: bool = False
    public: bool = False
    itself: Wrong | None = None

    def __post_init__(self) -> None:
        if self.compare not in ("output", "status"):
            raise Mistake(f"{self.name}: compare = {self.compare!r}")
        if unknown := set(self.modes) - set(MODES):
            raise Mistake(f"{self.name}: modes {sorted(unknown)}")
        if len({one.name for one in self.wrong}) < len(self.wrong):
            raise Mistake(f"{self.name}: two variants have one name")

    @property
    def kind(self) -> str:
        return "public" if self.public else self.name.partition("_")[0]

    @property
    def right(self) -> bool:
        return self.itself is None


def marks(text: str) -> dict[str, dict[str, set[int]]]:
    """Variant -> first and then -> the lines that comments `# first: VARIANT, ...` and `# then: VARIANT, ...` mark."""
    found: dict[str, dict[str, set[int]]] = {}
    for number, line in enumerate(text.splitlines(), 1):
        for which, names in MARK.findall(line):
            for name in names.split(", "):
                found.setdefault(name, {"first": set(), "then": set()})[which].add(number)
    return found


def wrong_from(name: str, row: dict[str, Any]) -> Wrong:
    row = {key: tuple(value) if isinstance(value, list) else value for key, value in row.items()}
    try:
        return Wrong(name, **row)
    except TypeError as error:
        raise Mistake(f"{name}: {error}") from error


def program_from(row: dict[str, Any], file: Path, **more: Any) -> Program:
    """A row of a manifest; a key that no program has is a mistake."""
    row = {key: tuple(value) if isinstance(value, list) else value for key, value in row.items()}
    row["wrong"] = tuple(wrong_from(name, wrong) for name, wrong in row.pop("wrong", {}).items())
    try:
        return Program(file=file, **row, **more)
    except TypeError as error:
        raise Mistake(f"{row.get('name')}: {error}") from error


def ours(manifest: Path = HERE / "zoo.toml") -> Iterator[Program]:
    for row in tomllib.loads(manifest.read_text())["program"]:
        file = row.pop("file", None)
        yield program_from(row, ROOT / file if file else HERE / "programs" / f"{row['name']}.py")


def of_others(folder: Path, manifest: Path = HERE / "public.toml") -> Iterator[Program]:
    """The programs of public repositories, whose checkouts lie in the folder."""
    for row in tomllib.loads(manifest.read_text())["program"]:
        where = folder / row.pop("repository") / row.pop("folder", ".")
        first, *rest = (part.replace("{zoo}", str(HERE)) for part in row.pop("command"))
        apart, wrong = row.pop("apart", False), row.pop("itself", None)
        if first.startswith(str(HERE)):                 # it runs the program, which is the next part
            rest[0] = str(where / rest[0])
        yield replace(program_from(row, where / first, folder=None if apart else where, arguments=tuple(rest),
                                   public=True),
                      itself=wrong_from("itself", wrong) if wrong is not None else None)


def programs(public: Path | None) -> list[Program]:
    """All of them; those of others if their checkouts are at hand."""
    found = [*ours(), *(of_others(public) if public else ())]
    names = [one.name for one in found]
    if twice := {name for name in names if names.count(name) > 1}:
        raise Mistake(f"listed twice: {sorted(twice)}")
    return found


def why_not(program: Program) -> str | None:
    """Why a program cannot run here."""
    for need in program.needs:
        if need == "numpy24":
            if not os.environ.get(NUMPY24):
                return f"needs a NumPy before 2.5 in the folder that {NUMPY24} names"
        elif not is_installed(need):
            return f"{need} is not installed"
    return None if program.file.exists() else f"{program.file} is not there"


def is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:                         # of what it is in
        return False
