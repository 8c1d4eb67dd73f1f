"""Arrays with a CUDA array interface, and nothing else."""
from __future__ import annotations


class Array:
    """An array of another library: an interface, and that is all."""

    def __init__(self, **interface) -> None:
        self.interface = {"version": 3, "shape": (16,), "typestr": "|u1", "data": (0, False), "stream": None}
        self.interface |= interface

    @property
    def __cuda_array_interface__(self):
        return self.interface


class CudaArray:
    """An array on the device."""

    def __init__(self, ptr: int, shape: tuple[int, ...] = (4,)) -> None:
        self.__cuda_array_interface__ = {"data": (ptr, False), "shape": shape, "typestr": "<f4", "version": 3}


class Column:
    """An owned column: a buffer of one runtime, as libraries hold it."""

    def __init__(self, block, offset: int = 0, length: int = 4) -> None:
        self.block = block
        self.__cuda_array_interface__ = {"data": (block.ptr + offset, False), "shape": (length,), "typestr": "|u1",
                                         "version": 3}


class External:
    """A column of untracked memory."""

    __cuda_array_interface__ = {"data": (0x7f0000001000, False), "shape": (4,), "typestr": "|u1",   # noqa: RUF012
                                "version": 3}
