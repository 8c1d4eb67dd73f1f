"""The simulated CUDA runtime (libcudart) and libraries of NVIDIA's, C++: see `cpp/cudart/runtime.hpp`, `cpp/curand`,
`cpp/cublas`, `cpp/cufft`, `cpp/cusolver`, `cpp/cusparse` and `cpp/nvml`.  Loaded where a program is checked without a
GPU."""
from __future__ import annotations

import ctypes
from pathlib import Path

from cuda.bindings import __version__  # importlib.metadata takes longer to import than this module

__all__ = ["link", "loaded", "prepare", "thrust"]

MAJORS = (12, 13)
# By the names that programs load them by.
NAMES = {f"lib{name}.so.{version}": f"_{name}{version}" for name, versions in (
    ("cudart", MAJORS), ("cublas", MAJORS), ("cublasLt", MAJORS), ("cufft", (11, 12)), ("cusolver", (11, 12)),
    ("curand", (10,)), ("cusparse", (12,)))
    for version in versions} | {"libnvidia-ml.so.1": "_nvml1"}
_libraries: dict[str, ctypes.CDLL] = {}


def prepare() -> None:
    """Load these as the process's libcudart.so.12 and .13, and one of them as its libcudart.so, and those of the other
    libraries: code that loads one by its name gets it."""
    for file in NAMES.values():
        _load(file)
    _load(f"_plain{_usual_major()}")


def link(folder: Path) -> None:
    """Give each library the name by which a compiled program finds it, as a link in this folder."""
    for name, file in {**NAMES, "libcudart.so": f"_plain{_usual_major()}"}.items():
        (folder / name).symlink_to(_file(file))


def loaded(major: int) -> ctypes.CDLL:
    """Return the library for programs of this major version of CUDA.  Modules that are loaded from here on find the
    library's functions without naming it."""
    return _load(f"_cudart{major}", ctypes.RTLD_GLOBAL)


def thrust() -> ctypes.CDLL:
    """Return the functions that sort in place of CuPy's: see `cpp/thrust`."""
    return _load("_thrust1")


def _usual_major() -> int:
    """The version of CUDA that this Python's packages are for: cuda-bindings has the same."""
    major = int(__version__.partition(".")[0])
    return major if major in MAJORS else MAJORS[-1]


def _load(name: str, mode: int = ctypes.DEFAULT_MODE) -> ctypes.CDLL:
    _libraries[name] = ctypes.CDLL(str(_file(name)), mode=mode)
    return _libraries[name]


def _file(name: str) -> Path:
    found = sorted(Path(__file__).parent.glob(f"{name}*.so"))
    if not found:
        raise RuntimeError(f"xlogmem was built without the simulated libraries: there is no {name}*.so in "
                           "xlogmem/check/cudart")
    return found[0]
