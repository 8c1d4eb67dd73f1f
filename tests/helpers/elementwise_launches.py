"""Launches of CuPy's element-wise kernels, and the bytes that they touch as NumPy says."""
from __future__ import annotations

import random
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy

__all__ = ["BASE", "Launch", "launch_of", "random_launch", "wrong_launches"]

Parts = list[tuple[int, ...]]                           # begin, end, pitch and width of rows

BASE = 1 << 40
TYPES = ["bool", "int8", "uint16", "float16", "float32", "int64", "float64", "complex64", "complex128"]


@dataclass(frozen=True)
class Launch:
    """The output of a copy: a view of memory at BASE."""

    view: numpy.ndarray
    origin: int                                         # the address of the view's memory in this process
    name: str
    parameters: tuple[tuple[int, int], ...]

    @property
    def line(self) -> str:
        view = self.view
        address = view.__array_interface__["data"][0] - self.origin + BASE
        array = struct.pack(f"<qq{view.ndim}q{view.ndim}q", address, view.size, *view.shape, *view.strides)
        places = " ".join(f"{offset}+{size}" for offset, size in self.parameters)
        return f"{self.name} 0 {array.hex()} {places}"

    @property
    def touched(self) -> set[int]:
        """Addresses of all bytes of all elements."""
        first = self.view.__array_interface__["data"][0] - self.origin + BASE
        offsets = numpy.zeros(self.view.shape, dtype=numpy.int64)
        for axis, (length, stride) in enumerate(zip(self.view.shape, self.view.strides, strict=True)):
            steps = [1] * self.view.ndim
            steps[axis] = length
            offsets = offsets + (numpy.arange(length) * stride).reshape(steps)
        item = self.view.dtype.itemsize
        return {first + int(offset) + byte for offset in offsets.ravel() for byte in range(item)}


def launch_of(view: numpy.ndarray, origin: int, name: str = "") -> Launch:
    ndim, kind = view.ndim, view.dtype.name
    return Launch(view, origin, name or f"cupy_copy__{kind}_{kind}",
                  ((0, 16 + 16 * ndim), (16 + 16 * ndim, 16 + 16 * ndim), (32 + 32 * ndim, 8 + 16 * ndim)))


def random_launch(seed: int) -> Launch:
    chance = random.Random(seed)
    dtype = numpy.dtype(chance.choice(TYPES))
    shape = [chance.randint(1, 7) for _ in range(chance.randint(1, 4))]
    whole = numpy.zeros(shape, dtype)
    view = whole
    for _ in range(chance.randint(0, 2)):
        view = view[tuple(slice(chance.randint(0, length - 1), None, chance.choice([1, 1, 1, 2, 3]))
                          for length in view.shape)]
        view = view.transpose(chance.sample(range(view.ndim), view.ndim)) if chance.random() < 0.3 else view
        view = view[::-1] if chance.random() < 0.3 else view
    if chance.random() < 0.2:
        view = numpy.broadcast_to(view, (chance.randint(2, 4), *view.shape))
    return launch_of(view, whole.__array_interface__["data"][0])


def bytes_of(parts: Parts) -> list[int]:
    return [at for begin, end, pitch, width in parts for row in range(begin, end, pitch or end - begin)
            for at in range(row, row + (width or end - begin))]


def wrong_launches(launches: Iterable[Launch], all_parts: Iterable[Parts | None]) -> Iterator[Launch]:
    """Launches whose parts are not their arrays' bytes, each once; without parts only where there would be too many."""
    for launch, parts in zip(launches, all_parts, strict=True):
        found = bytes_of(parts or [])
        rows = sum(length > 1 for length in launch.view.shape)
        if not (sorted(found) == sorted(launch.touched) if parts else rows >= 3):
            yield launch
