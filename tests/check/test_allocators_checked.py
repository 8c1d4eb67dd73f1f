"""The real CuPy, Numba-CUDA and cuda.core allocate through xlogmem, judged by the check, without a GPU.

Each program misses a wait; its twin is repaired by one `use`, which finds the memory by the array alone.
"""
from __future__ import annotations

import subprocess
import sys

import pytest
from checked_libraries import line_with, needs
from children import variables

pytestmark = pytest.mark.simulator

HEAD = """
import sys, warnings
from contextlib import nullcontext
import numpy
import xlogmem
warnings.simplefilter("ignore")                             # of Numba, that there is little work
assert not {"cupy", "numba", "cuda.core"} & sys.modules.keys()

def use(stream, **accesses):
    return xlogmem.use(stream, **accesses) if "fixed" in sys.argv else nullcontext()
"""
CUPY = HEAD + """
xlogmem.enable("cupy")
import cupy
a, b = cupy.cuda.Stream(non_blocking=True), cupy.cuda.Stream(non_blocking=True)
with a:
    x = cupy.arange(1000) + 1                               # the first
with b, use(b, read=x):
    y = x * 2                                               # the second
with a:
    x += 1 if "fixed" in sys.argv else 0                    # after b, by the hand-back
a.synchronize()
b.synchronize()
"""
CUPY_FREED = HEAD + """
xlogmem.enable("cupy")
import cupy
a, b = cupy.cuda.Stream(non_blocking=True), cupy.cuda.Stream(non_blocking=True)
with a:
    x = cupy.arange(1000)
with b:
    y = cupy.empty_like(x)
b.wait_event(a.record())
with b, use(b, read=x, write=y):
    cupy.add(x, 1, out=y)                                   # the first
del x                                                       # the second
xlogmem.get_runtime().reap_pending(blocking=False)
b.synchronize()
"""
CUPY_PINNED = HEAD + """
xlogmem.enable("cupy", pinned=True)
import cupy, cupyx
stream, x = cupy.cuda.Stream(non_blocking=True), cupy.empty(1000, "f4")
staging = cupyx.empty_pinned(1000, "f4")
for number in range(3):
    with use(xlogmem.host, write=staging):
        staging[:] = number                                 # the second
    with stream, xlogmem.use(stream, read=staging, write=x):
        x.set(staging, stream)                              # the first
stream.synchronize()
"""
CUPY_PINNED_FREED = HEAD + """
xlogmem.enable("cupy", pinned=True)
import cupy, cupyx
stream, x = cupy.cuda.Stream(non_blocking=True), cupy.empty(1000, "f4")
cupy.cuda.get_current_stream().synchronize()
for number in range(3):
    batch = cupyx.empty_pinned(1000, "f4")                  # the second
    batch[:] = number
    with use(stream, read=batch, write=x):
        x.set(batch, stream)                                # the first
    del batch
stream.synchronize()
"""
NUMBA = HEAD + """
xlogmem.enable("numba")
from cuda.bindings import driver
from numba import cuda

@cuda.jit
def scale(out, x):
    i = cuda.grid(1)
    if i < x.size:
        out[i] = x[i] * 2

x = cuda.to_device(numpy.arange(1000, dtype=numpy.float32))
handle = driver.cuStreamCreate(1)[1]                        # Numba's own streams wait for its default stream
side = cuda.external_stream(int(handle))
y, z = cuda.device_array(1000, numpy.float32), cuda.device_array(1000, numpy.float32)
cuda.synchronize()
scale[8, 128](y, x)                                         # the first
with use(side, read=y, write=z):
    scale[8, 128, side](z, y)                               # the second
side.synchronize()
cuda.synchronize()
"""
CORE = HEAD + """
xlogmem.enable("cuda.core")
from cuda.core import Device, LaunchConfig, Program, ProgramOptions, launch
device = Device()
device.set_current()
a, b = device.create_stream(), device.create_stream()
code = '''extern "C" __global__ void scale(const float* in, float* out, unsigned long long n) {
    unsigned long long i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = 2 * in[i];
}'''
scale = Program(code, "c++", ProgramOptions(arch="sm_90")).compile("ptx").get_kernel("scale")
x, y, z = device.allocate(4000, stream=a), device.allocate(4000, stream=a), device.allocate(4000, stream=b)
launch(a, LaunchConfig(grid=4, block=256), scale, x, y, 1000)                       # the first
with use(b, read=int(y.handle), write=int(z.handle)):
    launch(b, LaunchConfig(grid=4, block=256), scale, y, z, 1000)                   # the second
a.sync()
b.sync()
"""
REAL_CUPY = """
import gc
import xlogmem
xlogmem.enable("cupy")
xlogmem.enable("cupy")
import cupy
from cupy.cuda import memory
runtime = xlogmem.get_runtime()
x = cupy.arange(1000)
view = x[10:20]
found = runtime.find_block(view.data.ptr)
assert found is not None and found.alloc_stream.discipline == "opaque"
del x
gc.collect()
assert runtime.find_block(view.data.ptr) == found
assert cupy.empty(0).data.ptr == 0 and cupy.empty((0, 3)).size == 0
try:
    cupy.empty(1 << 50, "u1")
except memory.OutOfMemoryError as error:
    assert isinstance(error.__cause__, xlogmem.OutOfDeviceMemoryError), error.__cause__
else:
    raise SystemExit("no error")
with cupy.cuda.Device(1):
    other = cupy.arange(10)
    assert xlogmem.get_runtime(1).find_block(other.data.ptr).device_id == 1 == other.device.id
stream = cupy.cuda.Stream(non_blocking=True)
with stream:
    y = cupy.empty(10)
    stream.begin_capture()
    cupy.add(y, 1, out=y)
    try:
        cupy.empty(10)
    except xlogmem.StreamMisuseError as error:
        assert "capturing" in str(error), error
    else:
        raise SystemExit("no error")
    graph = stream.end_capture()
    graph.launch(stream)
    y + 1
stream.synchronize()
for _ in range(300):
    with cupy.cuda.Stream(non_blocking=True):
        cupy.arange(10)
from xlogmem import allocators
assert len(allocators.cupy._streams) <= 64
try:
    with cupy.cuda.using_allocator(memory.MemoryPool().malloc):
        xlogmem.disable("cupy")
except RuntimeError as error:
    assert "using_allocator" in str(error)
xlogmem.disable("cupy")
z = cupy.arange(10)
assert runtime.find_block(z.data.ptr) is None and runtime.find_block(view.data.ptr) == found
memory.set_allocator(cupy.get_default_memory_pool().malloc)     # past the check, which would put its own there
z = cupy.arange(100)
try:
    xlogmem.enable("cupy")
except RuntimeError as error:
    assert "CuPy has 1.0 KiB (1024 bytes) in use" in str(error), error
else:
    raise SystemExit("no error")
del z
xlogmem.enable("cupy")
del view, y, other, found
for each in (runtime, xlogmem.get_runtime(1)):
    each.reap_pending()
    assert each.live_bytes == 0, each.live_bytes
"""
REAL_CUPY_PINNED = """
import warnings
import cupy, cupyx, numpy
before = cupyx.empty_pinned(1000)
import xlogmem
xlogmem.enable("cupy")
assert xlogmem.get_runtime().find_block(cupyx.empty_pinned(1000)) is None
for _ in range(2):
    xlogmem.enable("cupy", pinned=True)
runtime = xlogmem.get_runtime()
made = [cupyx.empty_pinned((3, 4)), cupyx.zeros_pinned(5), cupyx.empty_like_pinned(numpy.ones((2, 3)).T),
        cupyx.zeros_like_pinned(cupy.ones(7, "u1")), numpy.frombuffer(cupy.cuda.alloc_pinned_memory(64) + 8, "u1")]
assert all(runtime.find_block(array) for array in made) and runtime.find_block(before) is None
assert made[1].sum() == made[3].sum() == 0 and made[4].size == 56
assert cupyx.empty_pinned((0, 3)).size == 0 and cupy.cuda.alloc_pinned_memory(0).size() == 0
with xlogmem.use(xlogmem.host, write=made):
    made[0][:] = 7
try:
    cupyx.empty_pinned(1 << 50)
except cupy.cuda.runtime.CUDARuntimeError as error:
    assert isinstance(error.__cause__, xlogmem.OutOfDeviceMemoryError), error.__cause__
    assert "cudaErrorMemoryAllocation" in str(error) and error.status == 2, error
else:
    raise SystemExit("no error")
for wrong in (-1, None, "x"):
    try:
        cupy.cuda.alloc_pinned_memory(wrong)
    except (OverflowError, TypeError):
        pass
    else:
        raise SystemExit("no error")
count = runtime.counters()["allocations"]
for value in range(20):                                     # CuPy keeps what it copies from until the copy is done
    x = cupy.asarray(numpy.full(1000, value))
assert runtime.counters()["allocations"] == count + 40      # each array has two
room, runtime._page_locked = runtime._page_locked, xlogmem.PoolMemoryResource(
    xlogmem.PinnedMemoryResource(), maximum_pool_size=4096, chunk_size=4096)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    x = cupy.asarray(numpy.full(1000, 1))                   # copies without page-locked memory
assert ["pinned memory" in str(one.message) for one in caught] == [True], caught
runtime._page_locked = room
with cupy.cuda.Device(1):
    other = cupyx.empty_pinned(10)
    assert xlogmem.get_runtime(1).find_block(other).device_id == 1
xlogmem.disable("cupy")
assert runtime.find_block(made[0]) and runtime.find_block(cupyx.empty_pinned(1000)) is None
assert type(cupy.cuda.alloc_pinned_memory(64).mem) is cupy.cuda.pinned_memory.PooledPinnedMemory
xlogmem.enable("cupy", pinned=True)
cupy.cuda.set_pinned_memory_allocator()                     # without CuPy's pool
xlogmem.disable("cupy")
assert type(cupy.cuda.alloc_pinned_memory(64).mem) is cupy.cuda.PinnedMemory
cupy.cuda.Device().synchronize()
cupy.cuda.alloc_pinned_memory(0)                            # CuPy releases what it has kept
del made, other, x
for each in (runtime, xlogmem.get_runtime(1)):
    each.reap_pending()
    assert each.live_bytes == 0, each.live_bytes
"""
REAL_NUMBA = """
import gc
import xlogmem
xlogmem.enable("numba")
from numba import cuda
from xlogmem import allocators
runtime = xlogmem.get_runtime()
def address(array):
    return array.__cuda_array_interface__["data"][0]
x = cuda.device_array(1000)
view = x[10:20]
del x
gc.collect()
found = runtime.find_block(address(view))
assert found.alloc_stream.discipline == "opaque"
try:
    cuda.device_array(1 << 50)
except cuda.cudadrv.driver.CudaAPIError as error:
    assert error.code == 2 and isinstance(error.__cause__, xlogmem.OutOfDeviceMemoryError), error
else:
    raise SystemExit("no error")
assert cuda.current_context().get_memory_info().total > 0
pinned, mapped = cuda.pinned_array(10), cuda.mapped_array(10)
xlogmem.disable("numba")
y = cuda.device_array(10)
assert runtime.find_block(address(y)) is None and runtime.find_block(address(view)) == found
try:
    xlogmem.enable("numba")
except RuntimeError as error:
    assert "Numba has 1 allocation on device 0" in str(error), error
else:
    raise SystemExit("no error")
del y
xlogmem.enable("numba")
y = cuda.device_array(10)
assert runtime.find_block(address(y))
cuda.current_context().reset()
runtime.reap_pending()
assert runtime.find_block(address(y)) is None
del y, view, found
runtime.reap_pending()
assert runtime.live_bytes == 0, runtime.live_bytes
"""
REAL_CORE = """
import gc, threading
import xlogmem
xlogmem.enable("cuda.core")
from cuda.core import Device
from cuda.core import Buffer
device = Device()
device.set_current()
runtime = xlogmem.get_runtime()
a, b = device.create_stream(), device.create_stream()
x, y = device.allocate(64, stream=a), device.memory_resource.allocate(64, stream=a)
assert (x.device_id, x.is_device_accessible, x.is_host_accessible, x.is_managed) == (0, True, False, False)
assert x.memory_resource is y.memory_resource is device.memory_resource
assert x.__dlpack_device__() == (2, 0)
x.fill(7, stream=a)
x.copy_to(y, stream=a)
z = y.copy_to(stream=a)
assert runtime.find_block(int(z.handle)) and z.memory_resource is device.memory_resource
capsule = z.__dlpack__(max_version=(1, 0))
del capsule
with xlogmem.use(b, read=int(z.handle)):
    x.copy_from(z, stream=a)                                # reads it, too
    z.copy_to(device.allocate(64, stream=b), stream=b)
z.set_deallocation_stream(b)
z.close()
y.close(b)
assert y.memory_resource is None
assert device.allocate(0, stream=a).handle == 0
try:
    device.allocate(1 << 50, stream=a)
except xlogmem.OutOfDeviceMemoryError:
    pass
else:
    raise SystemExit("no error")
import copy, pickle
from xlogmem.allocators.cuda_core import BlockMemoryResource
assert x.is_mapped is False and device.memory_resource.is_ipc_enabled is False
for refused in (lambda: x.ipc_descriptor, lambda: pickle.dumps(x), lambda: copy.copy(x),
                lambda: device.memory_resource.allocation_handle):
    try:
        refused()
    except RuntimeError as error:
        assert "IPC" in str(error), error
    else:
        raise SystemExit("no error")
for resource, kind in ((xlogmem.PinnedMemoryResource(), (3, 0)), (xlogmem.ManagedMemoryResource(), (13, 0))):
    memory = BlockMemoryResource(0, resource)
    with memory.allocate(64, stream=a) as on_host:
        assert (on_host.is_host_accessible, on_host.is_managed) == (True, kind[0] == 13)
        assert on_host.__dlpack_device__() == kind, on_host.__dlpack_device__()
        assert runtime.find_block(int(on_host.handle)) and resource in runtime.resources
for what in (None, 5):
    try:
        device.allocate(64, stream=what)
    except TypeError:
        pass
    else:
        raise SystemExit("no error")
with device.allocate(64, stream=device.default_stream) as w:
    assert runtime.find_block(int(w.handle))
for _ in range(300):
    device.allocate(64, stream=device.create_stream()).close()
seen = []
def work():
    Device().set_current()
    xlogmem.enable("cuda.core")
    seen.append(repr(Device().memory_resource))
thread = threading.Thread(target=work)
thread.start()
thread.join()
assert seen == ["<BlockMemoryResource device=0>"], seen
xlogmem.disable("cuda.core")
v = device.allocate(64, stream=a)
assert runtime.find_block(int(v.handle)) is None and runtime.find_block(int(x.handle))
try:
    xlogmem.enable("cuda.core")
except RuntimeError as error:
    assert "cuda.core has 64 bytes in use" in str(error), error
else:
    raise SystemExit("no error")
v.close()
xlogmem.enable("cuda.core")
x.close()
gc.collect()
runtime.reap_pending()
assert runtime.live_bytes == 0, runtime.live_bytes
"""
GREEN = HEAD + """
xlogmem.enable("cuda.core")
from cuda.core import ContextOptions, Device, SMResourceOptions
device = Device()
device.set_current()
(part,), _ = device.resources.sm.split(SMResourceOptions(count=16))
context = device.create_context(ContextOptions(resources=[part]))
a, b = context.create_stream(), device.create_stream()
x = device.allocate(64, stream=a)
x.fill(1, stream=a)                                                                 # the first
with use(b, read_write=int(x.handle)):
    x.fill(2, stream=b)                                                             # the second
former = device.set_current(context)
y = device.allocate(64, stream=a)
with use(a, write=int(y.handle)):
    y.fill(3, stream=a)
y.close()
device.set_current()
x.close()
xlogmem.get_runtime().reap_pending()
assert xlogmem.get_runtime().live_bytes == 0
"""
ON_RMM = """
import xlogmem
from xlogmem import sim
sim.install()
import cupy, rmm.mr
from numba import cuda
from rmm.allocators.cupy import rmm_cupy_allocator
from rmm.allocators.numba import RMMNumbaManager
cupy.cuda.set_allocator(rmm_cupy_allocator)
cuda.set_memory_manager(RMMNumbaManager)
before = rmm.mr.CallbackMemoryResource(lambda *_: 0, lambda *_: None)         # needs no GPU, unlike RMM's others
rmm.mr.set_per_device_resource(0, before)
xlogmem.enable("cupy", "numba")
import xlogmem.rmm
assert cupy.cuda.get_allocator() is rmm_cupy_allocator
assert rmm.mr.get_per_device_resource(0).runtime is xlogmem.get_runtime()
xlogmem.disable("cupy")
assert xlogmem.rmm.active_devices() == [0]
xlogmem.disable("numba")
assert xlogmem.rmm.active_devices() == [] and rmm.mr.get_per_device_resource(0) is before
xlogmem.rmm.enable()
xlogmem.enable("rmm", "cupy")
xlogmem.disable("rmm", "cupy")
assert xlogmem.rmm.active_devices() == [0]              # the program has enabled it itself
"""
PROGRAMS = [
    pytest.param(CUPY, "write/read", id="cupy", marks=needs("cupy", "nvidia.cuda_nvrtc")),
    pytest.param(CUPY_FREED, "read/free", id="cupy-freed", marks=needs("cupy", "nvidia.cuda_nvrtc")),
    pytest.param(CUPY_PINNED, "read/write", id="cupy-pinned", marks=needs("cupy")),
    pytest.param(CUPY_PINNED_FREED, "read/reuse", id="cupy-pinned-freed", marks=needs("cupy")),
    pytest.param(NUMBA, "write/read", id="numba", marks=needs("numba_cuda", "nvidia.cuda_nvcc")),
    pytest.param(CORE, "write/read", id="cuda.core", marks=needs("cuda.core", "nvidia.cuda_nvrtc")),
    pytest.param(GREEN, "write/write", id="cuda.core-green", marks=needs("cuda.core")),
]


@pytest.mark.parametrize(("program", "pair"), PROGRAMS)
def test_the_missing_wait_is_found(checked, program, pair):
    run = checked(program)
    assert (pair, True) in run.pairs, run.stderr
    finding = run.findings[run.pairs.index((pair, True))]
    for which in ("first", "second"):
        lines = [frame["line"] for frame in finding[which]["stack"] if frame["file"].endswith("program.py")]
        assert lines[0] == line_with(program, f"# the {which}"), run.stderr


@pytest.mark.parametrize(("program", "pair"), PROGRAMS)
def test_one_use_repairs_it(checked, program, pair):
    run = checked(program, "fixed")
    assert (run.returncode, run.pairs) == (0, []), run.stderr


@needs("cupy", "rmm", "numba_cuda")
def test_what_is_on_rmm_stays_there():
    """As cuDF sets it up.  RMM has a runtime of its own linked in, so nothing is allocated here."""
    run = subprocess.run([sys.executable, "-c", ON_RMM], capture_output=True, text=True, timeout=100,
                         env=variables(XLOGMEM_SIMULATE="1"))
    assert run.returncode == 0, run.stderr


@needs("cupy", "nvidia.cuda_nvrtc")
def test_the_real_cupy(checked):
    """Devices, views, no bytes, no memory, captures, many streams, undoing."""
    run = checked(REAL_CUPY)
    assert (run.returncode, run.pairs) == (0, []), run.stderr


@needs("cupy")
def test_the_real_cupys_page_locked_memory(checked):
    """The functions of cupyx, CuPy's own copies, devices, no bytes, no memory, undoing."""
    run = checked(REAL_CUPY_PINNED)
    assert (run.returncode, run.pairs) == (0, []), run.stderr


@needs("numba_cuda", "nvidia.cuda_nvcc")
def test_the_real_numba(checked):
    """Views, no memory, contexts that exist, a reset, undoing."""
    run = checked(REAL_NUMBA)
    assert (run.returncode, run.pairs) == (0, []), run.stderr


@needs("cuda.core")
def test_the_real_cuda_core(checked):
    """Copies, fills, DLPack, another stream for the free, no bytes, no memory, threads, undoing."""
    run = checked(REAL_CORE)
    assert (run.returncode, run.pairs) == (0, []), run.stderr
