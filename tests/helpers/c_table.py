"""The C table by ctypes, which makes each call without the GIL."""
from __future__ import annotations

import contextlib
import ctypes

from which_driver import SIMULATED

from xlogmem import sim
from xlogmem._table import table

FAILED, OUT_OF_MEMORY, NOT_FOUND, FINDS_DEVICE, CUDA_POOL = 1, 2, 3, 1, 2         # as in xlogmem.h
STALE, CAPTURING, CONFLICT, LOST, INVALID = 4, 5, 6, 7, 8
READ, WRITE, READ_WRITE = 1, 2, 3
HOST = 2**64 - 2                                          # XLOGMEM_HOST, in place of a stream
REFUSE_CONFLICTS, HAND_BACK_WRITES, ANY_THREAD, KEEPS_STREAM = 1, 2, 4, 8
VOID, SIZE, U64, U32 = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint64, ctypes.c_uint32
ENVIRONMENT = {"XLOGMEM_SIMULATE": "1"} | sim.settings(quiet=True) if SIMULATED else {}
GET_POINTER = ctypes.pythonapi.PyCapsule_GetPointer
GET_POINTER.restype, GET_POINTER.argtypes = VOID, [ctypes.py_object, ctypes.c_char_p]
NEW_CAPSULE = ctypes.pythonapi.PyCapsule_New
NEW_CAPSULE.restype, NEW_CAPSULE.argtypes = ctypes.py_object, [VOID, ctypes.c_char_p, VOID]


class Error(ctypes.Structure):
    _fields_ = [("kind", ctypes.c_int32), ("text", ctypes.c_char * 256)]


class Access(ctypes.Structure):
    _fields_ = [("address", U64), ("generation", U64), ("slot", U32), ("access", U32)]


class Counters(ctypes.Structure):
    _fields_ = [(name, U64) for name in ("live_bytes", "live_blocks", "pending_bytes", "allocations", "frees", "uses",
                                         "waits", "records", "host_waits")]


def function(*arguments, kind=ctypes.CFUNCTYPE, result=ctypes.c_int):
    return kind(result, *arguments)


ERROR, ACCESS = ctypes.POINTER(Error), ctypes.POINTER(Access)


class Table(ctypes.Structure):
    _fields_ = [
        ("version", ctypes.c_uint32), ("size", ctypes.c_uint32),
        ("open", ctypes.PYFUNCTYPE(VOID, ctypes.py_object)), ("close", ctypes.CFUNCTYPE(None, VOID)),
        ("allocate", ctypes.CFUNCTYPE(ctypes.c_int, VOID, SIZE, VOID, ctypes.POINTER(VOID), ctypes.POINTER(Error))),
        ("allocate_sync", ctypes.CFUNCTYPE(ctypes.c_int, VOID, SIZE, ctypes.POINTER(VOID), ctypes.POINTER(Error))),
        ("deallocate", ctypes.CFUNCTYPE(None, VOID, VOID, VOID)),
        ("deallocate_sync", ctypes.CFUNCTYPE(None, VOID, VOID)),
        ("record_use", ctypes.CFUNCTYPE(ctypes.c_int, VOID, VOID, VOID, ctypes.POINTER(Error))),
        ("runtime_for", function(ctypes.c_int, kind=ctypes.PYFUNCTYPE, result=VOID)),
        ("prepare", function(VOID, VOID, ACCESS, SIZE, U32, ctypes.POINTER(VOID), ERROR)),
        ("finish", function(VOID, VOID, ERROR)),
        ("cancel", function(VOID, VOID, result=None)),
        ("wait", function(VOID, VOID, ACCESS, ERROR)),
        ("find", function(VOID, VOID, ACCESS, ctypes.POINTER(U64), ctypes.POINTER(SIZE), ERROR)),
        ("identify", function(VOID, ctypes.py_object, ACCESS, kind=ctypes.PYFUNCTYPE)),
        ("ready", function(VOID, ACCESS, ctypes.POINTER(ctypes.c_int), ERROR)),
        ("synchronize", function(VOID, ACCESS, ERROR)),
        ("hold_stream", function(VOID, VOID, ERROR)),
        ("release_stream", function(VOID, VOID, ERROR)),
        ("allocate_many", function(VOID, SIZE, ctypes.POINTER(SIZE), VOID, ctypes.POINTER(VOID), ERROR)),
        ("deallocate_many", function(VOID, SIZE, ctypes.POINTER(VOID), VOID, result=None)),
        ("counters", function(VOID, ctypes.POINTER(Counters), SIZE, result=None)),
        ("begin_capture", function(VOID, VOID, U32, ACCESS, SIZE, ctypes.POINTER(VOID), ERROR)),
        ("fork_capture", function(VOID, VOID, VOID, ERROR)),
        ("end_capture", function(VOID, VOID, ctypes.POINTER(VOID), ERROR)),
        ("open_graph", function(VOID, ctypes.py_object, kind=ctypes.PYFUNCTYPE, result=VOID)),
        ("prepare_graph", function(VOID, VOID, VOID, U32, ctypes.POINTER(VOID), ERROR)),
        ("launch_graph", function(VOID, VOID, VOID, ERROR)),
        ("close_graph", function(VOID, VOID, result=None)),
        ("graph_handle", function(VOID, VOID, result=VOID)),
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

    def prepare(self, stream: int, *, read=(), write=(), read_write=(), flags: int = 0) -> int:
        """Prepare a use of addresses and accesses.  Returns the use, 0 if it names no memory."""
        accesses = [access_to(what, kind) for kind, things in ((READ, read), (WRITE, write), (READ_WRITE, read_write))
                    for what in things]
        use, error = VOID(), Error()
        if functions.prepare(self.runtime, stream, (Access * len(accesses))(*accesses), len(accesses), flags,
                             ctypes.byref(use), ctypes.byref(error)):
            raise Refused(error.kind, error.text.decode())
        return use.value or 0

    def finish(self, use: int) -> None:
        self.call("finish", use)

    def cancel(self, use: int) -> None:
        functions.cancel(self.runtime, use)

    @contextlib.contextmanager
    def use(self, stream: int, **named):
        use = self.prepare(stream, **named)
        try:
            yield use
        finally:
            self.finish(use)

    def wait(self, stream: int, what, kind: int = READ) -> None:
        self.call("wait", stream, ctypes.byref(access_to(what, kind)))

    def find(self, ptr: int) -> tuple[Access, int, int]:
        access, base, nbytes = Access(), U64(), SIZE()
        self.call("find", ptr, ctypes.byref(access), ctypes.byref(base), ctypes.byref(nbytes))
        return access, base.value, nbytes.value

    def identify(self, what) -> Access:
        access = Access()
        functions.identify(self.runtime, what, ctypes.byref(access))
        return access

    def ready(self, what, kind: int = 0) -> bool:
        done = ctypes.c_int(7)
        self.call("ready", ctypes.byref(access_to(what, kind)), ctypes.byref(done))
        return {0: False, 1: True}[done.value]

    def synchronize(self, what, kind: int = 0) -> None:
        self.call("synchronize", ctypes.byref(access_to(what, kind)))

    def hold_stream(self, stream: int) -> None:
        self.call("hold_stream", stream)

    def release_stream(self, stream: int) -> None:
        self.call("release_stream", stream)

    def counters(self) -> Counters:
        counters = Counters()
        functions.counters(self.runtime, ctypes.byref(counters), ctypes.sizeof(counters))
        return counters

    def call(self, name: str, *arguments) -> None:
        error = Error()
        if getattr(functions, name)(self.runtime, *arguments, ctypes.byref(error)):
            raise Refused(error.kind, error.text.decode())

    def close(self) -> None:
        functions.close(self.runtime)


def access_to(what, kind: int) -> Access:
    """An access to an address, or to what `find` or `identify` has filled in."""
    if isinstance(what, Access):
        return Access(what.address, what.generation, what.slot, kind)
    return Access(what, 0, 0, kind)


class Refused(Exception):
    def __init__(self, kind: int, text: str) -> None:
        super().__init__(kind, text)
        self.kind = kind

    def __str__(self) -> str:
        return self.args[1]
