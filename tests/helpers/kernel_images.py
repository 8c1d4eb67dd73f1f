"""The program that prints what images say of their kernels, compiled; with planted defects, too."""
from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from elementwise_launches import Launch, Parts
from engine_traces import HERE, Defect, compiler, defects_of, planted_texts
from places import ROOT

KERNELS = ROOT / "cpp/kernels"
# Its files about machine code, which have a program of their own: machine_listings.py.
CODE = ("branches", "evidence", "listing", "lives", "machine_code", "numbers", "opcodes", "origins", "registers",
        "steps", "steps_of_memory")


@dataclass(frozen=True)
class Facts:
    """`parameters` are pairs of offset and size, `roles` the role of each pointer by its offset.

    `touches` says where the first thread goes, of words that are the addresses of a, b, and of a number: 0, then 24.
    """

    parameters: list[tuple[int, int]]
    roles: dict[int, str]
    touches: list[str] = field(default_factory=list, compare=False)
    may_signal: bool = field(default=True, compare=False)


def build(folder: Path, kernels: Path = KERNELS, *options: str) -> Path:
    folder.mkdir(exist_ok=True, parents=True)
    program = folder / "kernel_facts"
    sources = [*(path for path in sorted(kernels.glob("*.cpp")) if path.stem not in CODE), HERE / "kernel_facts.cpp"]
    (folder / "all.cpp").write_text("".join(f'#include "{source}"\n' for source in sources))
    subprocess.run([compiler() or "g++", "-std=c++17", "-O0", "-Wall", "-Wextra", "-Werror", "-D_GLIBCXX_ASSERTIONS",
                    *options, "-I", str(kernels.parent), "-I", str(ROOT / "cpp"), str(folder / "all.cpp"),
                    "-o", str(program)], check=True)
    return program


def all_defects():
    return defects_of(HERE / "kernel_defects.toml")


def is_of_code(defect: Defect) -> bool:
    return all(Path(file).stem in CODE for file, _, _ in defect.edits)


def defects():
    return [defect for defect in all_defects() if not is_of_code(defect)]


def build_planted(folder: Path, *options: str) -> Path:
    kernels = folder / "cpp/kernels"
    kernels.mkdir(parents=True)
    texts = planted_texts(KERNELS, defects())

    for file, text in texts.items():
        (kernels / file).write_text(text)
    return build(folder / "objects", kernels, "-DPLANTED", *options)


def output_of(program: Path, *arguments: str | Path, defect: str = "", given: str = "") -> str:
    done = subprocess.run([program, *arguments], capture_output=True, text=True, timeout=300, input=given,
                          env=os.environ | {"CHECK_DEFECT": defect})
    assert defect or done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def parts_of(program: Path, launches: list[Launch], defect: str = "") -> list[Parts | None]:
    text = output_of(program, "--parts", defect=defect, given="".join(launch.line + "\n" for launch in launches))
    return [None if line == "none" else [tuple(map(int, part.split())) for part in line.split(";") if part]
            for line in text.split("== reached")[0].splitlines()]


def by_offset(text: str) -> dict[int, str]:
    return {int(offset): value for offset, value in (word.split(":") for word in text.split())}


def facts_in(text: str) -> dict[str, dict[str, Facts]]:
    """By the name of the file, then of the kernel."""
    found: dict[str, dict[str, Facts]] = {}
    for line in text.split("== reached")[0].splitlines():
        if line.startswith("== "):
            kernels = found[Path(line[3:]).name] = {}
        elif "|" in line:
            name, parameters, pointers, signals, *touches = line.split("|")
            places = [tuple(map(int, place.split("+"))) for place in parameters.split()]
            kernels[name.strip()] = Facts(places, by_offset(pointers), [part.strip() for part in touches],
                                          bool(signals.strip()))
    return found


def facts_of(program: Path, *arguments: str | Path, defect: str = "") -> dict[str, dict[str, Facts]]:
    return facts_in(output_of(program, *arguments, defect=defect))


def variables_of(program: Path, *arguments: str | Path, defect: str = "") -> dict[str, dict[str, int]]:
    """The sizes of the variables of each image; before the names of managed ones stands `managed:`."""
    found: dict[str, dict[str, int]] = {}
    for line in output_of(program, *arguments, defect=defect).split("== reached")[0].splitlines():
        if line.startswith("== "):
            variables = found[Path(line[3:]).name] = {}
        elif line.startswith("variable "):
            _, name, nbytes = line.split()
            variables[name] = int(nbytes)
    return found
