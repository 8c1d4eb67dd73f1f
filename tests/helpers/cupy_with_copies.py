"""CuPy as far as programs exchange memory with it: streams, arrays from the driver, DLPack both ways, copies.

As allocator_stand_ins has it, whose modules these are.
"""
from __future__ import annotations

import ctypes

import allocator_stand_ins as stand_ins
from capsules import Producer, Taken
from cuda.bindings import driver as cuda

from xlogmem.sim.kernels import check

__all__ = ["modules"]

U32 = {"code": 1, "bits": 32}


def modules():
    """The modules of a new CuPy."""
    found = stand_ins.cupy()
    top, of_cuda = found["cupy"], found["cupy.cuda"]
    current = top.current

    class Stream:
        """Destroyed with the object, as CuPy's are."""

        def __init__(self, non_blocking):
            self.ptr = int(check(cuda.cuStreamCreate(int(non_blocking))))
            self.before = []

        def __cuda_stream__(self):
            return 0, self.ptr

        def __enter__(self):
            self.before.append(current.stream)
            current.stream = self

        def __exit__(self, *_):
            current.stream = self.before.pop()

        def __del__(self):
            cuda.cuStreamDestroy(self.ptr)

    class Memory(stand_ins.BaseMemory):
        """Of the driver's pool, freed on the stream that was current when it was allocated."""

        def __init__(self, nbytes):
            self.stream, self.size = current.stream, nbytes
            self.ptr = int(check(cuda.cuMemAllocAsync(nbytes, self.stream.ptr)))

        def __del__(self):
            cuda.cuMemFreeAsync(self.ptr, self.stream.ptr)

    class Pointer(stand_ins.MemoryPointer):
        def __add__(self, offset):
            return Pointer(self.mem, self.ptr - self.mem.ptr + offset)

        def copy_from_device_async(self, source, nbytes, stream):
            check(cuda.cuMemcpyDtoDAsync(self.ptr, source.ptr, nbytes, stream.ptr))

    class Imported(stand_ins.BaseMemory):
        def __init__(self, capsule):
            self.taken = Taken(capsule)
            self.ptr = self.taken.tensor.data

        def __del__(self):
            self.taken.delete(ctypes.PYFUNCTYPE)

    class Exported(Producer):
        """Holds the array until the deleter is called."""

        def __init__(self, array):
            super().__init__(array.data.ptr, (array.words,), **U32)
            self.array = array

        def _delete(self, address):
            self.array = None
            super()._delete(address)

    class Array:
        base = None

        def __init__(self, pointer, words):
            self.data, self.words = Pointer(pointer.mem, 0), words
            self.__cuda_array_interface__ = {"shape": (words,), "typestr": "<u4", "data": (self.data.ptr, False),
                                             "version": 3}

        def __dlpack_device__(self):
            return 2, 0

        def __dlpack__(self, **_):
            return Exported(self).capsule()

    Array.__module__ = "cupy"                           # by which its current stream is found
    top.empty = lambda words, dtype: Array(of_cuda.get_allocator()(4 * words), words)

    def from_dlpack(exporter):
        imported = Imported(exporter.__dlpack__(stream=current.stream.ptr))
        return Array(Pointer(imported, 0), imported.taken.tensor.shape[0])

    top.from_dlpack = from_dlpack
    top.get_default_memory_pool = lambda: top.pool
    top.pool.free_all_blocks = lambda: None
    of_cuda.Stream = Stream
    of_cuda.device.Device = of_cuda.Device
    of_cuda.Device = lambda number: _Device()
    current.allocator = lambda nbytes: Pointer(Memory(nbytes), 0)
    return found


class _Device:
    def use(self):
        """There is one."""
