"""Streams and arrays of CuPy, PyTorch, Numba and cuda.core, on a GPU: a late producer, a consumer on another stream.

Each test has a twin without `use`, which must read too early.
"""
from __future__ import annotations

import importlib
from collections.abc import Callable
from types import SimpleNamespace

import pytest
from cuda.bindings import driver as cuda

from xlogmem import BlockingStreamWarning, DeviceRuntime, use
from xlogmem.sim.kernels import Kernels, check

pytestmark = pytest.mark.gpu
WORDS, ROUNDS, DELAY_NS = 1 << 16, 30, 300_000


def library(name: str):
    try:
        return importlib.import_module(name)
    except Exception as error:                          # numba-cuda fails to import beside a numpy that is too new
        pytest.skip(f"{name} cannot be imported here: {error}")


class Array:
    """A view of a block that every library takes."""

    def __init__(self, block) -> None:
        self.block = block
        self.__cuda_array_interface__ = {"data": (block.ptr, False), "shape": (block.nbytes // 4,), "typestr": "<i4",
                                         "version": 3}


def late_hand_over(producer, consumer, consume: Callable[[Array], int], protected: bool) -> int:
    """Rounds in which `consume`, run on the consumer's stream, did not see what the producer had written."""
    runtime = DeviceRuntime()
    kernels = Kernels()
    wrong = 0
    ours = runtime.register_stream(producer)
    for turn in range(ROUNDS):
        block = runtime.allocate(4 * WORDS, ours)
        array = Array(block)
        recorders = [use(producer, write=array, runtime=runtime), use(consumer, read=array, runtime=runtime)]
        if protected:
            recorders[0].preflight()
        kernels.delay(ours.handle, DELAY_NS)
        kernels.fill(ours.handle, block.ptr, turn + 1, WORDS)
        if protected:
            recorders[0].commit()
            recorders[1].preflight()
        total = consume(array)
        if protected:
            recorders[1].commit()
        wrong += total != (turn + 1) * WORDS
        del array
        block.free()
    check(cuda.cuCtxSynchronize())
    kernels.close()
    return wrong


def cupy() -> SimpleNamespace:
    cp = library("cupy")

    def consume(stream, array):
        with stream:
            view = cp.ndarray((WORDS,), cp.int32, cp.cuda.MemoryPointer(
                cp.cuda.UnownedMemory(array.block.ptr, array.block.nbytes, array), 0))
            total = view.sum(dtype=cp.int64)
        stream.synchronize()
        return int(total.get())

    return SimpleNamespace(stream=lambda: cp.cuda.Stream(non_blocking=True), consume=consume)


def torch() -> SimpleNamespace:
    torch = library("torch")

    def consume(stream, array):
        with torch.cuda.stream(stream):
            total = torch.as_tensor(array, device="cuda").sum(dtype=torch.int64)
        stream.synchronize()
        return int(total)

    return SimpleNamespace(stream=torch.cuda.Stream, consume=consume)


def numba() -> SimpleNamespace:
    cuda_module = library("numba.cuda")

    def consume(stream, array):
        host = cuda_module.as_cuda_array(array).copy_to_host(stream=stream)
        stream.synchronize()
        return int(host.sum(dtype="i8"))

    return SimpleNamespace(stream=cuda_module.stream, consume=consume)


def cuda_core() -> SimpleNamespace:
    core = library("cuda.core")
    device = core.Device(0)
    device.set_current()

    def consume(stream, array):
        seen = bytearray(4)
        handle = int(stream.handle)
        check(cuda.cuMemcpyDtoHAsync(seen, array.block.ptr + 4 * (WORDS - 1), 4, handle))
        check(cuda.cuStreamSynchronize(handle))
        return int.from_bytes(seen, "little") * WORDS

    return SimpleNamespace(stream=device.create_stream, consume=consume)


@pytest.mark.parametrize("protected", [True, False])
@pytest.mark.parametrize("find", [cupy, torch, numba, cuda_core])
@pytest.mark.filterwarnings("ignore::xlogmem.BlockingStreamWarning")    # Numba's streams are blocking ones
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_late_producer(find, protected):
    library = find()
    producer, consumer = library.stream(), library.stream()
    wrong = late_hand_over(producer, consumer, lambda array: library.consume(consumer, array), protected)
    assert (wrong == 0) == protected


def test_one_stream_under_all_its_names():
    runtime = DeviceRuntime()
    cp, torch_module = library("cupy"), library("torch")
    stream = cp.cuda.Stream(non_blocking=True)
    registered = runtime.register_stream(stream)
    for other in (stream.ptr, torch_module.cuda.ExternalStream(stream.ptr), cp.cuda.Stream.from_external(registered)):
        assert runtime.register_stream(other) == registered
    assert runtime.register_stream(cp.cuda.Stream.null).discipline == "opaque"
    assert runtime.register_stream(torch_module.cuda.default_stream()) == runtime.register_stream(0)
    with pytest.warns(BlockingStreamWarning):
        runtime.register_stream(cp.cuda.Stream())


def test_adopted_cupy_memory():
    cp = library("cupy")
    runtime = DeviceRuntime()
    stream, other = cp.cuda.Stream(non_blocking=True), cp.cuda.Stream(non_blocking=True)
    kernels = Kernels()
    for turn in range(ROUNDS):
        with stream:
            array = cp.zeros(WORDS, cp.int32)
        kernels.delay(stream.ptr, DELAY_NS)
        kernels.fill(stream.ptr, array.data.ptr, turn, WORDS)
        block = runtime.adopt(array.data.ptr, array.nbytes, stream, owner=array)
        with use(other, read=array, runtime=runtime), other:
            total = array.sum(dtype=cp.int64)
        del array
        block.free()
        assert int(total.get(stream=other)) == turn * WORDS
    kernels.close()
