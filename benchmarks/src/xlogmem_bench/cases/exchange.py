"""Arrays between libraries by DLPack: exports, what a called library looks up, and imports.

From C++ a library uses the table that the type of the array has (`__dlpack_c_exchange_api__`), from Python its methods.
Buffers are exported inside of a `use` that names them, as a program calls such a library.
"""
from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any

from cuda.bindings import driver as cuda

import xlogmem
from xlogmem.interop.devices import DeviceState
from xlogmem.sim.kernels import check
from xlogmem_bench import _loops
from xlogmem_bench.allocators import CPP, FLOOR, OURS, PEER, PYTHON
from xlogmem_bench.cases.model import Build, Candidate, timed
from xlogmem_bench.world import Failed, World, unless_failed

__all__ = ["called_for", "exported", "imported"]

SHAPE = (8, 32)
MOST = 10_000                               # calls between two uses
NOTE_OF_NONE = "a structure that is allocated, filled in and freed"
NOTE = "nothing orders a use elsewhere, and nothing holds the memory against a free"


class Ours:
    """A buffer of a runtime of its own, and a stream on which it is used."""

    def __init__(self) -> None:
        runtime = xlogmem.DeviceRuntime()
        self.state, self.stream = DeviceState(runtime), runtime.acquire_stream()
        self.buffer = self.state.full(SHAPE, 1.0, "float32", self.stream)
        self.loop = _loops.Exchanges(self.buffer)

    def inside(self, run: Callable[[int], float], calls: int) -> float:
        """Run inside of a use of the buffer."""
        with xlogmem.use(self.stream, read_write=self.buffer):
            return run(calls)


def exported() -> Build:
    def build(world: World, stack: ExitStack, failed: Failed) -> Iterator[Candidate]:
        yield Candidate("no array", CPP, FLOOR, _loops.Exchanges().exported, NOTE_OF_NONE)
        ours = Ours()
        yield Candidate("xlogmem", CPP, OURS, partial(ours.inside, ours.loop.exported), most=MOST)
        capsule = partial(ours.buffer.__dlpack__, stream=ours.stream.handle, max_version=(1, 0))
        yield Candidate("xlogmem", PYTHON, OURS, timed(capsule), "by __dlpack__, outside of a use", MOST)
        for name, array, arguments in arrays_of_others(world, stack, failed):
            if has_exchange(array):
                yield Candidate(name, CPP, PEER, _loops.Exchanges(array).exported, NOTE, MOST)
            yield Candidate(name, PYTHON, PEER, timed(partial(array.__dlpack__, **arguments)), f"by __dlpack__; {NOTE}",
                            MOST)

    return build


def called_for(what: str) -> Build:
    """``"described"``: the address and the shape, where a library needs them for the time of a call alone;
    ``"streams"``: the stream on which it works, the current one of the others, and that of the use."""
    def build(world: World, stack: ExitStack, failed: Failed) -> Iterator[Candidate]:
        yield Candidate("no array", CPP, FLOOR, getattr(_loops.Exchanges(), what), NOTE_OF_NONE)
        ours = Ours()
        yield Candidate("xlogmem", CPP, OURS, partial(ours.inside, getattr(ours.loop, what)), most=MOST)
        for name, array, _ in arrays_of_others(world, stack, failed):
            if has_exchange(array):
                yield Candidate(name, CPP, PEER, getattr(_loops.Exchanges(array), what))

    return build


def imported() -> Build:
    """An array of each library, imported here, and by each of the others."""
    def build(world: World, stack: ExitStack, failed: Failed) -> Iterator[Candidate]:
        host = bytes(1024)
        yield Candidate("memoryview", PYTHON, FLOOR, timed(lambda: memoryview(host)), "of host memory")
        ours = Ours()
        yield Candidate("xlogmem, of xlogmem", PYTHON, OURS,
                        timed(partial(xlogmem.from_dlpack, ours.buffer, state=ours.state)), most=MOST)
        arrays = {name: array for name, array, _ in arrays_of_others(world, stack, failed)}
        for producer, array in arrays.items():
            if producer != "cuda.core":                 # the stream of its work is not known
                here = partial(xlogmem.from_dlpack, array, state=ours.state)
                yield Candidate(f"xlogmem, of {producer}", PYTHON, OURS, timed(here), most=MOST)
        for consumer in ("CuPy", "PyTorch"):
            for producer, array in arrays.items():
                if consumer in arrays and producer not in (consumer, "cuda.core"):
                    take = partial(world.modules[consumer].from_dlpack, array)
                    yield Candidate(f"{consumer}, of {producer}", PYTHON, PEER, timed(take), NOTE, MOST)

    return build


def arrays_of_others(world: World, stack: ExitStack, failed: Failed) -> Iterator[tuple[str, Any, dict[str, Any]]]:
    """The name of each library, an array of it, and what its `__dlpack__` needs."""
    for name, make in (("CuPy", of_cupy), ("PyTorch", of_torch), ("cuda.core", of_core)):
        if name in world.modules:
            yield from unless_failed(name, make(world, stack), failed)


def of_cupy(world: World, stack: ExitStack) -> Iterator[tuple[str, Any, dict[str, Any]]]:
    yield "CuPy", world.modules["CuPy"].ones(SHAPE, "float32"), {}


def of_torch(world: World, stack: ExitStack) -> Iterator[tuple[str, Any, dict[str, Any]]]:
    yield "PyTorch", world.modules["PyTorch"].ones(SHAPE, device="cuda"), {}


def of_core(world: World, stack: ExitStack) -> Iterator[tuple[str, Any, dict[str, Any]]]:
    memory = int(check(cuda.cuMemAlloc(1024)))
    stack.callback(cuda.cuMemFree, memory)
    yield "cuda.core", world.modules["cuda.core"].Buffer.from_handle(memory, 1024), {"stream": -1}


def has_exchange(array: Any) -> bool:
    return hasattr(type(array), "__dlpack_c_exchange_api__")
