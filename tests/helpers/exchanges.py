"""DLPack's exchange between functions in C, as a library that is called with arrays uses it."""
from __future__ import annotations

import ctypes
from typing import Any

from capsules import CUDA, Tensor, Versioned

_api = ctypes.pythonapi
_api.PyCapsule_GetPointer.restype = ctypes.c_void_p
_api.PyCapsule_GetPointer.argtypes = (ctypes.py_object, ctypes.c_char_p)
POINTER = ctypes.POINTER(ctypes.c_void_p)
SET_ERROR = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p)
ALLOCATE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(Tensor), POINTER, ctypes.c_void_p, SET_ERROR)
MANAGED_OF = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, POINTER)
ARRAY_OF = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, POINTER)
TENSOR_OF = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(Tensor))
CURRENT_STREAM = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_int32, ctypes.c_int32, POINTER)


class Exchange(ctypes.Structure):
    """The table, as the standard has it."""

    _fields_ = (("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("older", ctypes.c_void_p),
                ("allocate", ALLOCATE), ("managed_of", MANAGED_OF), ("array_of", ARRAY_OF), ("tensor_of", TENSOR_OF),
                ("current_stream", CURRENT_STREAM))


class Exported:
    """A tensor with its deleter, which its owner calls once."""

    def __init__(self, address: int) -> None:
        self.address = address
        self.managed = Versioned.from_address(address)

    @property
    def tensor(self) -> Tensor:
        return self.managed.tensor

    def delete(self) -> None:
        ctypes.CFUNCTYPE(None, ctypes.c_void_p)(self.managed.deleter)(self.address)


class Library:
    """A library that is called with arrays of one type."""

    def __init__(self, kind: type) -> None:
        capsule = kind.__dlpack_c_exchange_api__        # type: ignore[attr-defined]
        self.table = Exchange.from_address(_api.PyCapsule_GetPointer(capsule, b"dlpack_exchange_api"))

    def take(self, array: Any) -> Exported:
        """Export an array; what the producer raises is raised."""
        out = ctypes.c_void_p()
        assert self.table.managed_of(array, ctypes.byref(out)) == 0
        assert out.value is not None
        return Exported(out.value)

    def look(self, array: Any) -> Tensor:
        """Describe an array for the time of a call."""
        tensor = Tensor()
        assert self.table.tensor_of(array, ctypes.byref(tensor)) == 0
        return tensor

    def stream(self, device_id: int = 0, device_type: int = CUDA) -> int:
        """The stream to work on."""
        out = ctypes.c_void_p()
        assert self.table.current_stream(device_type, device_id, ctypes.byref(out)) == 0
        return out.value or 0

    def give(self, exported: Exported) -> Any:
        """Make an array of a tensor.  After an exception the tensor is still the library's."""
        out = ctypes.c_void_p()
        assert self.table.array_of(exported.address, ctypes.byref(out)) == 0
        array = ctypes.cast(out, ctypes.py_object).value
        ctypes.pythonapi.Py_DecRef(ctypes.py_object(array))
        return array

    def allocate(self, shape: tuple[int, ...], code: int = 2, bits: int = 32, *, lanes: int = 1,
                 device: tuple[int, int] = (CUDA, 0)) -> Exported:
        """Allocate a result, without the GIL.  RuntimeError: the producer's text, behind the kind of its error."""
        errors: list[str] = []

        @SET_ERROR
        def fail(_: Any, kind: bytes, text: bytes) -> None:
            errors.append(f"{kind.decode()}: {text.decode()}")

        extents = (ctypes.c_int64 * max(1, len(shape)))(*shape)
        prototype = Tensor(device_type=device[0], device_id=device[1], ndim=len(shape), code=code, bits=bits,
                           lanes=lanes, shape=extents)
        out = ctypes.c_void_p()
        if self.table.allocate(ctypes.byref(prototype), ctypes.byref(out), None, fail):
            assert len(errors) == 1
            raise RuntimeError(errors[0])
        assert not errors
        assert out.value is not None
        return Exported(out.value)
