"""DLPack and Arrow structs by hand: what a consumer sees of our capsules, and capsules that are wrong."""
from __future__ import annotations

import ctypes
import gc
from typing import Any

u8, u16, u32, u64, i32, i64 = (ctypes.c_uint8, ctypes.c_uint16, ctypes.c_uint32, ctypes.c_uint64, ctypes.c_int32,
                               ctypes.c_int64)
CUDA, CPU = 2, 1


class Tensor(ctypes.Structure):
    _fields_ = (("data", ctypes.c_void_p), ("device_type", i32), ("device_id", i32), ("ndim", i32), ("code", u8),
                ("bits", u8), ("lanes", u16), ("shape", ctypes.POINTER(i64)), ("strides", ctypes.POINTER(i64)),
                ("byte_offset", u64))


class Managed(ctypes.Structure):
    _fields_ = (("tensor", Tensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p))


class Versioned(ctypes.Structure):
    _fields_ = (("major", u32), ("minor", u32), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p),
                ("flags", u64), ("tensor", Tensor))


class ArrowArray(ctypes.Structure):
    _fields_ = (("length", i64), ("null_count", i64), ("offset", i64), ("n_buffers", i64), ("n_children", i64),
                ("buffers", ctypes.POINTER(ctypes.c_void_p)), ("children", ctypes.c_void_p),
                ("dictionary", ctypes.c_void_p), ("release", ctypes.c_void_p), ("private_data", ctypes.c_void_p))


class ArrowDeviceArray(ctypes.Structure):
    _fields_ = (("array", ArrowArray), ("device_id", i64), ("device_type", i32), ("sync_event", ctypes.c_void_p),
                ("reserved", i64 * 3))


_api = ctypes.pythonapi
_api.PyCapsule_New.restype = ctypes.py_object
_api.PyCapsule_New.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
_api.PyCapsule_GetPointer.restype = ctypes.c_void_p
_api.PyCapsule_GetPointer.argtypes = (ctypes.py_object, ctypes.c_char_p)
_api.PyCapsule_GetName.restype = ctypes.c_char_p
_api.PyCapsule_GetName.argtypes = (ctypes.py_object,)
_api.PyCapsule_SetName.argtypes = (ctypes.py_object, ctypes.c_char_p)
DELETER = ctypes.CFUNCTYPE(None, ctypes.c_void_p)

# A capsule keeps the pointer to its name: these live for ever.
_names: list[bytes] = [b"dltensor", b"dltensor_versioned", b"used_dltensor", b"used_dltensor_versioned"]
_alive: set[Producer] = set()                           # whose capsules may still be held


def name_of(capsule: Any) -> bytes:
    return _api.PyCapsule_GetName(capsule)


def look(capsule: Any) -> Managed | Versioned:
    """What is inside, still the capsule's."""
    name = name_of(capsule)
    kind = Versioned if b"versioned" in name else Managed
    return kind.from_address(_api.PyCapsule_GetPointer(capsule, name))


class Taken:
    """What a consumer has: the tensor, and the deleter that it calls once."""

    def __init__(self, capsule: Any) -> None:
        self.managed = look(capsule)
        self.address = ctypes.addressof(self.managed)
        _api.PyCapsule_SetName(capsule, _names[2 + ("major" in dict(type(self.managed)._fields_))])

    @property
    def tensor(self) -> Tensor:
        return self.managed.tensor

    def delete(self, library: type = ctypes.CFUNCTYPE) -> None:
        """`library`: ctypes.CFUNCTYPE releases the GIL around the call, ctypes.PYFUNCTYPE keeps it."""
        library(None, ctypes.c_void_p)(self.managed.deleter)(self.address)


class Producer:
    """An array of another library, with a capsule for `from_dlpack`: `fields` are those of the tensor."""

    def __init__(self, ptr: int, shape: tuple[int, ...] | None = (16,), strides: tuple[int, ...] | None = None, *,
                 version: tuple[int, int] | None = None, flags: int = 0, name: bytes | None = None,
                 **fields: int) -> None:
        self.deleted = 0
        self.requests: list[dict[str, Any]] = []
        self._deleter = DELETER(self._delete)
        self.versioned = version is not None
        self.managed = Versioned() if version else Managed()
        if version:
            self.managed.major, self.managed.minor = version
            self.managed.flags = flags
        self.managed.deleter = ctypes.cast(self._deleter, ctypes.c_void_p).value
        tensor = self.managed.tensor
        tensor.data, tensor.device_type, tensor.device_id = ptr, CUDA, 0
        tensor.code, tensor.bits, tensor.lanes = 1, 8, 1
        tensor.ndim = len(shape) if shape is not None else 1
        if shape is not None:
            tensor.shape = (i64 * max(1, len(shape)))(*shape)
        if strides is not None:
            tensor.strides = (i64 * max(1, len(strides)))(*strides)
        for field, value in fields.items():
            setattr(tensor, field, value)
        self.name = name or _names[self.versioned]

    def _delete(self, address: int) -> None:
        self.deleted += 1
        self.forget()

    def forget(self) -> None:
        """Its capsules are not read any more."""
        _alive.discard(self)

    def capsule(self) -> Any:
        _alive.add(self)                                # the capsule points into it
        if self.name not in _names:
            _names.append(self.name)
        self.name = _names[_names.index(self.name)]
        return _api.PyCapsule_New(ctypes.addressof(self.managed), self.name, None)

    def __dlpack_device__(self) -> tuple[int, int]:
        return CUDA, 0

    def __dlpack__(self, **options: Any) -> Any:
        self.requests.append(options)
        return self.capsule()


def arrow_array(capsule: Any) -> ArrowDeviceArray:
    return ArrowDeviceArray.from_address(_api.PyCapsule_GetPointer(capsule, b"arrow_device_array"))


def settle() -> None:
    """Let the interpreter's main thread collect what was released."""
    for _ in range(3):
        gc.collect()
