"""Listings of kernels' machine code in `tests/check/machine_code`, and the program that reads them, compiled.

    XLOGMEM_CHECK_NVDISASM=.../nvdisasm PYTHONPATH=tests/helpers python tests/helpers/machine_listings.py

makes the listings afresh: nvcc compiles the kernels, nvdisasm prints what came of them.
"""
from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Container
from dataclasses import dataclass, field
from pathlib import Path

from engine_traces import HERE, compiler, planted_texts
from kernel_images import KERNELS, all_defects, by_offset, is_of_code, output_of
from places import ROOT

from xlogmem.check import disassembler

FOLDER = HERE / "machine_code"
SOURCE = FOLDER / "kernels.cu"
CHIPS = (75, 80, 90, 100, 120)


@dataclass(frozen=True)
class CodeFacts:
    """`roles` has the role of each pointer by its offset, `open` pairs of offset and size.

    `added` and `deciding` have the offsets of the numbers that matter to each pointer; None: all of them.
    """

    followed: bool
    roles: dict[int, str]
    open: set[tuple[int, int]]
    added: dict[int, set[int] | None] = field(default_factory=dict, compare=False)
    deciding: dict[int, set[int] | None] = field(default_factory=dict, compare=False)

    def matters(self, pointer: int, offset: int) -> bool:
        """True if the number of eight bytes at the offset matters to the pointer."""
        return any(places is None or not places.isdisjoint({offset, offset + 4})
                   for places in (self.added[pointer], self.deciding[pointer]))


def defects():
    return [defect for defect in all_defects() if is_of_code(defect)]


def build(folder: Path, *options: str) -> Path:
    """With all defects, of which the environment selects one; as one file, like the program that replays traces."""
    kernels = folder / "cpp/kernels"
    kernels.mkdir(parents=True)
    for file, text in planted_texts(KERNELS, defects()).items():
        (kernels / file).write_text(text)
    sources = [*sorted(kernels.glob("*.cpp")), HERE / "machine_code.cpp"]
    (folder / "all.cpp").write_text("".join(f'#include "{source}"\n' for source in sources))
    program = folder / "machine_code"
    subprocess.run([compiler() or "g++", "-std=c++17", "-O0", "-Wall", "-Wextra", "-Werror", "-D_GLIBCXX_ASSERTIONS",
                    *options, "-I", str(folder / "cpp"), "-I", str(ROOT / "cpp"), str(folder / "all.cpp"),
                    "-o", str(program)], check=True)
    return program


def _offsets(text: str) -> set[int] | None:
    return None if text == "all" else {int(offset) for offset in text.split(",") if offset}


def facts_in(text: str) -> dict[str, CodeFacts]:
    found = {}
    for line in text.splitlines():
        name, followed, pointers, places, numbers = (part.strip() for part in line.split("|"))
        facts = CodeFacts(followed == "1", by_offset(pointers),
                          {tuple(map(int, place.split("+"))) for place in places.split()})  # type: ignore[misc]
        for of, given in by_offset(numbers).items():
            added, deciding = given.split("/")
            facts.added[of], facts.deciding[of] = _offsets(added), _offsets(deciding)
        found[name] = facts
    return found


def facts_of(program: Path, *files: Path, defect: str = "") -> dict[str, CodeFacts]:
    return facts_in(output_of(program, *files, defect=defect))


def compile_kernels(chip: int, folder: Path) -> Path:
    cubin = folder / f"sm_{chip}.cubin"
    subprocess.run(["nvcc", "-cubin", f"-arch=sm_{chip}", "-w", str(SOURCE), "-o", str(cubin)], check=True,
                   capture_output=True)
    return cubin


def listings_of(program: Path, cubin: Path, names: Container[str] | None = None) -> str | None:
    """Kernels of a cubin, each with what is known of it beside its code."""
    image, text = cubin.read_bytes(), []
    for line in output_of(program, "--cubin", cubin).splitlines():
        head, place = line.rsplit(" | ", 1)
        if names is not None and head.split()[0] not in names:
            continue
        chip, begin, size = map(int, place.split())
        listing = disassembler.listing(image[begin:begin + size], chip)
        if listing is None:
            return None
        text.append(f"== {head}\n{listing}")
    return "".join(text)


def main() -> None:
    assert shutil.which("nvcc"), "nvcc is needed"
    with tempfile.TemporaryDirectory() as folder:
        program = build(Path(folder, "program"))
        for chip in CHIPS:
            text = listings_of(program, compile_kernels(chip, Path(folder)))
            assert text, "nvdisasm is needed, one that knows the chip"
            (FOLDER / f"sm_{chip}.txt").write_text(text)


if __name__ == "__main__":
    main()
