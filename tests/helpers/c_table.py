"""The C table by ctypes, which makes each call without the GIL."""
from __future__ import annotations

import ctypes

from which_driver import SIMULATED

from xlogmem import sim
from xlogmem._table import table

FAILED, OUT_OF_MEMORY, NOT_FOUND, FINDS_DEVICE, CUDA_POOL = 1, 2, 3, 1, 2         # as in xlogmem.h
VOID, SIZE, U64 = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint64
ENVIRONMENT = {"XLOGMEM_SIMULATE": "1"} | sim.settings(quiet=True) if SIMULATED else {}
GET_POINTER = ctypes.pythonapi.PyCapsule_GetPointer
GET_POINTER.restype, GET_POINTER.argtypes = VOID, [ctypes.py_object, ctypes.c_char_p]
NEW_CAPSULE = ctypes.pythonapi.PyCapsule_New
NEW_CAPSULE.restype, NEW_CAPSULE.argtypes = ctypes.py_object, [VOID, ctypes.c_char_p, VOID]


class Error(ctypes.Structure):
    _fields_ = [("kind", ctypes.c_int32), ("text", ctypes.c_char * 256)]


class Table(ctypes.Structure):
    _fields_ = [
        ("version", ctypes.c_uint32), ("size", ctypes.c_uint32),
        ("open", ctypes.PYFUNCTYPE(VOID, ctypes.py_object)), ("close", ctypes.CFUNCTYPE(None, VOID)),
        ("allocate", ctypes.CFUNCTYPE(ctypes.c_int, VOID, SIZE, VOID, ctypes.POINTER(VOID), ctypes.POINTER(Error))),
        ("allocate_sync", ctypes.CFUNCTYPE(ctypes.c_int, VOID, SIZE, ctypes.POINTER(VOID), ctypes.POINTER(Error))),
        ("deallocate", ctypes.CFUNCTYPE(None, VOID, VOID, VOID)),
        ("deallocate_sync", ctypes.CFUNCTYPE(None, VOID, VOID)),
        ("record_use", ctypes.CFUNCTYPE(ctypes.c_int, VOID, VOID, VOID, ctypes.POINTER(Error))),
    ]


ALLOCATE = ctypes.CFUNCTYPE(ctypes.c_int, VOID, SIZE, VOID, ctypes.POINTER(U64), ctypes.POINTER(Error))
DEALLOCATE = ctypes.CFUNCTYPE(ctypes.c_int, VOID, U64, SIZE, VOID, ctypes.POINTER(Error))


class Upstream(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint32), ("size", ctypes.c_uint32), ("self", VOID), ("allocate", ALLOCATE),
                ("deallocate", DEALLOCATE), ("flags", U64)]


functions = Table.from_address(GET_POINTER(table, b"xlogmem._table.table"))


class Hold:
    """What a binding has of a runtime."""

    def __init__(self, runtime) -> None:
        self.runtime = functions.open(runtime)

    def allocate(self, nbytes: int, stream: int = 0) -> int:
        ptr, error = VOID(), Error()
        if functions.allocate(self.runtime, nbytes, stream, ctypes.byref(ptr), ctypes.byref(error)):
            raise Refused(error.kind, error.text.decode())
        return ptr.value

    def allocate_sync(self, nbytes: int) -> int:
        ptr, error = VOID(), Error()
        if functions.allocate_sync(self.runtime, nbytes, ctypes.byref(ptr), ctypes.byref(error)):
            raise Refused(error.kind, error.text.decode())
        return ptr.value

    def free(self, ptr: int, stream: int = 0) -> None:
        functions.deallocate(self.runtime, ptr, stream)

    def record_use(self, ptr: int, stream: int = 0) -> None:
        error = Error()
        if functions.record_use(self.runtime, ptr, stream, ctypes.byref(error)):
            raise Refused(error.kind, error.text.decode())

    def close(self) -> None:
        functions.close(self.runtime)


class Refused(Exception):
    def __init__(self, kind: int, text: str) -> None:
        super().__init__(kind, text)
        self.kind = kind
