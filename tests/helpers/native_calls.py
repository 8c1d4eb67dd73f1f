"""xlogmem.hpp, called from Python: `native_calls.cpp` by ctypes, so that calls are made without the GIL.

Errors of C++ are raised as `Thrown`, with the name of the class.
"""
from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import subprocess
import sysconfig
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path

from fabricated import folder_of
from places import HELPERS

import xlogmem
from xlogmem._table import table

# What RMM's CMake has, and more.
WARNINGS = ["-Wall", "-Wextra", "-Wpedantic", "-Wshadow", "-Wconversion", "-Wsign-conversion", "-Werror",
            "-Wno-unknown-pragmas"]
VOID, SIZE, TEXT = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p
WORK = ctypes.CFUNCTYPE(ctypes.c_int)
FORMS = {"pointers": 0, "addresses": 1, "spans": 2, "blocks": 3, "described": 4, "columns": 5, "many": 6, "flags": 7}
CCCL = [folder_of("rmm/resource_ref.hpp", "librmm-cu12", "librmm-cu13"),
        folder_of("cuda/memory_resource", "librmm-cu12", "librmm-cu13"),
        folder_of("cuda_runtime_api.h", "nvidia-cuda-runtime-cu12", "nvidia-cuda-runtime"),
        folder_of("crt/host_defines.h", "nvidia-cuda-nvcc-cu12", "nvidia-cuda-crt"),
        folder_of("rapids_logger/logger.hpp", "rapids-logger")]
SYSTEM = [f"-isystem{folder}" for folder in [*CCCL, sysconfig.get_path("include")]]
WITH_GIL = ("import_table", "open_runtime", "runtime_of_device", "identify_block", "open_graph")
RELAXED, OF_OTHERS = 2, 3


class Thrown(Exception):
    """An exception of C++: the name of its class, and its text."""

    def __init__(self, said: str) -> None:
        self.name, _, text = said.partition(": ")
        super().__init__(text)


def compiler() -> str:
    found = shutil.which("g++") or shutil.which("c++")
    assert found, "a C++ compiler is needed"
    return found


def compile_module(source: Path, target: Path, *options: str, includes: Iterable[str] = ()) -> None:
    """Compile a shared library, as an extension of Python is made."""
    folders = [xlogmem.get_include(), sysconfig.get_path("include"), *includes]
    subprocess.run([compiler(), "-std=c++17", "-O1", "-shared", "-fPIC", "-fvisibility=hidden", *options,
                    *(f"-I{folder}" for folder in folders[:1]), *(f"-isystem{folder}" for folder in folders[1:]),
                    str(source), "-o", str(target)], check=True)


@cache
def build(folder: Path, *options: str) -> Library:
    path = folder / "native_calls.so"
    compile_module(HELPERS / "native_calls.cpp", path, "-fvisibility=default", *options, *WARNINGS)
    return Library(path)


def build_resource(folder: Path, *options: str) -> Path:
    """Compile a program with `xlogmem_mr.hpp`, which needs CCCL."""
    path = folder / "resource.so"
    # Without optimisation CCCL of RMM 26.06 needs libcudart, for a text that nothing calls.
    subprocess.run([compiler(), "-std=c++20", "-O1", "-shared", "-fPIC", *options, f"-I{xlogmem.get_include()}",
                    *SYSTEM, str(HELPERS / "native_resource.cpp"), "-o", str(path)], check=True)
    return path


def planted_programs() -> Path | None:
    """The folder with the programs for a run with a planted defect, which are compiled."""
    named = os.environ.get("PLANTED_PROGRAMS")
    return Path(named) if named else None


class Library:
    """The functions, which raise `Thrown`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.without_gil, self.with_gil = ctypes.CDLL(str(path)), ctypes.PyDLL(str(path))
        for name in ("move_runtime", "move_launch", "move_graph", "empty_graph", "data_of"):
            getattr(self.without_gil, name).restype = VOID

    def call(self, name: str, *arguments: object) -> None:
        function = getattr(self.with_gil if name in WITH_GIL else self.without_gil, name)
        function.restype = TEXT
        said = function(*(VOID(one) if isinstance(one, int) else one for one in arguments))
        if said is not None:
            raise Thrown(said.decode())

    def make(self, name: str, *arguments: object) -> int:
        """Call what makes an object, and return its address."""
        made = VOID()
        self.call(name, *arguments, ctypes.byref(made))
        return made.value or 0

    def do(self, name: str, *addresses: int) -> int | None:
        """Call what throws nothing."""
        result: int | None = getattr(self.without_gil, name)(*map(VOID, addresses))
        return result

    def use_this_table(self, address: int) -> None:
        self.call("use_table", address)

    def import_table(self) -> None:
        self.call("import_table")


def own_table() -> int:
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = VOID, [ctypes.py_object, TEXT]
    found: int = pointer(table, b"xlogmem._table.table")
    return found


class Launch:
    """A launch on the heap."""

    def __init__(self, library: Library, address: int) -> None:
        self.library, self.address = library, address

    def commit(self) -> None:
        self.library.call("commit", self.address)

    def cancel(self) -> None:
        self.library.do("cancel", self.address)

    def move(self) -> Launch:
        moved = self.library.do("move_launch", self.address)
        assert moved is not None
        return Launch(self.library, moved)

    def assign(self, other: Launch) -> None:
        self.library.do("assign_launch", self.address, other.address)

    def delete(self) -> None:
        self.library.do("delete_launch", self.address)


class Block:
    """A block on the heap."""

    def __init__(self, runtime: NativeRuntime, address: int) -> None:
        self.runtime, self.address = runtime, address

    @property
    def data(self) -> int | None:
        return self.runtime.library.do("data_of", self.address)

    def ready(self, kind: int = 0) -> bool:
        """Before an access of this kind, which is left out where it is 0."""
        done = ctypes.c_int(7)
        self.runtime.library.call("is_ready", self.address, self.runtime.address, ctypes.c_int(kind),
                                  ctypes.byref(done))
        return {0: False, 1: True}[done.value]

    def synchronize(self, kind: int = 0) -> None:
        self.runtime.library.call("synchronize", self.address, self.runtime.address, ctypes.c_int(kind))

    def use(self, stream: int, flags: int = 0) -> None:
        """Open a launch that writes it, and cancel that."""
        self.runtime.library.call("launch_of_block", self.runtime.address, stream, self.address,
                                  ctypes.c_uint32(flags))

    def delete(self) -> None:
        self.runtime.library.do("delete_block", self.address)


class Graph:
    """A graph on the heap."""

    def __init__(self, library: Library, address: int) -> None:
        self.library, self.address = library, address

    def launch(self, stream: int) -> None:
        self.library.call("launch_graph", self.address, stream)

    def open(self, stream: int, flags: int = 0) -> Launch:
        """A launch that the caller makes itself."""
        return Launch(self.library, self.library.make("open_launch_of_graph", self.address, stream,
                                                      ctypes.c_uint32(flags)))

    def move(self) -> Graph:
        moved = self.library.do("move_graph", self.address)
        assert moved is not None
        return Graph(self.library, moved)

    def assign(self, other: Graph) -> None:
        self.library.do("assign_graph", self.address, other.address)

    def close(self) -> None:
        self.library.do("close_graph", self.address)

    @property
    def handle(self) -> int:
        return self.library.make("handle_of_graph", self.address)

    def delete(self) -> None:
        self.library.do("delete_graph", self.address)


class Capture:
    """A capture on the heap."""

    def __init__(self, library: Library, address: int) -> None:
        self.library, self.address = library, address

    def fork(self, stream: int) -> None:
        self.library.call("fork_capture", self.address, stream)

    def end(self) -> Graph:
        return Graph(self.library, self.library.make("end_capture", self.address))

    def finish(self) -> Graph:
        """End it, and delete it."""
        graph = self.end()
        self.delete()
        return graph

    def delete(self) -> None:
        self.library.do("delete_capture", self.address)


class NativeRuntime:
    """A runtime on the heap."""

    def __init__(self, library: Library, address: int) -> None:
        self.library, self.address = library, address

    @classmethod
    def of(cls, library: Library, runtime: object) -> NativeRuntime:
        return cls(library, library.make("open_runtime", ctypes.py_object(runtime)))

    def open(self, stream: int, *, read: Iterable[int] = (), write: Iterable[int] = (),
             read_write: Iterable[int] = (), flags: int = 0) -> Launch:
        named = [(ctypes.c_size_t * len(one))(*one) for one in map(list, (read, write, read_write))]
        counted = [argument for one in named for argument in (one, SIZE(len(one)))]
        return Launch(self.library, self.library.make("open_launch", self.address, stream, *counted,
                                                      ctypes.c_uint32(flags)))

    @contextlib.contextmanager
    def launch(self, stream: int, **named: object) -> Iterator[Launch]:
        """A launch that its destructor ends."""
        one = self.open(stream, **named)
        try:
            yield one
        finally:
            one.delete()

    def launch_around(self, form: str, stream: int, read: int, written: int, work: Callable[[], object]) -> None:
        """Call `work` inside a launch that names its memory in this form.  An exception of it is thrown there."""

        def inside() -> int:
            try:
                work()
                return 0
            except ArithmeticError:
                return 1

        self.library.call("launch_around", self.address, stream, ctypes.c_int(FORMS[form]), read, written,
                          WORK(inside))

    def access_on_host(self, memory: int, work: Callable[[], object]) -> None:
        """Call `work` inside an access by the host; then the host waits for the memory without an access."""
        self.library.call("access_on_host", self.address, memory, WORK(lambda: work() is not None))

    def allocate(self, nbytes: int, stream: int) -> int:
        return self.library.make("allocate", self.address, nbytes, stream)

    def free(self, memory: int, stream: int) -> None:
        self.library.call("deallocate", self.address, memory, stream)

    def allocate_many(self, sizes: list[int], stream: int) -> list[int]:
        """Addresses; 0 for no bytes."""
        made = (VOID * len(sizes))()
        self.library.call("allocate_many", self.address, SIZE(len(sizes)), (SIZE * len(sizes))(*sizes), stream, made)
        return [one or 0 for one in made]

    def free_many(self, memory: list[int], stream: int) -> None:
        self.library.call("deallocate_many", self.address, SIZE(len(memory)), (VOID * len(memory))(*memory), stream)

    def record_use(self, memory: int, stream: int) -> None:
        self.library.call("record_use", self.address, memory, stream)

    def wait(self, stream: int, memory: int, written: bool = False) -> None:
        self.library.call("wait_for", self.address, stream, memory, ctypes.c_int(written))

    @contextlib.contextmanager
    def held(self, stream: int) -> Iterator[None]:
        address = self.library.make("hold_stream", self.address, stream)
        yield
        self.library.do("delete_held_stream", address)

    def find(self, memory: int) -> Block:
        return Block(self, self.library.make("find_block", self.address, memory))

    def identify(self, thing: object) -> Block:
        return Block(self, self.library.make("identify_block", self.address, ctypes.py_object(thing)))

    def capture(self, stream: int, mode: int = RELAXED, read: int = 0, write: int = 0) -> Capture:
        return Capture(self.library, self.library.make("begin_capture", self.address, stream, ctypes.c_uint32(mode),
                                                       read, write))

    def graph(self, graph: object) -> Graph:
        return Graph(self.library, self.library.make("open_graph", self.address, ctypes.py_object(graph)))

    def move(self) -> NativeRuntime:
        moved = self.library.do("move_runtime", self.address)
        assert moved is not None
        return NativeRuntime(self.library, moved)

    def close(self) -> None:
        self.library.do("close_runtime", self.address)

    def delete(self) -> None:
        self.library.do("delete_runtime", self.address)
