"""Programs of other libraries under the check, unmodified and without a GPU: each has a repaired twin."""
from __future__ import annotations

from types import SimpleNamespace

import pytest
from checked_libraries import found, line_with, needs

from xlogmem.check.neighbours import cupy_allocator, cupy_pool, noted

pytestmark = pytest.mark.simulator
# The first releases of 12.9, see neighbours/cyruntime.py.
later_bindings = pytest.mark.skipif(found("cuda.bindings._lib.cyruntime.cyruntime"),
                                    reason="needs a later cuda-bindings 12.9")
RUNTIME = """
import sys
from cuda.bindings import runtime

def ok(result):
    assert int(result[0]) == 0, result[0]
    return result[1] if len(result) > 1 else None

a, b = ok(runtime.cudaStreamCreateWithFlags(1)), ok(runtime.cudaStreamCreateWithFlags(1))
p, q, event = ok(runtime.cudaMallocAsync(4096, a)), ok(runtime.cudaMalloc(4096)), ok(runtime.cudaEventCreate())
ok(runtime.cudaMemsetAsync(p, 7, 4096, a))                  # the first
if "fixed" in sys.argv:
    ok(runtime.cudaEventRecord(event, a))
    ok(runtime.cudaStreamWaitEvent(b, event, 0))
ok(runtime.cudaMemcpyAsync(q, p, 4096, runtime.cudaMemcpyKind.cudaMemcpyDeviceToDevice, b))     # the second
ok(runtime.cudaDeviceSynchronize())
assert ok(runtime.cudaPointerGetAttributes(p)).type == runtime.cudaMemoryType.cudaMemoryTypeDevice
assert runtime.cudaGetErrorName(runtime.cudaError_t.cudaErrorInvalidValue)[1] == b"cudaErrorInvalidValue"
assert int(runtime.cudaIpcGetMemHandle(p)[0]) == 801
"""
CUPY = """
import sys
import cupy
side, null = cupy.cuda.Stream(non_blocking=True), cupy.cuda.Stream.null
x = cupy.arange(10) + 1                                     # the first
if "fixed" in sys.argv:
    side.wait_event(null.record())
with side:
    y = x * 2                                               # the second
if "fixed" in sys.argv:
    null.wait_event(side.record())
assert y.shape == (10,)
"""
CUPY_NUMBERS = """
import sys
import cupy
side, null = cupy.cuda.Stream(non_blocking=True), cupy.cuda.Stream.null
numbers, half, out = cupy.random.default_rng(1), cupy.full(100, 0.5), cupy.zeros(100)
null.synchronize()
with side:
    FIRST                                                   # the first
if "fixed" in sys.argv:
    null.wait_event(side.record())
SECOND                                                      # the second
null.synchronize()
side.synchronize()
"""
CUPY_VIEWS = """
import sys
import cupy
a, b, c = (cupy.cuda.Stream(non_blocking=True) for _ in range(3))
with a:
    field = cupy.empty((8, 8, 8), "f4")
    field.fill(1)                                           # the first
c.wait_event(a.record())
with c:
    field[:, 5:, ::2] += 1                                  # beside the box of b
if "fixed" in sys.argv:
    b.wait_event(a.record())
with b:
    y = field[1:3, 2:5, 3:7] * 2                            # the second
cupy.cuda.Device().synchronize()
"""
CUPY_FREED = """
import sys
import cupy
a, b = cupy.cuda.Stream(non_blocking=True), cupy.cuda.Stream(non_blocking=True)
scale = cupy.RawKernel('''extern "C" __global__ void scale(const float* in, float* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = 2 * in[i];
}''', "scale")
with b:
    out = cupy.empty(1000, "f4")
with a:
    x = cupy.zeros(1000, "f4")
b.wait_event(a.record())
with b:
    scale((4,), (256,), (x, out, 1000))                     # the first
if "fixed" in sys.argv:
    a.wait_event(b.record())
del x                                                       # the second
a.synchronize()
"""
CUPY_GRAPH = """
import sys
import cupy
a, b = cupy.cuda.Stream(non_blocking=True), cupy.cuda.Stream(non_blocking=True)
with a:
    x, y = cupy.zeros(1000), cupy.zeros(1000)
    a.synchronize()
    a.begin_capture()
    cupy.add(x, 1, out=y)                                   # the first
    graph = a.end_capture()
    graph.launch(a)
if "fixed" in sys.argv:
    b.wait_event(a.record())
with b:
    z = y * 2                                               # the second
a.synchronize()
b.synchronize()
"""
CUPY_FORKED_GRAPH = """
import sys
import cupy
a, b = cupy.cuda.Stream(non_blocking=True), cupy.cuda.Stream(non_blocking=True)
with a:
    x, y, z = cupy.zeros(1000), cupy.zeros(1000), cupy.zeros(1000)
    a.synchronize()
    a.begin_capture()
    cupy.multiply(x, 2, out=x)
    b.wait_event(a.record())
    with b:
        cupy.add(x, 1, out=y)                               # the first
    if "fixed" in sys.argv:
        a.wait_event(b.record())
    cupy.add(y, 1, out=z)                                   # the second
    if "fixed" not in sys.argv:
        a.wait_event(b.record())
    graph = a.end_capture()
    graph.launch(a)
a.synchronize()
assert not (a.is_capturing() or b.is_capturing())
"""
# CuPy looks at events of its own when it copies an array of NumPy's, by each of these ways.
CUPY_OWN_QUERY = """
import sys
import cupy, numpy
a, b = cupy.cuda.Stream(non_blocking=True), cupy.cuda.Stream(non_blocking=True)
host = numpy.ones(1000)
with a:
    x = cupy.arange(10) + 1                                 # the first
    if "asarray" in sys.argv:
        cupy.asarray(host)
    if "array" in sys.argv:
        cupy.array(host)
    event = a.record()
if "fixed" in sys.argv:
    b.wait_event(event)
if "stream" in sys.argv:
    while not a.done:
        pass
if "event" in sys.argv:
    while not event.done:
        pass
with b:
    y = x * 2                                               # the second
b.synchronize()
"""
OWN_QUERIES = ["asarray", "array"]
NUMBA = """
import sys, warnings
import numpy
from numba import cuda
warnings.simplefilter("ignore")

@cuda.jit
def scale(out, x):
    i = cuda.grid(1)
    if i < x.size:
        out[i] = x[i] * 2

a, b = cuda.stream(), cuda.stream()
x = cuda.to_device(numpy.arange(1000, dtype=numpy.float32), stream=a)
y, z = cuda.device_array(1000, numpy.float32, stream=a), cuda.device_array(1000, numpy.float32, stream=b)
a.synchronize()
scale[8, 128, a](y, x)                                      # the first
if "fixed" in sys.argv:
    event = cuda.event()
    event.record(a)
    event.wait(b)
scale[8, 128, b](z, y)                                      # the second
a.synchronize()
b.synchronize()
"""
CORE = """
import sys
from cuda.core import Device, LaunchConfig, Program, ProgramOptions, launch
device = Device()
device.set_current()
a, b = device.create_stream(), device.create_stream()
code = '''extern "C" __global__ void scale(const float* in, float* out, unsigned long long n) {
    unsigned long long i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = 2 * in[i];
}'''
kind = "ptx" if "ptx" in sys.argv else "cubin"
module = Program(code, "c++", ProgramOptions(arch="sm_90")).compile(kind)
scale = module.get_kernel("scale")
x, y, z = (device.allocate(4000, stream=a) for _ in range(3))
a.sync()
launch(a, LaunchConfig(grid=4, block=256), scale, x, y, 1000)                       # the first
if "fixed" in sys.argv:
    b.wait(a)
launch(b, LaunchConfig(grid=4, block=256), scale, y, z, 1000)                       # the second
a.sync()
b.sync()
"""
PROGRAMS = [
    pytest.param(RUNTIME, [], "write/read", True, id="cuda.bindings.runtime", marks=later_bindings),
    pytest.param(CUPY, [], "write/read", True, id="cupy", marks=needs("cupy", "nvidia.cuda_nvrtc")),
    *(pytest.param(CUPY_NUMBERS.replace("FIRST", first).replace("SECOND", second), [], pair, True,
                   id=f"cupy-generator-{name}", marks=needs("cupy", "nvidia.cuda_nvrtc"))
      for name, first, second, pair in (
          ("numbers", "numbers.standard_normal(out=out)", "y = out * 2", "write/read"),
          ("parameter", "half.fill(0.25)", "x = numbers.standard_gamma(half, out=out)", "write/read"),
          ("state", "x = numbers.random(100)", "y = numbers.integers(0, 9, 100)", "write/write"),
          ("raw", "x = numbers.bit_generator.random_raw(100)", "y = x * 2", "write/read"))),
    pytest.param(CUPY_VIEWS, [], "write/read", True, id="cupy-views", marks=needs("cupy", "nvidia.cuda_nvrtc")),
    pytest.param(CUPY_FREED, [], "read/free", True, id="cupy-freed", marks=needs("cupy", "nvidia.cuda_nvrtc")),
    pytest.param(CUPY_GRAPH, [], "write/read", True, id="cupy-graph", marks=needs("cupy", "nvidia.cuda_nvrtc")),
    pytest.param(CUPY_FORKED_GRAPH, [], "write/read", True, id="cupy-forked-graph",
                 marks=needs("cupy", "nvidia.cuda_nvrtc")),
    *(pytest.param(CUPY_OWN_QUERY, [way], "write/read", True, id=f"cupy-own-query-{way}",
                   marks=needs("cupy", "nvidia.cuda_nvrtc")) for way in OWN_QUERIES),
    pytest.param(NUMBA, [], "write/read", True, id="numba", marks=needs("numba_cuda", "nvidia.cuda_nvcc")),
    pytest.param(CORE, ["ptx"], "write/read", True, id="cuda.core", marks=needs("cuda.core", "nvidia.cuda_nvrtc")),
    # A cubin does not say what is done through a pointer: that both touch the memory is possible, and no more.
    pytest.param(CORE, [], "use/use", False, id="cuda.core-cubin", marks=needs("cuda.core", "nvidia.cuda_nvrtc")),
]


@pytest.mark.parametrize(("program", "arguments", "pair", "certain"), PROGRAMS)
def test_the_missing_wait_is_found(checked, program, arguments, pair, certain):
    run = checked(program, *arguments)
    assert run.pairs == [(pair, certain)], run.stderr
    assert run.returncode == int(certain)
    assert ("1 possible (see --possible; they fail the check with --strict), on the" in run.stderr) == (not certain)
    for which in ("first", "second"):
        access = run.findings[0][which]
        lines = [frame["line"] for frame in access["captured"] or access["stack"]
                 if frame["file"].endswith("program.py")]
        assert lines[0] == line_with(program, f"# the {which}"), run.stderr
        if access["captured"]:
            assert access["stack"][0]["line"] == line_with(program, "graph.launch("), run.stderr


@pytest.mark.parametrize(("program", "arguments", "pair", "certain"), PROGRAMS)
def test_its_repaired_twin_is_silent(checked, program, arguments, pair, certain):
    run = checked(program, *arguments, "fixed")
    assert (run.returncode, run.pairs) == (0, []), run.stderr


@needs("cupy", "nvidia.cuda_nvrtc")
@pytest.mark.parametrize("way", OWN_QUERIES)
@pytest.mark.parametrize("polled", ["stream", "event"])
def test_the_programs_own_poll_is_a_wait(checked, way, polled):
    run = checked(CUPY_OWN_QUERY, way, polled)
    assert (run.returncode, run.pairs) == (0, []), run.stderr


@needs("cupy", "nvidia.cuda_nvrtc")
def test_memory_of_another_device_is_freed_there(checked):
    """The null stream, on which it is freed, is that of its own device."""
    run = checked("""
import cupy
with cupy.cuda.Device(1):
    x = cupy.arange(10) + 1
del x
assert cupy.cuda.runtime.getDevice() == 0
cupy.arange(10)
""")
    assert (run.returncode, run.pairs) == (0, []), run.stderr


@needs("cupy", "nvidia.cuda_nvrtc")
@pytest.mark.parametrize("how", ["y = cupy.asarray(x)", "y = cupy.array(x)", "y = cupy.empty_like(x); y[...] = x",
                                 "y = cupy.empty_like(x); y.data.copy_from_device(x.data, x.nbytes)"])
def test_arrays_are_copied_between_devices(checked, how):
    """In the null stream, a copy comes after what both devices have queued there."""
    run = checked(f"""
import cupy
with cupy.cuda.Device(0):
    x = cupy.arange(10) + 1
with cupy.cuda.Device(1):
    {how}
    y += 1
    cupy.cuda.Device(1).synchronize()
""")
    assert (run.returncode, run.pairs) == (0, []), run.stderr


UPLOADED = """
import sys
import cupy, numpy
other = cupy.cuda.Stream(non_blocking=True)
host = numpy.ones(1000)
for _ in range(3 if "again" in sys.argv else 1):
    x = cupy.empty(1000)
    if "fixed" in sys.argv:
        other.wait_event(cupy.cuda.Stream.null.record())
    x.set(host, stream=other)
    cupy.cuda.Stream.null.wait_event(other.record())
    y = x.copy()
    del x, y
cupy.cuda.Device().synchronize()
"""


@needs("cupy", "nvidia.cuda_nvrtc")
def test_an_upload_on_another_stream(checked):
    """Where the memory had no owner CuPy's own pool needs no wait; where it had one, the last reader has to be done."""
    run = checked(UPLOADED)
    assert (run.returncode, run.pairs, [one["of_driver"] for one in run.findings]) == (
        0, [("alloc/use", False)], [True]), run.stderr
    run = checked(UPLOADED, "again")
    assert ("alloc/use", True) in run.pairs, run.stderr
    run = checked(UPLOADED, "again", "fixed")
    assert run.pairs == [], run.stderr


OWN_POOL = """
import sys
import cupy
from xlogmem.check.neighbours import cupy_pieces
pool = cupy.cuda.MemoryPool()
cupy.cuda.set_allocator(lambda size: pool.malloc(size))     # as with --pools real on a GPU
cupy_pieces.prepare(cupy)
null, side = cupy.cuda.Stream.null, cupy.cuda.Stream(non_blocking=True)
"""
OF_OWN_POOL = {
    "alloc/use": """
for _ in range(2):
    x = cupy.empty(1000)
    if "fixed" in sys.argv:
        side.wait_event(null.record())
    with side:
        x.fill(1)
    null.wait_event(side.record())
    y = x + 1
    del x, y
""",
    "read/reuse": """
x = cupy.zeros(1000)
side.wait_event(null.record())
with side:
    y = x + 1
del x
if "fixed" in sys.argv:
    null.wait_event(side.record())
x = cupy.zeros(1000)
null.wait_event(side.record())
""",
    "read/free": """
x = cupy.zeros(1000)
side.wait_event(null.record())
with side:
    y = x + 1
del x
if "fixed" in sys.argv:
    null.wait_event(side.record())
cupy.cuda.Device().synchronize()
""",
}


@needs("cupy", "nvidia.cuda_nvrtc")
@pytest.mark.parametrize(("pair", "program"), OF_OWN_POOL.items(), ids=OF_OWN_POOL)
def test_pieces_of_cupys_own_pool(checked, pair, program):
    run = checked(OWN_POOL + program)
    assert (pair, True) in run.pairs, run.stderr
    run = checked(OWN_POOL + program, "fixed")
    assert run.pairs == [], run.stderr


@needs("cupy", "nvidia.cuda_nvrtc")
def test_a_stream_ends_before_its_arrays(checked):
    run = checked(OWN_POOL + """
with side:
    x, y = cupy.zeros(1000), cupy.ones(1000)
side.synchronize()
del side
del x
z = cupy.zeros(1000)
""")
    assert run.pairs == [], run.stderr


@later_bindings
def test_programs_that_look_for_the_runtime_find_it(checked):
    """Not in the processes in which cuda.pathfinder looks for what is installed."""
    program = """
import ctypes, os, sys
try:
    ctypes.CDLL("libcudart.so.12", mode=os.RTLD_NOLOAD)
    print("loaded")
except OSError:
    print("not loaded")
"""
    assert checked(program).stdout == "loaded\n"
    assert checked(program, "cuda.pathfinder.search").stdout == "not loaded\n"


@needs("cupy", "nvidia.cuda_nvrtc")
def test_an_error_passes_through_the_table_of_cupy(checked):
    """The value that stands for an exception has to be the one that the callers, compiled elsewhere, expect."""
    run = checked("""
import cupy
null = cupy.cuda.Stream.null
for make in (lambda: cupy.cuda.memory.Memory(1 << 50), lambda: cupy.cuda.memory.MemoryAsync(1 << 50, null),
             lambda: cupy.empty(1 << 50, "u1"), lambda: cupy.cuda.PinnedMemory(1 << 60)):
    try:
        make()
    except Exception as error:
        assert type(error).__name__ in ("CUDARuntimeError", "OutOfMemoryError"), repr(error)
    else:
        raise AssertionError
""")
    assert run.returncode == 0, run.stderr


@later_bindings
def test_what_is_not_simulated_names_itself(checked):
    assert checked(RUNTIME).stderr.count("cudaIpcGetMemHandle is not simulated") == 1


@later_bindings
def test_a_library_is_prepared_when_it_is_imported_and_not_before(checked):
    run = checked("import sys\nassert not {'cupy', 'numba', 'cuda.bindings.runtime'} & sys.modules.keys()\n"
                  "import xlogmem.check.neighbours as neighbours\n"
                  "assert sum(type(one).__module__ == neighbours.__name__ for one in sys.meta_path) == 1\n"
                  "from cuda.bindings import driver\ndriver.cuInit(0)\n")      # else nothing was checked
    assert run.returncode == 0, run.stderr


@later_bindings
def test_another_signature_is_left_as_it_is(checked):
    """... and is named: it would be called with what it does not expect."""
    program = """
from xlogmem.check.neighbours import signatures
signatures.SIGNATURES["cudaMemGetInfo"] = "cudaError_t (int)"
from cuda.bindings import runtime
print(runtime.cudaMemGetInfo()[0])
"""
    run = checked(program)
    assert "cudaMemGetInfo have other signatures" in run.stderr
    assert "cudaSuccess" not in run.stdout
    run = checked(program.replace('signatures.SIGNATURES["', 'signatures.SIGNATURES["_'))
    assert "cudaSuccess" in run.stdout, run.stderr


def test_an_allocator_of_the_programs_own_is_noted(monkeypatch):
    """... and RMM's is none: its pools are the driver's own."""
    def own(size): ...
    def of_rmm(size): ...

    of_rmm.__module__ = "rmm.allocators.cupy"
    monkeypatch.setattr(noted, "_notes", {})
    set_to = []
    cupy = SimpleNamespace(cuda=SimpleNamespace(set_allocator=set_to.append, using_allocator=set_to.append,
                                                MemoryPool=type("MemoryPool", (), {}),
                                                MemoryAsyncPool=type("MemoryAsyncPool", (), {})))
    cupy_allocator.use(cupy, test_an_allocator_of_the_programs_own_is_noted)
    cupy.cuda.set_allocator(of_rmm)
    assert noted.notes() == []
    for allocator in (own, None):
        cupy.cuda.using_allocator(allocator)
    assert set_to == [test_an_allocator_of_the_programs_own_is_noted, of_rmm, own, None]
    note, = noted.notes()
    assert "an allocator of its own for CuPy" in note


def test_memory_of_the_drivers_pool_is_not_shared():
    runtime = SimpleNamespace(getDevice=lambda: 0, ipcGetMemHandle=None)
    cupy_pool.prepare(SimpleNamespace(cuda=SimpleNamespace(set_allocator=id, using_allocator=id, runtime=runtime)))
    with pytest.raises(RuntimeError, match=r"0x1000 cannot be shared .*: run `xlogmem check --pools real`"):
        runtime.ipcGetMemHandle(0x1000)


def test_pools_of_two_devices_are_open_to_each_other(checked):
    """Copies reach the memory of CuPy's own pool wherever it is, and have to reach the memory in its place."""
    run = checked("""
from types import SimpleNamespace
from cuda.bindings import driver
from xlogmem.check.neighbours import cupy_pool

device, allocators = [0], []
cupy_pool.prepare(SimpleNamespace(cuda=SimpleNamespace(
    set_allocator=allocators.append, using_allocator=None, runtime=SimpleNamespace(getDevice=lambda: device[0]),
    MemoryAsyncPool=lambda: SimpleNamespace(malloc=lambda size: size))))
driver.cuInit(0)
for used in (0, 0, 1):
    device[0] = used
    allocators[0](64)
    for owner in (0, 1):
        location = driver.CUmemLocation()
        location.type, location.id = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE, 1 - owner
        print(int(driver.cuMemPoolGetAccess(driver.cuDeviceGetDefaultMemPool(owner)[1], location)[1]), end=" ")
""")
    assert run.stdout == "0 0 0 0 3 3 ", run.stderr
