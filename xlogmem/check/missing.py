"""Functions of CUDA that are not simulated, and that the program has called.

Libraries look up hundreds of the driver's functions, use those that exist, and raise an exception with the name when
the program calls another.  A stub would change the result of the look-up, so the exception that ended the program is
read.  A function of the runtime (libcudart) and of the simulated libraries has a stub, which counts.
"""
from __future__ import annotations

import re
import traceback
from collections.abc import Iterator

from xlogmem import sim

__all__ = ["functions"]

NAME = re.compile(r"\bcu[A-Z]\w+")
SAYS = re.compile("not found|NotFound|undefined symbol|not supported", re.IGNORECASE)
CUPY, CHECKS = "cupy_backends/cuda/api/runtime.pyx", "check_status"
SUFFIX = re.compile("(_v[0-9]+)?(_ptsz|_ptds)?$")


def functions(error: BaseException | None) -> list[str]:
    """Return their names, each once, after this error has ended the program; none if none has."""
    if error is None:
        return []
    return list(dict.fromkeys([*_in_exception(error), *sim.simulator().notes()["not_simulated"]]))


def _in_exception(error: BaseException | None) -> Iterator[str]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        if SAYS.search(f"{type(error).__name__}: {error}"):
            for name in NAME.findall(str(error)):
                if not sim.simulator().has_function(plain := SUFFIX.sub("", name)):
                    yield plain
        if "cudaErrorSymbolNotFound" in str(error):     # CuPy's runtime is NVIDIA's, and did not find the driver's
            for frame, _ in traceback.walk_tb(error.__traceback__):
                if frame.f_code.co_filename == CUPY and (called := frame.f_code.co_name.rpartition(".")[2]) != CHECKS:
                    yield f"cuda{called[0].upper()}{called[1:]}"
        error = error.__cause__ or error.__context__
