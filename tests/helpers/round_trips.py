"""Round trips with other libraries on a GPU: different streams, a late producer, a thousand rounds, every word checked.

Where the same program can be written with the other libraries alone, it is run that way too, and the rounds that went
wrong are printed, not judged: they are theirs.
"""
from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import numpy
import pytest
from cuda.bindings import driver as cuda

from xlogmem import DeviceRuntime, DeviceState, use
from xlogmem.sim.kernels import Kernels, check

ROUNDS, OWN_ROUNDS, WORDS, LATE = 1000, 200, 1 << 14, 300_000       # nanoseconds that producers and readers are late


def needs(name: str, module: str) -> pytest.MarkDecorator:
    try:
        missing = importlib.util.find_spec(module) is None
    except ModuleNotFoundError:                         # of a package that is not there
        missing = True
    return pytest.mark.skipif(missing, reason=f"needs another library: {name}")


CUPY, TORCH, NUMBA = needs("CuPy", "cupy"), needs("PyTorch", "torch"), needs("Numba", "numba.cuda")
if not hasattr(numpy, "row_stack"):                     # which numba-cuda needs up to 0.30
    NUMBA = pytest.mark.skip(reason="needs another library: Numba with a NumPy below 2.5")


CORE, JAX, CUDF = needs("cuda.core", "cuda.core"), needs("JAX", "jax"), needs("cuDF", "cudf")


class Program:
    """A runtime, a stream of ours, and a word that counts what was not as it has to be."""

    def __init__(self) -> None:
        self.runtime = DeviceRuntime()
        self.state = DeviceState(self.runtime)
        self.kernels = Kernels()
        self.S = self.runtime.acquire_stream()
        self.wrong = self.state.full(1, 0, "uint32", self.S)

    def produce(self, buffer: Any, value: int) -> None:
        """Late, on our stream."""
        with use(self.S, write=buffer):
            self.kernels.delay(self.S.handle, LATE)
            self.kernels.fill(self.S.handle, buffer.access().ptr, value, buffer.size)

    def consume(self, buffer: Any, value: int) -> None:
        """Late, on our stream: a reader that is not waited for is overtaken by the next writer."""
        with use(self.S, read=buffer, read_write=self.wrong):
            self.kernels.delay(self.S.handle, LATE)
            self.kernels.count_unequal(self.S.handle, self.wrong.access().ptr, buffer.access().ptr, value, WORDS)

    def count(self) -> int:
        return int(self.wrong.to_numpy(self.S)[0])

    def close(self) -> None:
        check(cuda.cuCtxSynchronize())
        self.kernels.close()
        self.__dict__.clear()


def wrong_rounds(rounds: int, one: Callable[[int], Any]) -> int:
    """How many rounds saw a wrong word: `one` gives a count on the device, or on the host, for each."""
    counts = [one(turn) for turn in range(1, rounds + 1)]
    check(cuda.cuCtxSynchronize())                      # they are fetched on whatever stream is current
    return sum(int(seen) != 0 for seen in counts)


def show(capsys: pytest.CaptureFixture[str], what: str, ours: int, own: int | None = None) -> None:
    beside = "" if own is None else f"; its own hand-over: {own} of {OWN_ROUNDS} wrong"
    with capsys.disabled():
        print(f"\n    {what}: {ours} of {ROUNDS} wrong{beside}", end="")
