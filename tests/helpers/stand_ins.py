"""Stand-ins for what other libraries hand to users: one class for each way of naming device memory."""
from __future__ import annotations

from typing import Any

from arrays import Array
from capsules import Producer

NBYTES = 4096


class Tensor:
    """As PyTorch's: a method for the address, strides in elements, and interfaces that refuse."""

    is_cuda = True

    def __init__(self, ptr: int, shape: tuple[int, ...] = (NBYTES,), strides: tuple[int, ...] = (1,),
                 device: tuple[int, int] = (2, 0)) -> None:
        self.ptr, self.shape, self.strides, self.where = ptr, shape, strides, device

    def data_ptr(self) -> int:
        return self.ptr

    def element_size(self) -> int:
        return 1

    def stride(self) -> tuple[int, ...]:
        return self.strides

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.where

    @property
    def __cuda_array_interface__(self) -> Any:
        raise RuntimeError("requires a gradient")

    def __dlpack__(self, **_: Any) -> Any:
        raise BufferError("requires a gradient")


class Storage:
    """As PyTorch's storages."""

    is_cuda = True

    def __init__(self, ptr: int, nbytes: int = NBYTES) -> None:
        self.ptr, self.size = ptr, nbytes

    def data_ptr(self) -> int:
        return self.ptr

    def nbytes(self) -> int:
        return self.size


class Buffer:
    """As cuda.core's: a handle and a size, which say less than its capsule."""

    def __init__(self, ptr: int, nbytes: int = NBYTES, **fields: Any) -> None:
        self.handle, self.size, self.is_closed = ptr, nbytes, False
        self.producer = Producer(ptr, (nbytes,), **fields)

    def close(self) -> None:
        self.is_closed = True

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.producer.managed.tensor.device_type, self.producer.managed.tensor.device_id

    def __dlpack__(self, **options: Any) -> Any:
        capsule = self.producer.__dlpack__(**options)
        self.producer.forget()                          # it lives as long as this
        return capsule


class Memory:
    """As CuPy's."""

    def __init__(self, ptr: int, nbytes: int = NBYTES) -> None:
        self.ptr, self.size = ptr, nbytes


class MemoryPointer:
    """As CuPy's: somewhere in an allocation."""

    def __init__(self, ptr: int, offset: int = 0) -> None:
        self.mem, self.ptr = Memory(ptr), ptr + offset


class CountedPointer:
    """As Numba's: a handle that is a ``CUdeviceptr``, or a ctypes pointer, and a size."""

    def __init__(self, ptr: Any, nbytes: int = NBYTES) -> None:
        self.handle, self.size = ptr, nbytes


def array(ptr: int) -> Array:
    return Array(data=(ptr, False), shape=(NBYTES,))


def device_pointer(ptr: int) -> Any:
    from cuda.bindings import driver
    return driver.CUdeviceptr(ptr)


def counted_pointer(ptr: int) -> CountedPointer:
    return CountedPointer(device_pointer(ptr))


SIZED = {"data_ptr": Tensor, "storage": Storage, "interface": array, "dlpack": Buffer, "ptr": MemoryPointer,
         "handle": counted_pointer}
BARE = {"int": int, "CUdeviceptr": device_pointer}
