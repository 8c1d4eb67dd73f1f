"""A library whose arrays describe themselves in C: `__dlpack_c_exchange_api__` with a table of ours."""
from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from capsules import CUDA, DELETER, Tensor, Versioned
from exchanges import ALLOCATE, ARRAY_OF, CURRENT_STREAM, MANAGED_OF, TENSOR_OF, Exchange, Library

from xlogmem import Buffer

_api = ctypes.pythonapi
_api.PyCapsule_New.restype = ctypes.py_object
_api.PyCapsule_New.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
_alive: list[Any] = []                      # tables live as long as the process


def capsule_of(table: Exchange, name: bytes = b"dlpack_exchange_api") -> Any:
    """A capsule of a table; it keeps the pointer to its name."""
    _alive.extend((table, name))
    return _api.PyCapsule_New(ctypes.addressof(table), name, None)


def kind_of_arrays(*, major: int = 1, name: bytes = b"dlpack_exchange_api", without: tuple[str, ...] = (),
                   failing: bool = False, raising: bool = False, methods: bool = True,
                   current: Callable[[int], int | None] | None = None) -> type:
    """A type of arrays: `tensor` of an array is what its exchange says, `calls` what was called.

    `failing`: the functions return -1; `raising`: they raise.  Without `methods` an array has nothing but the exchange.
    `current`: gives the handle of the stream on which the library works on a device (None: the function returns -1).
    """

    def stream_of(_: int, device_id: int, out: Any) -> int:
        assert current is not None
        handle = current(device_id)
        out[0] = handle
        return -1 if handle is None else 0

    def look(array: Any, out: Any) -> int:
        array.calls.append("tensor_of")
        if failing:
            return -1
        ctypes.memmove(out, ctypes.byref(array.tensor), ctypes.sizeof(Tensor))
        return 0

    def take(array: Any, out: Any) -> int:
        array.calls.append("managed_of")
        if failing:
            return -1

        def deleter(_: Any) -> None:
            array.calls.append("deleter")

        delete = DELETER(deleter)
        managed = Versioned(major=array.version, minor=3, deleter=ctypes.cast(delete, ctypes.c_void_p),
                            flags=array.flags, tensor=array.tensor)
        _alive.extend((delete, managed))
        out[0] = ctypes.addressof(managed)
        return 0

    functions: dict[str, Any] = {"managed_of": MANAGED_OF(take), "tensor_of": TENSOR_OF(look)}
    if raising:                                         # a callback of ctypes cannot: those of Buffer refuse the type
        table = Library(Buffer).table
        functions = {"managed_of": table.managed_of, "tensor_of": table.tensor_of}
    table = Exchange(major=major, minor=3, allocate=ALLOCATE(), array_of=ARRAY_OF(),
                     current_stream=CURRENT_STREAM(stream_of) if current is not None else CURRENT_STREAM(),
                     **{key: value for key, value in functions.items() if key not in without})
    _alive.append(functions)
    return type("Array", (_Array if methods else _Bare,), {"__dlpack_c_exchange_api__": capsule_of(table, name)})


class _Bare:
    version = 1
    flags = 0

    def __init__(self, ptr: int, shape: tuple[int, ...], *, strides: tuple[int, ...] | None = None,
                 dtype: tuple[int, int, int] = (0, 8, 1), device: tuple[int, int] = (CUDA, 0), offset: int = 0) -> None:
        self.calls: list[str] = []
        self.extents = (ctypes.c_int64 * max(1, len(shape)))(*shape)
        self.steps = (ctypes.c_int64 * max(1, len(shape)))(*strides) if strides is not None else None
        self.tensor = Tensor(data=ptr, device_type=device[0], device_id=device[1], ndim=len(shape), code=dtype[0],
                             bits=dtype[1], lanes=dtype[2], shape=self.extents, strides=self.steps,
                             byte_offset=offset)

    def __dlpack__(self, **_: Any) -> Any:
        self.calls.append("__dlpack__")
        raise BufferError("no capsule here")

    def __dlpack_device__(self) -> tuple[int, int]:
        self.calls.append("__dlpack_device__")
        return self.tensor.device_type, self.tensor.device_id


class _Array(_Bare):
    def data_ptr(self) -> int:
        self.calls.append("data_ptr")
        return self.tensor.data or 0

    def element_size(self) -> int:
        return self.tensor.bits // 8

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.extents[:self.tensor.ndim])

    def stride(self) -> tuple[int, ...]:
        if self.steps is not None:
            return tuple(self.steps[:self.tensor.ndim])
        steps, step = [], 1
        for extent in reversed(self.shape):
            steps.append(step)
            step *= extent
        return tuple(reversed(steps))
