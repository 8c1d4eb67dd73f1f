"""Queries that a library makes for its own purposes, without a GPU: the program may have learned from them."""
from __future__ import annotations

import subprocess

import pytest
from checked_programs import DRIVER
from engine_traces import compiler
from places import HELPERS

pytestmark = [pytest.mark.simulator, pytest.mark.skipif(compiler() is None, reason="no C++ compiler here")]
PROGRAM = DRIVER + """
from xlogmem.check.neighbours import pieces

V, I = ctypes.c_void_p, ctypes.c_int
library, *callers = [ctypes.CDLL(os.path.abspath(name)) for name in sys.argv[3:]]

def query(entry, handle):
    call, handle = ctypes.cast(getattr(ctypes.CDLL("libcuda.so.1"), entry), V), V(int(handle))
    if callers:
        return callers[0].query_by(ctypes.cast(library.query, V), call, handle)
    return library.query(call, handle)

a, b = (ok(cuda.cuStreamCreate(1)) for _ in range(2))
p = ok(cuda.cuMemAlloc(4096))
event = ok(cuda.cuEventCreate(0))
ok(cuda.cuMemsetD8Async(p, 1, 4096, a))
ok(cuda.cuEventRecord(event, a))
pieces.hooks().queries_for_itself(int(sys.argv[2]))
queried = {"cuEventQuery": event, "cuStreamQuery": a}.get(sys.argv[1])
while queried and query(sys.argv[1], queried):
    pass
pieces.hooks().queries_for_itself(0)
ok(cuda.cuMemsetD8Async(p, 2, 4096, b))
ok(cuda.cuCtxSynchronize())
"""
ENTRIES = pytest.mark.parametrize("entry", ["cuEventQuery", "cuStreamQuery"])
CERTAIN, POSSIBLE = [("write/write", True)], [("write/write", False)]


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    """The path of a library of this name, which queries."""
    folder = tmp_path_factory.mktemp("libraries")

    def build(name):
        made = folder / name
        if not made.exists():
            subprocess.run([compiler() or "g++", "-shared", "-fPIC", "-O0", "-x", "c", HELPERS / "library_stand_in.c",
                            "-o", made], check=True)
        return str(made)

    return build


@ENTRIES
@pytest.mark.parametrize("names", [("libnccl.so.2",), ("libtorch_cuda.so",), ("libtorch_cuda.so", "libtorch_cpu.so"),
                                   ("xla_cuda_plugin.so",), ("libjax_common.so",)], ids=" by ".join)
def test_a_librarys_own_query_may_say(checked, library, entry, names):
    assert checked(PROGRAM, entry, "0", *map(library, names)).pairs == POSSIBLE


@ENTRIES
@pytest.mark.parametrize("names", [("libtorch_python.so",), ("libtorch_cuda.so", "libtorch_python.so"),
                                   ("libc10_cuda.so",), ("libextension.so",)], ids=" by ".join)
def test_a_poll_for_the_program_is_a_wait(checked, library, entry, names):
    assert checked(PROGRAM, entry, "0", *map(library, names)).pairs == []


@ENTRIES
def test_what_the_thread_says_of_its_queries(checked, library, entry):
    """PyTorch's pool of device memory and CuPy's buffers are known so."""
    assert checked(PROGRAM, entry, "1", library("libextension.so")).pairs == CERTAIN
    assert checked(PROGRAM, entry, "2", library("libextension.so")).pairs == POSSIBLE


def test_without_a_query_it_is_certain(checked, library):
    assert checked(PROGRAM, "none", "0", library("libnccl.so.2")).pairs == CERTAIN
