"""Scenes of streams that a library has made for itself: what it does there is the library's to order.

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
    return loaded


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
