"""The simulated libraries, with library_calls.cpp as their driver: what a call says of itself."""
from __future__ import annotations

import ctypes
from ctypes import byref, c_size_t, c_ulonglong, c_void_p

import numpy

STREAM = 0x5000
Extent = tuple[str, int, int, int, str]                 # the array, width, rows, pitch, use


class Library:
    def __init__(self, path: str) -> None:
        self.at = ctypes.CDLL(path)
        self.at.newest_call.restype = ctypes.c_char_p
        self.generator, self.handle = c_void_p(), c_void_p()
        self.ok("curandCreateGenerator", byref(self.generator), 100)
        self.ok("curandSetStream", self.generator, c_void_p(STREAM))
        self.ok("cublasCreate_v2", byref(self.handle))
        self.ok("cublasSetStream_v2", self.handle, c_void_p(STREAM))

    def ok(self, name: str, *arguments: object) -> None:
        assert getattr(self.at, name)(*arguments) == 0, name

    def newest(self, **arrays: numpy.ndarray) -> tuple[str, int, list[Extent]]:
        name, stream, *words = self.at.newest_call().decode().split()
        names = {str(array.ctypes.data): which for which, array in arrays.items()}
        extents = [(names.get(words[i], "elsewhere"), *map(int, words[i + 1:i + 4]), words[i + 4])
                   for i in range(0, len(words), 5)]
        return name, int(stream), extents               # type: ignore[return-value]

    def numbers(self, seed: int | None = None, offset: int | None = None) -> list[float]:
        if seed is not None:
            self.ok("curandSetPseudoRandomGeneratorSeed", self.generator, c_ulonglong(seed))
        if offset is not None:
            self.ok("curandSetGeneratorOffset", self.generator, c_ulonglong(offset))
        out = numpy.zeros(16, "f4")
        self.ok("curandGenerateUniform", self.generator, pointer(out), c_size_t(16))
        assert self.newest(out=out) == ("curandGenerateUniform", STREAM, [("out", 64, 1, 64, "w")])
        return list(map(float, out))


def pointer(array: numpy.ndarray) -> c_void_p:
    return c_void_p(array.ctypes.data)
