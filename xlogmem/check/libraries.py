"""NVIDIA's libraries that are not simulated: which of them the program uses without a GPU, and where.

Such a library is found in two ways.  It has been loaded by its name, whatever became of its calls: an audit hook sees
what ctypes loads, as cuda.pathfinder and CuPy do.  Or its errors, or the files of its bindings, are in the exception
that ended the program; where it is not installed, the exception is all that there is.
"""
from __future__ import annotations

import linecache
import os
import re
import sys
import traceback
from collections.abc import Iterable, Iterator
from contextlib import suppress
from types import FrameType

from xlogmem.check.frames import Frame, place_in

__all__ = ["notes", "watch"]

# By what stands behind `lib` in their files' names; their parts have longer ones (libcudnn_ops.so.9).
NAMES = {"cufftmp": "cuFFTMp", "cusolvermg": "cuSOLVERMg",
         "cusparselt": "cuSPARSELt", "cudnn": "cuDNN", "nccl": "NCCL", "cutensor": "cuTENSOR",
         "cudss": "cuDSS", "nvshmem": "NVSHMEM", "nvshmem_host": "NVSHMEM", "cufile": "cuFile", "nvjpeg": "nvJPEG"}
ANY = "|".join(sorted(NAMES, key=len, reverse=True))
FILE = re.compile(rf"lib({ANY})\.so\b", re.IGNORECASE)
# In an error: CUDNN_STATUS_INTERNAL_ERROR, CuTensorError, `cuDNN error`, `module 'cupy.cuda.nccl'`, libnccl.so.2.
TEXT = re.compile(rf"\b({ANY})(?:_[A-Z]+\w*| ?error\b)|\bcupy\w*\.(?:\w+\.)*({ANY})\b|\blib({ANY})\.so\b",
                  re.IGNORECASE)
IMPORT = re.compile(rf"^from (?:cupyx|cupy_backends|cupy)\b[\w.]* import ({ANY})\b")
BINDING = re.compile(rf"(?:^|/)({ANY})\.pyx$|/cupyx/({ANY})\.py$")
PRELOADED = os.path.join("torch", "__init__.py")        # it loads all that PyTorch may need
ON_A_GPU = "Check this part of the program on a GPU: `xlogmem check`, without --no-gpu"

_loaded: dict[str, Frame | None] = {}                   # by their keys in NAMES: where they were loaded
_watches: bool | None = None                            # None until the audit hook is there, which stays


def watch(wanted: bool) -> None:
    """Begin to note the libraries that are loaded, or stop."""
    global _watches
    if _watches is None:
        sys.addaudithook(_heard)
    _watches = wanted


def notes(error: BaseException | None) -> list[str]:
    """Say which libraries the program uses, and where; `error` has ended it, or none."""
    ended = list(dict.fromkeys(_in_errors(error)))
    place = _place_of(error) if error else None
    said = [f"{_listed(ended)} not simulated: the program ended{f' at {place}' if place else ''} for that.  {ON_A_GPU}"
            ] if ended else []
    used: dict[str, list[str]] = {}
    for key, where in _loaded.items():
        # Some load others for themselves.
        if key not in ended and not (ended and where == place) and _is_there(key):
            used.setdefault(f"{where}" if where else "the program", []).append(key)
    return said + [f"{_listed(keys)} not simulated: what {where} loads {'them' if len(keys) > 1 else 'it'} for is not "
                   f"checked.  {ON_A_GPU}" for where, keys in used.items()]


def _listed(keys: list[str]) -> str:
    names = list(dict.fromkeys(NAMES[key] for key in keys))
    return f"{', '.join(names[:-1])} and {names[-1]} are" if len(names) > 1 else f"{names[0]} is"


def _heard(event: str, arguments: tuple[object, ...]) -> None:
    """Of the interpreter: an event that may be audited."""
    if event != "ctypes.dlopen" or not _watches:
        return
    found = FILE.match(os.path.basename(str(arguments[0])))
    if found and (key := found[1].lower()) not in _loaded:
        with suppress(OSError, RuntimeError):           # of a path; raised here it would fail the audited call
            stack = _frames(traceback.walk_stack(sys._getframe(1)))
            if not any(frame.file.endswith(PRELOADED) for frame in stack):
                _loaded[key] = place_in(stack)


def _place_of(error: BaseException) -> Frame | None:
    return place_in(_frames(traceback.walk_tb(error.__traceback__))[::-1])


def _frames(walked: Iterable[tuple[FrameType, int]]) -> tuple[Frame, ...]:
    return tuple(Frame(frame.f_code.co_filename, line, frame.f_code.co_qualname) for frame, line in walked)


def _is_there(key: str) -> bool:
    """It has been loaded, and not only looked for."""
    with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as maps:
        return any(f"/lib{key}.so" in line.lower() for line in maps)


def _in_errors(error: BaseException | None) -> Iterator[str]:
    """The keys of libraries in this error and in those behind it."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        for frame, line in traceback.walk_tb(error.__traceback__):
            file = frame.f_code.co_filename
            if found := BINDING.search(file) or IMPORT.match(linecache.getline(file, line).strip()):
                yield next(filter(None, found.groups()))
        for found in TEXT.finditer(f"{type(error).__name__}: {error}"):
            yield next(filter(None, found.groups())).lower()
        error = error.__cause__ or error.__context__
