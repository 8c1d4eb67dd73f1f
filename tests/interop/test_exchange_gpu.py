"""What only a GPU can show of DLPack's exchange in C: a called library's work, and PyTorch's tensors by their table."""
from __future__ import annotations

import ctypes
from typing import Any

import pytest
from cuda.bindings import driver as cuda
from exchanges import Library

import xlogmem
from xlogmem import Buffer, DeviceState, use
from xlogmem.sim.kernels import Kernels, check

pytestmark = pytest.mark.gpu
WORDS = 1024
DELAY = 300_000                                         # nanoseconds
TURNS = 40


class Work:
    """Two streams, a source that is written late, and a target that begins with zeros."""

    def __init__(self) -> None:
        self.state = DeviceState(xlogmem.DeviceRuntime())
        self.S, self.T = (self.state.runtime.acquire_stream() for _ in range(2))
        self.source, self.target = (self.state.full(WORDS, 0, "uint32", self.S) for _ in range(2))
        self.library = Library(Buffer)
        self.kernels = Kernels()

    def close(self) -> None:
        check(cuda.cuCtxSynchronize())
        self.kernels.close()
        self.__dict__.clear()                           # pytest keeps this object, which must not keep the runtime

    def clear(self) -> None:
        with use(self.S, write=[self.source, self.target]):
            self.kernels.fill(self.S.handle, self.source.ptr, 0, WORDS)
            self.kernels.fill(self.S.handle, self.target.ptr, 0, WORDS)
        check(cuda.cuCtxSynchronize())

    def write_late(self) -> None:
        with use(self.S, write=self.source):
            self.kernels.delay(self.S.handle, DELAY)
            self.kernels.fill(self.S.handle, self.source.ptr, 1, WORDS)

    def call(self) -> None:
        """A library that copies one array to another, where it is sent."""
        source, target = self.library.take(self.source), self.library.take(self.target)
        self.kernels.copy(self.library.stream(), target.tensor.data, source.tensor.data, WORDS)
        source.delete()
        target.delete()

    def is_wrong(self) -> bool:
        check(cuda.cuCtxSynchronize())
        seen = ctypes.c_uint32()
        check(cuda.cuMemcpyDtoH(ctypes.addressof(seen), self.target.ptr + 4 * WORDS - 4, 4))
        return seen.value != 1


@pytest.fixture
def x():
    made = Work()
    yield made
    made.close()


@pytest.mark.parametrize("recorded", [True, False])
def test_a_library_comes_after_the_writer(x, recorded):
    """The twin is sent to the other stream without a use."""
    wrong = 0
    for _ in range(TURNS):
        x.clear()
        x.write_late()
        if recorded:
            with use(x.T, read=x.source, write=x.target):
                x.call()
        else:
            x.kernels.copy(x.T.handle, x.target.ptr, x.source.ptr, WORDS)
        wrong += x.is_wrong()
    assert wrong == 0 if recorded else wrong > TURNS // 2


@pytest.mark.parametrize("recorded", [True, False])
def test_a_later_writer_comes_after_the_library(x, recorded):
    wrong = 0
    for _ in range(TURNS):
        x.clear()
        x.write_late()
        if recorded:
            with use(x.T, read=x.source, write=x.target):
                x.kernels.delay(x.T.handle, DELAY)
                x.call()
            with use(x.S, write=x.source):
                x.kernels.fill(x.S.handle, x.source.ptr, 2, WORDS)
        else:
            check(cuda.cuCtxSynchronize())
            x.kernels.delay(x.T.handle, DELAY)
            x.kernels.copy(x.T.handle, x.target.ptr, x.source.ptr, WORDS)
            x.kernels.fill(x.S.handle, x.source.ptr, 2, WORDS)
        wrong += x.is_wrong()
    assert wrong == 0 if recorded else wrong > TURNS // 2


@pytest.mark.parametrize("recorded", [True, False])
def test_a_tensor_of_torch_is_named_by_its_table(x, recorded):
    """PyTorch writes late on its stream; the use on another one names the tensor, which was adopted."""
    torch: Any = pytest.importorskip("torch")
    if not hasattr(torch.Tensor, "__dlpack_c_exchange_api__"):
        pytest.skip("this PyTorch has no exchange in C")
    stream, wrong = torch.cuda.Stream(), 0
    tensor = torch.zeros(WORDS, dtype=torch.int32, device="cuda", requires_grad=False)
    torch.cuda.synchronize()
    block = x.state.runtime.adopt(tensor, stream=stream)
    for _ in range(TURNS):
        x.clear()
        tensor.zero_()
        torch.cuda.synchronize()
        with torch.cuda.stream(stream), use(stream, write=tensor, runtime=x.state.runtime):
            x.kernels.delay(stream.cuda_stream, DELAY)
            tensor.fill_(1)
        if recorded:
            with use(x.T, read=tensor[:], write=x.target):
                x.kernels.copy(x.T.handle, x.target.ptr, tensor.data_ptr(), WORDS)
        else:
            x.kernels.copy(x.T.handle, x.target.ptr, tensor.data_ptr(), WORDS)
        wrong += x.is_wrong()
    del block
    assert wrong == 0 if recorded else wrong > TURNS // 2
