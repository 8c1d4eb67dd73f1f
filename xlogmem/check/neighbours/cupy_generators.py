"""CuPy's generators of random numbers (`cupy.random.default_rng`), whose kernels have NVIDIA's runtime linked in: no
driver sees these launches, so the Python around them reports their reads and writes.

Before a launch CuPy makes the array of the numbers, or is given one, brings the arrays of parameters into its shape,
and gets the address of the generator's state; each of these steps is a function that can be replaced.
"""
from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any

from xlogmem import sim
from xlogmem.check import cudart
from xlogmem.check.neighbours.noted import note

__all__ = ["prepare"]

LAUNCH, SEEDING = b"cupy.random.Generator", b"cupy.random.BitGenerator"


class Next(threading.local):
    """Of this thread's next launch: the array that it writes, and those that it reads."""

    written: Any = None
    read: list[Any]

    def __init__(self) -> None:
        self.read = []

    def writes(self, array: Any) -> None:
        self.written, self.read = array, []             # what an exception has left is dropped

    def take(self) -> tuple[Any, list[Any]]:
        taken = self.written, self.read
        self.writes(None)
        return taken


class In:
    """A module, but for some of its functions."""

    def __init__(self, module: Any, **functions: Callable[..., Any]) -> None:
        self.__dict__.update(functions)
        self._module = module

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


def extent(array: Any) -> tuple[int, int]:
    """Address and length of memory that a launch touches for certain: of an array with gaps the first number."""
    extents = sorted((stride, size) for stride, size in zip(array.strides, array.shape, strict=True)
                     if stride and size > 1)
    length = array.itemsize
    for stride, size in extents:
        if stride != length:
            return array.data.ptr, array.itemsize
        length *= size
    return array.data.ptr, length


def prepare(module: ModuleType) -> None:
    """`module` is cupy.random._bit_generator."""
    from cupy.random import _generator_api as launches  # type: ignore[import-not-found,unused-ignore]

    generators: Any = getattr(module, "_cuRANDGenerator", None)
    if not (hasattr(generators, "state") and hasattr(launches, "_core") and hasattr(launches, "cupy")
            and hasattr(getattr(launches, "Generator", None), "_check_output_array")
            and hasattr(launches, "init_curand") and hasattr(launches, "random_raw")):
        note("in this release of CuPy, what cupy.random's generators write is not known, and not checked")
        return
    library = cudart.thrust()
    thread = Next()

    def touch(name: bytes, *extents: tuple[int, int, bytes]) -> None:
        from cupy.cuda import stream  # type: ignore[import-not-found,unused-ignore]

        count = len(extents)
        addresses, lengths, uses = zip(*extents, strict=True)
        result = library.xlogmem_touch(
            ctypes.c_char_p(name), ctypes.c_void_p(stream.get_current_stream().ptr), ctypes.c_uint64(count),
            (ctypes.c_uint64 * count)(*addresses), (ctypes.c_uint64 * count)(*lengths), b"".join(uses))
        if result:
            raise RuntimeError(f"{name.decode()}: error {result} of the driver")

    def ndarray(*arguments: Any, **options: Any) -> Any:
        made = core.ndarray(*arguments, **options)
        thread.writes(made)
        return made

    def broadcast_to(array: Any, shape: Any) -> Any:
        made = cupy.broadcast_to(array, shape)
        thread.read.append(made)
        return made

    def check_output_array(self: Any, dtype: Any, size: Any, out: Any, *options: Any) -> None:
        check(self, dtype, size, out, *options)
        thread.writes(out)

    def init_curand(generator: Any, state: int, seed: Any, size: int) -> None:
        initialize(generator, state, seed, size)
        touch(SEEDING, (state, len(sim.simulator().view(state)), b"w"))

    def random_raw(generator: Any, out: Any) -> None:
        thread.writes(out)
        raw(generator, out)

    def state(self: Any) -> int:
        address: int = state_of(self)
        written, read = thread.take()
        if written is not None and written.size:
            touch(LAUNCH, (address, self._state.nbytes, b"b"), (written.data.ptr, written.nbytes, b"w"),
                  *((*extent(one), b"r") for one in read))
        return address

    core, cupy, check = launches._core, launches.cupy, launches.Generator._check_output_array
    initialize, raw, state_of = launches.init_curand, launches.random_raw, generators.state
    launches._core = In(core, ndarray=ndarray)
    launches.cupy = In(cupy, broadcast_to=broadcast_to)
    launches.Generator._check_output_array = check_output_array
    for importer in (launches, module):                 # which of them has the names depends on the release
        for function in (init_curand, random_raw):
            if hasattr(importer, function.__name__):
                setattr(importer, function.__name__, function)
    generators.state = state
