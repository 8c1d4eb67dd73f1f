"""The pieces of PyTorch's pools as its library shows them, with a stand-in for the library; and PyTorch itself."""
from __future__ import annotations

import os
import subprocess
import sys

import pytest
from engine_traces import compiler
from places import HELPERS

from xlogmem import sim

pytestmark = pytest.mark.simulator
COMPILER = pytest.mark.skipif(compiler() is None, reason="no C++ compiler here")
LINKED = {
    "lazily": ["-Wl,-z,lazy"],
    "at-once-and-read-only": ["-Wl,-z,now", "-Wl,-z,relro"],
    "without-a-table-of-stubs": ["-fno-plt"],
}

BEGIN = """
import ctypes, os, sys, threading
from xlogmem import sim
from xlogmem.sim.kernels import check
from cuda.bindings import driver as cuda
sim.install()
check(cuda.cuInit(0))
check(cuda.cuCtxSetCurrent(check(cuda.cuDevicePrimaryCtxRetain(0))))
context = int(check(cuda.cuCtxGetCurrent()))
from xlogmem.check.neighbours import _torch_pool, pieces

V, U, I = ctypes.c_void_p, ctypes.c_uint64, ctypes.c_int
calls = []

class Hooks(ctypes.Structure):
    _fields_ = [("find_site", ctypes.CFUNCTYPE(None)),
                ("piece_allocated", ctypes.CFUNCTYPE(None, V, V, U, U, ctypes.c_char_p, I)),
                ("piece_freed", ctypes.CFUNCTYPE(None, V, V, U, I, I)),
                ("window_opened", V), ("window_closed", V),
                ("piece_recorded", ctypes.CFUNCTYPE(None, V, V, U)), ("replaces_pool", V),
                ("queries_for_itself", ctypes.CFUNCTYPE(None, I))]

def allocated(of, stream, address, nbytes, tag, kind):
    assert of == context
    calls.append(("allocated", stream or 0, address, nbytes, kind))

def freed(of, stream, address, end, guarded):
    calls.append(("freed", stream or 0, address, end))

def recorded(of, stream, address):
    calls.append(("recorded", stream, address))

field = dict(Hooks._fields_)
hooks = Hooks(find_site=field["find_site"](lambda: calls.append("site")),
              piece_allocated=field["piece_allocated"](allocated), piece_freed=field["piece_freed"](freed),
              piece_recorded=field["piece_recorded"](recorded),
              queries_for_itself=field["queries_for_itself"](lambda whose: calls.append(("queries", whose))))
others = ctypes.CDLL(os.path.join(sys.argv[1], "libothers.so"), mode=ctypes.RTLD_GLOBAL)
library = ctypes.CDLL(os.path.join(sys.argv[1], "libc10_cuda.so"))
for name in ("allocate", "allocate_on"):
    getattr(library, name).restype = V
    getattr(library, name).argtypes = [ctypes.c_size_t, V][:1 + (name == "allocate_on")]
for name in ("record_elsewhere", "deallocate", "set_stream"):
    getattr(library, name).argtypes = [V]
library.record.argtypes = [V, V]
CACHED, SOME, LATER, RETURNED = 2, 3, 2, 3

def taken():
    "What was called, after the place was found."
    found, calls[:] = calls[:], []
    assert not found or found[0] == "site", found
    return [one for one in found if one != "site"]

watches = _torch_pool.watch_pieces(ctypes.addressof(hooks))
"""


@pytest.fixture(scope="module")
def build(tmp_path_factory):
    """The stand-in, in a folder, linked in this way."""
    made = {}

    def build(*options):
        if options not in made:
            folder = tmp_path_factory.mktemp("torch")
            common = [compiler() or "g++", "-std=c++17", "-O1", "-shared", "-fPIC", "-pthread",
                      HELPERS / "torch_library.cpp"]
            subprocess.run([*common, "-DOTHERS", "-Wl,-soname,libothers.so", "-o", folder / "libothers.so"], check=True)
            subprocess.run([*common, *options, "-o", folder / "libc10_cuda.so", f"-L{folder}", "-lothers",
                            "-Wl,-rpath,$ORIGIN"], check=True)
            made[options] = folder
        return made[options]

    return build


@pytest.fixture
def play(build, clean_environment, tmp_path):
    def run(program, *options, **variables):
        path = os.pathsep.join(filter(None, [str(HELPERS), clean_environment.get("PYTHONPATH")]))
        done = subprocess.run([sys.executable, "-c", BEGIN + program, build(*(options or LINKED["lazily"]))],
                              capture_output=True, text=True, timeout=100, cwd=tmp_path,
                              env=clean_environment | {"PYTHONPATH": path} | sim.settings(quiet=True) | variables)
        assert done.returncode == 0, done.stderr

    return run


@COMPILER
@pytest.mark.parametrize("options", LINKED.values(), ids=LINKED)
def test_each_piece_is_reported_with_its_stream(play, options):
    play("""
assert watches
library.set_stream(0x1000)
x = library.allocate(512)
assert taken() == [("allocated", 0x1000, x, 512, CACHED)]
library.set_stream(0)
y = library.allocate(1024)
assert taken() == [("allocated", 0, y, 1024, CACHED)]
library.deallocate(x)
assert taken() == [("freed", 0x1000, x, RETURNED)]
assert library.allocate(512) == x
assert taken() == [("allocated", 0, x, 512, CACHED)]
thread = threading.Thread(target=library.deallocate, args=[x])
thread.start()
thread.join()
assert taken() == [("freed", 0, x, RETURNED)]
""", *options)


@COMPILER
def test_the_profiler_is_called_as_before(play):
    play("""
x = library.allocate(512)
library.deallocate(x)
assert others.seen_by_profiler() == 112                 # once for the host
""")


@COMPILER
@pytest.mark.parametrize("options", LINKED.values(), ids=LINKED)
def test_streams_that_the_allocator_waits_for_are_reported_before_the_free(play, options):
    play("""
x, y = library.allocate(512), library.allocate(512)
library.record(x, 0x2000)
library.record(x, 0x3000)
taken()
library.record_elsewhere(0x4000)                        # an event of another's
assert taken() == []
library.deallocate(y)
assert taken() == [("freed", 0, y, RETURNED)]
library.deallocate(x)
assert taken() == [("recorded", 0x2000, x), ("recorded", 0x3000, x), ("freed", 0, x, RETURNED)]
assert others.events_recorded() == 3
""", *options)


@COMPILER
@pytest.mark.parametrize("options", LINKED.values(), ids=LINKED)
def test_queries_of_the_allocator_are_marked(play, options):
    """... and those of torch.Event, which the same library makes, are the program's."""
    play("""
answer = ctypes.CFUNCTYPE(I, V)(lambda event: calls.append(("queried", event)) or 600)
others.query_with(answer)
for name in ("query", "query_for_itself"):
    getattr(library, name).argtypes = [V]
assert library.query_for_itself(0x9000) == 600
assert taken() == [("queries", 2), ("queried", 0x9000), ("queries", 0)]
assert library.query(0x9001) == 600
assert calls == [("queried", 0x9001)]
""", *options)


@COMPILER
def test_what_is_not_known_of_a_free_is_left_to_the_next_owner(play):
    """While a private pool is in use, PyTorch records the events later; and there may be very many."""
    play("""
x, y, z = (library.allocate(512) for _ in range(3))
taken()
_torch_pool.defer(1)
_torch_pool.defer(1)
_torch_pool.defer(-1)
library.deallocate(x)
assert taken() == [("freed", 0, x, LATER)]
_torch_pool.defer(-1)
_torch_pool.defer(-1)                                   # an end without a beginning
library.deallocate(y)
assert taken() == [("freed", 0, y, RETURNED)]
for stream in range(17):
    library.record(z, 0x1000 + 16 * stream)
library.deallocate(z)
assert taken()[-1] == ("freed", 0, z, LATER)
""")


@COMPILER
def test_what_a_graph_has_stays(play):
    """... when its owner drops it: the graph goes on using the memory."""
    play("""
x = library.allocate(512)
_torch_pool.defer(1, True)
y, z = library.allocate(512), library.allocate(512)
library.deallocate(y)
taken()
library.deallocate(x)
assert taken() == [("freed", 0, x, LATER)]
_torch_pool.defer(-1, True)
library.deallocate(z)
assert taken() == []
assert library.allocate(512)
assert taken()
""")


@COMPILER
def test_a_thread_without_a_context(play):
    """The first allocation of a device has called the driver: the others are in the same context."""
    play("""
x, y = library.allocate(512), library.allocate(512)
library.deallocate(y)
taken()

def without():
    assert not int(check(cuda.cuCtxGetCurrent()))
    library.deallocate(x)
    assert taken() == [("freed", 0, x, RETURNED)]
    z = library.allocate(512)
    assert taken()[0][:2] == ("allocated", 0)

failed = []
thread = threading.Thread(target=lambda: failed.append(without()))
thread.start()
thread.join()
assert failed == [None]
""")


@COMPILER
def test_an_allocation_that_names_its_stream(play):
    play("""
library.set_stream(0x1000)
taken()
x = library.allocate_on(512, 0x2000)
assert taken() == [("allocated", 0, x, 512, SOME)]
library.deallocate(x)
assert taken() == [("freed", 0, x, LATER)]
_torch_pool.expect_stream(0x2000)
x = library.allocate_on(512, 0x2000)
assert taken() == [("allocated", 0x2000, x, 512, CACHED)]
y = library.allocate_on(512, 0x2000)
assert taken() == [("allocated", 0, y, 512, SOME)]
""")


@COMPILER
def test_memory_from_before_the_check_is_not_reported(play):
    play("""
library.deallocate(0x12340000)
assert taken() == []
""")


@COMPILER
def test_a_library_that_reports_no_pieces(play):
    play("assert not watches\n", "-DSILENT")


@COMPILER
@pytest.mark.skipif("libasan" in os.environ.get("LD_PRELOAD", ""), reason="another `new` is preloaded")
def test_without_host_memory_a_piece_is_not_followed_and_counts(play, tmp_path):
    """PyTorch's allocator, which makes the call under its lock, gets no exception."""
    failing = tmp_path / "failing_new.so"
    subprocess.run([compiler() or "g++", "-std=c++17", "-shared", "-fPIC", HELPERS / "failing_new.cpp", "-ldl", "-o",
                    failing], check=True)
    play("""
fail_in = ctypes.CDLL(None).fail_in
library.set_stream(0x1000)
fail_in(b"_torch_pool")
x = library.allocate(512)
assert (taken(), _torch_pool.unknown()) == ([("allocated", 0x1000, x, 512, SOME)], 1)
fail_in(None)
library.deallocate(x)
assert taken() == []
library.set_stream(0x1000)
y = library.allocate(512)
assert (y, taken(), _torch_pool.unknown()) == (x, [("allocated", 0x1000, x, 512, CACHED)], 1)
from xlogmem.check.neighbours import torch_pieces
assert torch_pieces.unknown_pieces() == "host memory was short: 1 piece of PyTorch's own pool was not followed"
""", LD_PRELOAD=str(failing))
