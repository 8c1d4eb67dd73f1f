"""PyTorch as far as its pluggable allocator goes: for CI, where it is not installed.

`install` puts a stand-in into `sys.modules`.  Its tensors are allocated, freed and recorded on streams by the functions
that the program has plugged in, called without the GIL from C++ that catches PyTorch's exceptions.  What PyTorch 2.11
does in the same places is looked at on a GPU, in tests/allocators/test_torch_gpu.py.
"""
from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from cuda.bindings import driver
from engine_traces import compiler

from xlogmem.sim.kernels import check

__all__ = ["COMPILER", "build", "install"]

COMPILER = compiler()
ROOM = 1024


class OutOfMemoryError(RuntimeError):
    pass


class CustomAllocator:
    """What C++ knows of an allocator."""

    def __init__(self, allocate: int, free: int) -> None:
        self.allocate = allocate
        self.free = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p)(free)
        self.record = 0

    def set_record_stream_fn(self, function: int) -> None:
        self.record = function


class CUDAPluggableAllocator:
    def __init__(self, path: str, allocate: str, free: str) -> None:
        library = ctypes.CDLL(path)
        self._allocator = CustomAllocator(*(ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0
                                            for name in (allocate, free)))

    def allocator(self) -> CustomAllocator:
        return self._allocator


class State:
    """PyTorch's: the allocator of the process, and the thread's current stream."""

    def __init__(self, library: Path) -> None:
        self.calls = ctypes.CDLL(str(library))
        self.allocator: CustomAllocator | None = None
        self.initialized = False
        self.stream = self.device = 0

    def change(self, wanted: CUDAPluggableAllocator) -> None:
        if self.initialized:
            raise RuntimeError("Can't swap an already initialized allocator")
        self.allocator = wanted.allocator()

    def call(self, name: str, *arguments: Any) -> None:
        text = ctypes.create_string_buffer(ROOM)
        kind = getattr(self.calls, name)(*arguments, text, ctypes.c_size_t(ROOM))
        if kind:
            raise (OutOfMemoryError if kind == 1 else RuntimeError)(text.value.decode())

    def allocate(self, allocator: CustomAllocator, nbytes: int) -> int:
        ptr = ctypes.c_void_p()
        self.call("call_allocate", ctypes.c_void_p(allocator.allocate), ctypes.c_ssize_t(nbytes), self.device,
                  ctypes.c_void_p(self.stream), ctypes.byref(ptr))
        return ptr.value or 0


class Tensor:
    """Bytes from the current allocator, for the current stream."""

    def __init__(self, state: State, nbytes: int) -> None:
        assert state.allocator is not None
        state.initialized = True
        self.state, self.allocator = state, state.allocator
        self.nbytes, self.device, self.stream = nbytes, state.device, state.stream
        self.ptr = state.allocate(self.allocator, nbytes)
        self.__cuda_array_interface__ = {"shape": (nbytes,), "typestr": "|u1", "data": (self.ptr, False), "version": 3}

    def data_ptr(self) -> int:
        return self.ptr

    def record_stream(self, stream: int) -> None:
        self.state.call("call_record", ctypes.c_void_p(self.allocator.record), ctypes.c_void_p(self.ptr),
                        ctypes.c_void_p(stream))

    def __del__(self) -> None:
        if hasattr(self, "ptr"):
            self.allocator.free(self.ptr, self.nbytes, self.device, self.stream)


class MemPool:
    """Segments that are allocated by an allocator's functions; where there is no memory they return NULL."""

    def __init__(self, state: State, allocator: CustomAllocator, **options: bool) -> None:
        self.state, self.allocator, self.options = state, allocator, options
        self.segments: list[tuple[int, int]] = []

    def segment(self, nbytes: int) -> int:
        ptr = self.state.allocate(self.allocator, nbytes)
        if not ptr:
            raise OutOfMemoryError(f"Tried to allocate {nbytes} bytes")
        self.segments.append((ptr, nbytes))
        return ptr

    def __del__(self) -> None:
        for ptr, nbytes in self.segments:
            self.allocator.free(ptr, nbytes, self.state.device, self.state.stream)


def build(folder: Path) -> Path:
    """The library in which PyTorch's exceptions are."""
    library = folder / "libc10_cuda.so"
    subprocess.run([COMPILER or "g++", "-std=c++17", "-O1", "-shared", "-fPIC", "-fvisibility=hidden",
                    "-Wl,-soname,libc10_cuda.so", Path(__file__).with_suffix(".cpp"), "-o", library], check=True)
    return library


def install(library: Path) -> Any:
    """The stand-in, as ``import torch`` finds it from now on."""
    state = State(library)

    def module(name: str, **contents: Any) -> ModuleType:
        made = ModuleType(name)
        vars(made).update(contents)
        sys.modules[name] = made
        return made

    class CUDAGraph:
        """A graph of what the current stream is given between two calls."""

        def capture_begin(self) -> None:
            relaxed = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
            check(driver.cuStreamBeginCapture(state.stream, relaxed))

        def capture_end(self) -> None:
            self.graph = check(driver.cuStreamEndCapture(state.stream))

    memory = module("torch.cuda.memory", CUDAPluggableAllocator=CUDAPluggableAllocator,
                    change_current_allocator=state.change)
    cuda = module("torch.cuda", memory=memory, is_initialized=lambda: state.initialized,
                  CUDAGraph=CUDAGraph,
                  MemPool=lambda allocator, **options: MemPool(state, allocator, **options))
    extension = module("torch._C", _cuda_customAllocator=CustomAllocator, _cuda_getAllocator=lambda: state.allocator)
    return module("torch", __version__="2.11.0", cuda=cuda, _C=extension, state=state,
                  OutOfMemoryError=OutOfMemoryError, empty=lambda nbytes: Tensor(state, nbytes))
