"""Lines of programs that were compiled: stacks of addresses, as cpp/native gives them, and the lines that DWARF has.

GNU binutils' or LLVM's ``addr2line`` finds the lines; without it, and in programs that were built without ``-g``, a
place is a function of a file.
"""
from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterable
from contextlib import suppress
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from xlogmem import sim
from xlogmem.check import cudart
from xlogmem.check.frames import STUBS, SYSTEM, Frame

__all__ = ["environment", "frames_of", "resolve"]

SECONDS = 60                                            # for one file: the DWARF of a large one takes seconds
CLOSED = re.compile(r"/lib(cuda|cudart|cupti|cublas|cublasLt|cudnn\w*|cufft|curand|cusolver|cusparse|nccl)\.so")
_known: dict[tuple[str, int], list[Frame]] = {}


def environment(folder: Path) -> dict[str, str]:
    """Return the variable by which compiled programs find the simulated driver and libraries, through links that this
    makes in a new folder."""
    folder.mkdir(mode=0o700)
    (folder / "libcuda.so.1").symlink_to(sim.library_path())
    cudart.link(folder)
    return {"LD_LIBRARY_PATH": os.pathsep.join(filter(None, [str(folder), os.environ.get("LD_LIBRARY_PATH")]))}


def frames_of(stack: Iterable[Any]) -> tuple[Frame, ...]:
    """Return the frames of a stack in a journal: lists of Python's, or objects of cpp/native."""
    found: list[Frame] = []
    for one in stack:
        found += (_known.get(key_of(one)) or [unresolved(one)]) if isinstance(one, dict) else [Frame(*one)]
    return without_launchers(found)


def without_launchers(found: list[Frame]) -> tuple[Frame, ...]:
    """nvcc makes two functions of each kernel for its launch: one in a file of its own, and the caller of that, which
    seems to be at the kernel's first line."""
    return tuple(frame for before, frame in pairwise([Frame("", 0, ""), *found])
                 if not frame.file.endswith(STUBS) and not before.file.endswith(STUBS))


def resolve(stacks: Iterable[Iterable[Any]]) -> None:
    """Find the lines of all these stacks, file by file; `frames_of` knows them from then on."""
    wanted: dict[str, set[int]] = {}
    for stack in stacks:
        for one in stack:
            if isinstance(one, dict) and key_of(one) not in _known and not is_closed(one["module"]):
                wanted.setdefault(one["module"], set()).add(one["offset"])
    for module, offsets in wanted.items():
        if module and Path(module).is_file():
            _known.update(lines_of(module, sorted(offsets)))


def is_closed(module: str) -> bool:
    """True for a library of the system or of NVIDIA: these have no lines."""
    return module.startswith(SYSTEM) or CLOSED.search(module) is not None


def key_of(frame: dict[str, Any]) -> tuple[str, int]:
    return frame["module"], frame["offset"]


def unresolved(frame: dict[str, Any]) -> Frame:
    return Frame(frame["module"] or "?", 0, frame["symbol"] or hex(frame["offset"]))


@cache
def tool() -> str | None:
    return shutil.which("addr2line") or shutil.which("llvm-addr2line")


def lines_of(module: str, offsets: list[int]) -> dict[tuple[str, int], list[Frame]]:
    """The lines of addresses in a file, each with those of the functions that it was inlined into, the innermost first;
    without those that are not known."""
    if tool() is None:
        return {}
    with suppress(OSError, subprocess.TimeoutExpired):
        done = subprocess.run([str(tool()), "-a", "-f", "-C", "-i", "-e", module, *map(hex, offsets)], timeout=SECONDS,
                              capture_output=True, text=True, errors="replace")
        return {(module, offset): frames for offset, frames in parsed(done.stdout) if frames}
    return {}


def parsed(text: str) -> Iterable[tuple[int, list[Frame]]]:
    """An address, and then two lines for each frame: the function, and ``file:line``."""
    lines, found = iter(text.splitlines()), list[tuple[int, list[Frame]]]()
    for line in lines:
        if line.startswith("0x"):
            found.append((int(line, 16), []))
        elif found:
            file, _, number = next(lines, "").partition(" (discriminator")[0].rpartition(":")
            if number.isdecimal() and int(number) and not file.startswith("?"):
                found[-1][1].append(Frame(file, int(number), line))
    return found
