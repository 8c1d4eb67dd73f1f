"""Kernels as the check sees them without a GPU: declared by the program, and run in its stead."""
from __future__ import annotations

import ctypes
import sys
import traceback
from collections.abc import Callable, Iterable

from xlogmem import sim
from xlogmem._base.units import counted

__all__ = ["Launch", "declare"]


class _Shape(ctypes.Structure):
    _fields_ = [("grid", ctypes.c_uint * 3), ("block", ctypes.c_uint * 3)]


class _Parameter(ctypes.Structure):
    _fields_ = [("offset", ctypes.c_uint32), ("size", ctypes.c_uint32)]


class _Launch(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("shape", _Shape), ("count", ctypes.c_uint32),
                ("parameters", ctypes.POINTER(_Parameter)), ("space", ctypes.c_void_p), ("bytes", ctypes.c_uint64)]


_Run = ctypes.CFUNCTYPE(None, ctypes.POINTER(_Launch))
_functions: list[object] = []                           # the driver may call them as long as the process lives


class Launch:
    """One launch of a kernel, for the function that is run in its place.

    `name`; `grid` and `block` have three extents each; `parameters` the bytes of each parameter.
    """

    def __init__(self, record: _Launch) -> None:
        self.name: str = record.name.decode()
        self.grid: tuple[int, ...] = tuple(record.shape.grid)
        self.block: tuple[int, ...] = tuple(record.shape.block)
        space = ctypes.string_at(record.space, record.bytes) if record.bytes else b""
        places = [record.parameters[i] for i in range(record.count)]
        self.parameters: list[bytes] = [space[place.offset:place.offset + place.size] for place in places]

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.name}, grid={self.grid}, block={self.block}, " \
               f"{counted(len(self.parameters), 'parameter')}>"

    def value(self, index: int, offset: int = 0, size: int | None = None) -> int:
        """Return a parameter as a number, or so many bytes of the parameter from `offset` on."""
        return int.from_bytes(self.parameters[index][offset:None if size is None else offset + size], "little")

    def view(self, index: int, offset: int = 0) -> memoryview:
        """Return the memory that a parameter points to, up to the end of its allocation: bytes, which may be cast, read
        and written (``numpy.frombuffer(launch.view(0), numpy.float32)``).

        Raises
        ------
        ValueError
            The parameter points to no device memory.
        """
        return sim.simulator().view(self.value(index, offset, 8))


def declare(pattern: str, read: Iterable[int], write: Iterable[int], run: Callable[[Launch], object] | None) -> None:
    """See `xlogmem.check.kernel`."""
    reads, writes = _places("read", read), _places("write", write)
    if not sim.installed():
        return                                          # there is no check, or one on a GPU, which runs the kernel
    letters = {(True, False): "r", (False, True): "w", (True, True): "b", (False, False): "-"}
    roles = "".join(letters[i in reads, i in writes] for i in range(max(reads | writes, default=-1) + 1))
    address = None
    if run is not None:
        function = _Run(_guarded(run))
        _functions.append(function)
        address = ctypes.cast(function, ctypes.c_void_p).value
    sim.simulator().declare_kernel(pattern, roles, address)


def _places(name: str, indices: Iterable[int]) -> set[int]:
    found = set()
    for index in indices:
        if not isinstance(index, int) or index < 0:
            raise (ValueError if isinstance(index, int) else TypeError)(
                f"{name} must be places among the kernel's parameters, which count from 0, as in {name}=[0, 1], got "
                f"{index!r}")
        found.add(index)
    return found


def _guarded(run: Callable[[Launch], object]) -> Callable[[object], None]:
    """Wrap a function so that its exceptions are printed, as those of a thread: none can pass through the driver."""
    def call(record: object) -> None:
        try:
            run(Launch(record.contents))  # type: ignore[attr-defined]
        except Exception:
            print("xlogmem check: the function that runs in place of a kernel failed:", file=sys.stderr)
            traceback.print_exc()

    return call
