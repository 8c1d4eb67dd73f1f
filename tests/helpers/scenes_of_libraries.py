"""Scenes of streams that a library has made for itself: what it does there is the library's to order.  And of its own
queries, of which the program may learn nothing.

A library with the right name makes the call, so that it is on the native stack.
"""
from __future__ import annotations

import ctypes
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

from fabricated import A, B, C, Data, Program, X, numbers, out, parameters_of, scene, u32

D = 0x8000                                              # a stream of the library's


@cache
def stand_in(name: str) -> ctypes.CDLL:
    compiler = shutil.which("gcc") or shutil.which("cc") or "g++"
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder, name)
        subprocess.run([compiler, "-shared", "-fPIC", "-O0", "-x", "c",
                        Path(__file__).with_name("library_stand_in.c"), "-o", made], check=True)
        loaded = ctypes.CDLL(str(made))
    loaded.pass_on.argtypes = [ctypes.c_void_p, u32, ctypes.c_void_p]
    loaded.pass_by.argtypes = [ctypes.c_void_p, *loaded.pass_on.argtypes]
    return loaded


def query_by(p: Program, entry: str, handle: int, library: str, caller: str | None = None) -> None:
    """The query of an event or a stream, by a library that another one has called."""
    field = "hEvent" if entry == "cuEventQuery" else "hStream"
    parameters, status = parameters_of(entry)(**{field: handle}), ctypes.c_int(0)
    call = ctypes.cast(p.library.xcheck_call, ctypes.c_void_p)
    for after in (0, 1):
        data = Data(after, entry.encode(), ctypes.addressof(parameters), ctypes.addressof(status), b"", 1, 1, None, 0)
        if caller:
            other = ctypes.cast(stand_in(library).pass_on, ctypes.c_void_p)
            stand_in(caller).pass_by(other, call, numbers()[entry], ctypes.byref(data))
        else:
            stand_in(library).pass_on(call, numbers()[entry], ctypes.byref(data))


def create_by(p: Program, library: str, stream: int) -> None:
    """The library makes a stream that does not wait for the default one."""
    parameters = parameters_of("cuStreamCreate")(phStream=ctypes.addressof(out(stream)), Flags=1)
    handle = out(stream)
    parameters.phStream = ctypes.addressof(handle)
    status = ctypes.c_int(0)
    call = ctypes.cast(p.library.xcheck_call, ctypes.c_void_p)
    for after in (0, 1):
        data = Data(after, b"cuStreamCreate", ctypes.addressof(parameters), ctypes.addressof(status), b"", 1, 1, None,
                    0)
        stand_in(library).pass_on(call, numbers()["cuStreamCreate"], ctypes.byref(data))


@scene("possible write/read")
def a_library_fills_on_a_stream_of_its_own(p: Program, repaired: bool) -> None:
    create_by(p, "libcudnn_graph.so.9", D)
    p.fill(X, D)
    if repaired:
        p.order(D, A)
    p.read(X, A)


@scene("possible read/write")
def a_library_s_stream_comes_second(p: Program, repaired: bool) -> None:
    create_by(p, "libcublasLt.so.13", D)
    p.read(X, A)
    if repaired:
        p.order(A, D)
    p.fill(X, D)


@scene("certain write/read")
def a_framework_makes_a_stream_for_the_program(p: Program, repaired: bool) -> None:
    create_by(p, "libc10_cuda.so", D)
    p.fill(X, D)
    if repaired:
        p.order(D, A)
    p.read(X, A)


@scene("certain write/read")
def a_stream_of_the_program_s_own(p: Program, repaired: bool) -> None:
    p.fill(X, B)
    if repaired:
        p.order(B, C)
    p.read(X, C)


# A library's own, with the library that has called it.
OWN_QUERIES = [("libnccl.so.2", None), ("libtorch_cuda.so", None), ("libtorch_cuda.so", "libtorch_cpu.so"),
               ("xla_cuda_plugin.so", None), ("libjax_common.so", None)]
# torch.cuda.Event, is_completed of a torch.distributed.Work, torch.cuda.Stream, an extension of the program's
POLLS = [("libtorch_python.so", None), ("libtorch_cuda.so", "libtorch_python.so"), ("libc10_cuda.so", None),
         ("libextension.so", None)]

for entry in ("cuEventQuery", "cuStreamQuery", "cuStreamQuery_ptsz"):
    for names in OWN_QUERIES:
        def a_library_queries(p: Program, repaired: bool, entry: str = entry,
                              names: tuple[str, str | None] = names) -> None:
            """... and nothing is known of what it says to the program."""
            p.fill(X, A)
            handle = p.record(A) if entry == "cuEventQuery" else A
            query_by(p, entry, handle, *names)
            if repaired:
                query_by(p, entry, handle, "libextension.so")
            p.fill(X, B)

        scene("possible write/write", name=f"{entry} of {', called by '.join(filter(None, names))}")(a_library_queries)

    for names in POLLS:
        def a_library_polls(p: Program, repaired: bool, entry: str = entry,
                            names: tuple[str, str | None] = names) -> None:
            """... for the program."""
            p.fill(X, A)
            handle = p.record(A) if entry == "cuEventQuery" else A
            if repaired:
                query_by(p, entry, handle, *names)
            p.fill(X, B)

        scene("certain write/write", name=f"{entry} of {', called by '.join(filter(None, names))}")(a_library_polls)


@scene("certain write/write")
def a_librarys_query_says_nothing_of_later_work(p: Program, repaired: bool) -> None:
    query_by(p, "cuStreamQuery", A, "libnccl.so.2")
    p.fill(X, A)
    if repaired:
        p.order(A, B)
    p.fill(X, B)


@scene("certain write/write")
def a_wait_by_a_library_is_a_wait(p: Program, repaired: bool) -> None:
    p.fill(X, A)
    event = p.record(A)
    if repaired:
        parameters, status = parameters_of("cuEventSynchronize")(hEvent=event), ctypes.c_int(0)
        for after in (0, 1):
            data = Data(after, b"cuEventSynchronize", ctypes.addressof(parameters), ctypes.addressof(status), b"", 1, 1,
                        None, 0)
            stand_in("libnccl.so.2").pass_on(ctypes.cast(p.library.xcheck_call, ctypes.c_void_p),
                                             numbers()["cuEventSynchronize"], ctypes.byref(data))
    p.fill(X, B)
