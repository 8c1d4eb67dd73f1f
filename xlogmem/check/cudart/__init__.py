"""The simulated CUDA runtime (libcudart), C++: see `runtime.hpp`.  Loaded where a program is checked without a GPU."""
from __future__ import annotations

import ctypes
from pathlib import Path

__all__ = ["loaded", "prepare"]

MAJORS = (12, 13)
_libraries: dict[int, ctypes.CDLL] = {}


def prepare() -> None:
    """Load these as the process's libcudart.so.12 and .13: code that loads one by its name gets it."""
    for major in MAJORS:
        _libraries[major] = ctypes.CDLL(_path(major))


def loaded(major: int) -> ctypes.CDLL:
    """Return the library for programs of this major version of CUDA.  Modules that are loaded from here on find the
    library's functions without naming it."""
    _libraries[major] = ctypes.CDLL(_path(major), mode=ctypes.RTLD_GLOBAL)
    return _libraries[major]


def _path(major: int) -> str:
    found = sorted(Path(__file__).parent.glob(f"_cudart{major}*.so"))
    if not found:
        raise RuntimeError("xlogmem was built without the simulated runtime: there is no "
                           f"_cudart{major}*.so in xlogmem/check/cudart")
    return str(found[0])
