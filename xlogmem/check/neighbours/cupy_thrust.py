"""CuPy's sorting, which is Thrust with NVIDIA's runtime linked in: simulated functions take its place."""
from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from xlogmem.check import cudart

__all__ = ["prepare"]


def prepare(module: ModuleType) -> None:
    """`module` is cupy.cuda.thrust."""
    library = cudart.thrust()

    def call(name: str, dtype: Any, pointers: Sequence[int], rows: int, columns: int) -> None:
        from cupy.cuda import stream  # type: ignore[import-not-found,unused-ignore]

        on = stream.get_current_stream().ptr
        result = getattr(library, f"xlogmem_{name}")(
            ctypes.c_char(dtype.char.encode()), *map(ctypes.c_void_p, pointers), ctypes.c_uint64(rows),
            ctypes.c_uint64(columns), ctypes.c_void_p(on))
        if result < 0:
            raise TypeError(f"{name} of arrays with dtype '{dtype}' is not supported")
        if result:
            raise RuntimeError(f"{name}: error {result} of the driver")

    def sort(dtype: Any, start: int, keys_start: int, shape: Sequence[int]) -> None:
        call("sort", dtype, [start], math.prod(shape[:-1]), shape[-1])

    def argsort(dtype: Any, idx_start: int, data_start: int, keys_start: int, shape: Sequence[int]) -> None:
        call("argsort", dtype, [idx_start, data_start], math.prod(shape[:-1]), shape[-1])

    def lexsort(dtype: Any, idx_start: int, keys_start: int, k: int, n: int) -> None:
        call("lexsort", dtype, [idx_start, keys_start], k, n)

    for function in (sort, argsort, lexsort):
        setattr(module, function.__name__, function)
