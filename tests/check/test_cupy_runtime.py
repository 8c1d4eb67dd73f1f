"""CuPy's runtime module without a GPU, with CuPy: which of its functions there are, and programs that use them."""
from __future__ import annotations

import pytest
from checked_libraries import line_with, needs

pytestmark = [pytest.mark.simulator, needs("cupy", "nvidia.cuda_nvrtc")]

# Of CuPy's functions these need no driver.
OWN = {"_export_enum", "_getCUDAMajorVersion", "check_status", "runtimeGetVersion"}
STREAMS = """
import sys
import cupy, cupyx, numpy
runtime, fixed = cupy.cuda.runtime, "fixed" in sys.argv
a, b = cupy.cuda.Stream(non_blocking=True), cupy.cuda.Stream(non_blocking=True)
"""
COLUMNS = STREAMS + """
field, left, right = cupy.zeros((8, 64), "u1"), cupy.ones((8, 16), "u1"), cupy.ones((8, 16), "u1")
cupy.cuda.Device().synchronize()
def columns(first, part, stream):
    runtime.memcpy2DAsync(field.data.ptr + first, 64, part.data.ptr, 16, 16, 8, 3, stream.ptr)
columns(0, left, a)                                             # of another half than the next
columns(32, right, b)
if fixed:
    b.wait_event(a.record())
columns(8, right, b)
cupy.cuda.Device().synchronize()
"""
PEERS = STREAMS + """
with cupy.cuda.Device(1):
    there = cupy.zeros(512, "u1")
    cupy.cuda.Device().synchronize()
with a:
    here = cupy.ones(512, "u1")
    if fixed:
        a.synchronize()
runtime.memcpyPeer(there.data.ptr, 1, here.data.ptr, 0, 512)
cupy.cuda.Device().synchronize()
a.synchronize()
"""
CALLBACK = STREAMS + """
x, host, seen = cupy.ones(4096, "u1"), cupyx.empty_pinned(4096, "u1"), []
cupy.cuda.Device().synchronize()
def look(*arguments):
    seen.append(int(host[0]))
x.data.copy_to_host_async(host.ctypes.data, x.nbytes, a)
if fixed:
    a.synchronize()
if "ordered" in sys.argv:
    b.wait_event(a.record())
if "callback" in sys.argv:
    b.add_callback(look, None)
else:
    b.launch_host_func(look, None)
b.synchronize()
a.synchronize()
assert len(seen) == 1
"""
PROGRAMS = {"columns": (COLUMNS, [], "write/write", "columns(0", "columns(8"),
            "peers": (PEERS, [], "write/read", 'here = cupy.ones', "runtime.memcpyPeer("),
            "callback": (CALLBACK, ["callback"], "write/read", "copy_to_host_async", "seen.append"),
            "host function": (CALLBACK, ["function"], "write/read", "copy_to_host_async", "seen.append")}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_missing_wait_is_found_and_its_repair_is_silent(checked, name):
    program, arguments, pair, first, second = PROGRAMS[name]
    run = checked(program, *arguments)
    assert (run.pairs, run.returncode) == ([(pair, True)], 1), run.stderr
    for which, text in (("first", first), ("second", second)):
        lines = [frame["line"] for frame in run.findings[0][which]["stack"] if frame["file"].endswith("program.py")]
        assert line_with(program, text) in lines, run.stderr
    run = checked(program, *arguments, "fixed")
    assert (run.pairs, run.returncode) == ([], 0), run.stderr


@pytest.mark.parametrize("way", ["callback", "function"])
def test_a_function_of_the_host_comes_after_its_stream(checked, way):
    """The host may know by it what is done, so that is possible at most."""
    run = checked(CALLBACK, way, "ordered")
    assert (run.pairs, run.returncode) == ([("write/read", False)], 0), run.stderr


def test_each_function_of_cupys_runtime_is_known(checked):
    """A function that is not replaced would be NVIDIA's runtime, which finds no driver."""
    run = checked("""
import cupy
from xlogmem.check.neighbours import _cupy_table
runtime = cupy.cuda.runtime
for name in dir(runtime):
    one = getattr(runtime, name)
    if callable(one) and not isinstance(one, type) and one is not getattr(_cupy_table, name, None):
        if not name.startswith("__pyx_unpickle"):
            print(name)
""")
    assert set(run.stdout.split()) == OWN, run.stderr
    assert "other signatures" not in run.stderr


def test_what_programs_request_of_cupy(checked):
    run = checked("""
import cupy
from cupyx import profiler
runtime = cupy.cuda.runtime
cupy.show_config()
with profiler.profile():
    cupy.ones(4) + 1
device = cupy.cuda.Device(0)
assert cupy.cuda.Device.from_pci_bus_id(device.pci_bus_id) == device
runtime.memPoolDestroy(runtime.memPoolCreate(runtime.MemPoolProps(1, 0, 1, 0)))
memory = cupy.cuda.ManagedMemory(4096)
memory.advise(runtime.cudaMemAdviseSetPreferredLocation, device)
memory.prefetch(cupy.cuda.Stream(non_blocking=True))
assert cupy.cuda.get_local_runtime_version() // 1000 == runtime.runtimeGetVersion() // 1000
runtime._deviceEnsurePeerAccess(1)
runtime.deviceDisablePeerAccess(1)
device.synchronize()
""")
    assert (run.pairs, run.returncode) == ([], 0), run.stderr
    assert "not simulated" not in run.stderr


def test_a_graph_calls_a_function_of_the_host_at_each_launch(checked):
    run = checked("""
import cupy
stream, seen = cupy.cuda.Stream(non_blocking=True), []
stream.begin_capture()
stream.launch_host_func(seen.append, "called")
graph = stream.end_capture()
for _ in range(3):
    graph.launch(stream)
stream.synchronize()
assert seen == ["called"] * 3
""")
    assert (run.pairs, run.returncode) == ([], 0), run.stderr


TEXTURE = """
import sys
import cupy
import numpy
from cupy.cuda import runtime, texture
a, b = (cupy.cuda.Stream(non_blocking=True) for _ in range(2))
fetch = cupy.RawKernel(r'extern "C" __global__ void fetch(float* out, cudaTextureObject_t tex)'
                       '{ out[threadIdx.x] = tex2D<float>(tex, threadIdx.x, 0); }', "fetch")
channels = texture.ChannelFormatDescriptor(32, 0, 0, 0, runtime.cudaChannelFormatKindFloat)
array = texture.CUDAarray(channels, 8, 4)
given = numpy.arange(32, dtype="f").reshape(4, 8)
x, there = cupy.asarray(given), cupy.empty((4, 8), "f")
array.copy_from(x)
array.copy_to(there)
assert (there.get() == given).all()
resource = texture.ResourceDescriptor(runtime.cudaResourceTypeArray, cuArr=array)
tex = texture.TextureObject(resource, texture.TextureDescriptor())
out = cupy.zeros(8, "f")
cupy.cuda.Device().synchronize()
array.copy_from(x, a)                                       # writes the array
if "fixed" in sys.argv:
    b.wait_event(a.record())
with b:
    fetch((1,), (8,), (out, tex))                           # reads it
cupy.cuda.Device().synchronize()
"""


def test_textures(checked):
    run = checked(TEXTURE)
    assert run.pairs == [("write/read", True)], run.stderr
    for which, text in (("first", "# writes"), ("second", "# reads")):
        lines = [frame["line"] for frame in run.findings[0][which]["stack"]]
        assert line_with(TEXTURE, text) in lines, run.stderr
    run = checked(TEXTURE, "fixed")
    assert (run.pairs, run.returncode) == ([], 0), run.stderr
