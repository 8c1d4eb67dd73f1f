"""The simulated CUDA runtime (libcudart), cuRAND and cuBLAS, C++: see `cpp/cudart/runtime.hpp`, `cpp/curand` and
`cpp/cublas`.  Loaded where a program is checked without a GPU."""
from __future__ import annotations

import ctypes
from importlib.metadata import PackageNotFoundError, version
from itertools import count, takewhile
from pathlib import Path

__all__ = ["called_stubs", "link", "loaded", "prepare", "thrust"]

MAJORS = (12, 13)
WITH_STUBS = (*(f"_{name}{major}" for name in ("cudart", "cublas", "cublasLt") for major in MAJORS), "_curand10")
STUB = "xlogmem_called_stub"
_libraries: dict[str, ctypes.CDLL] = {}


def prepare() -> None:
    """Load these as the process's libcudart.so.12 and .13, and one of them as its libcudart.so, and those of cuRAND and
    cuBLAS: code that loads one by its name gets it."""
    for name in WITH_STUBS:
        _load(name)
    _load(f"_plain{_usual_major()}")


def link(folder: Path) -> None:
    """Give each library the name by which a compiled program finds it, as a link in this folder."""
    for name, file in {"libcudart.so": f"_plain{_usual_major()}", "libcurand.so.10": "_curand10",
                       **{f"lib{name}.so.{major}": f"_{name}{major}" for name in ("cudart", "cublas", "cublasLt")
                          for major in MAJORS}}.items():
        (folder / name).symlink_to(_file(file))


def loaded(major: int) -> ctypes.CDLL:
    """Return the library for programs of this major version of CUDA.  Modules that are loaded from here on find the
    library's functions without naming it."""
    return _load(f"_cudart{major}", ctypes.RTLD_GLOBAL)


def thrust() -> ctypes.CDLL:
    """Return the functions that sort in place of CuPy's: see `cpp/thrust`."""
    return _load("_thrust1")


def called_stubs() -> list[str]:
    """Return the names of functions that were called and are not simulated."""
    found = []
    for loaded_name in WITH_STUBS:
        if (library := _libraries.get(loaded_name)) is not None:
            stub = getattr(library, STUB)
            stub.restype = ctypes.c_char_p
            names = map(stub, count())
            found += [name.decode() for name in takewhile(bool, names)]
    return found


def _usual_major() -> int:
    """The version of CUDA that this Python's packages are for: cuda-bindings has the same."""
    try:
        major = int(version("cuda-bindings").partition(".")[0])
    except (PackageNotFoundError, ValueError):
        return MAJORS[-1]
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
