"""What `use`, `adopt` and `find_block` take, and the current stream, with the libraries themselves.  Without a GPU."""
from __future__ import annotations

import pytest
from checked_libraries import needs

pytestmark = pytest.mark.simulator

START = """
import gc, sys
import xlogmem
from xlogmem import StreamMisuseError, use
runtime = xlogmem.get_runtime()
side = runtime.acquire_stream()

def tracked(what, *others):
    "It is refused; adopted, it is tracked, under its other names too, until its owner ends."
    try:
        use(side, read=what).preflight()
    except StreamMisuseError as error:
        assert "untracked" in str(error), error
    else:
        raise AssertionError("an untracked array was taken")
    with use(side, read=what, untracked="adopt") as recorder:
        assert recorder.recorded_count == 1
    found = runtime.find_block(what)
    assert found is not None
    for other in others:
        assert runtime.find_block(other) == found, other
    with use(side, write=[what, {"others": others}]):
        pass
    return found.ptr

def refuses_host_memory(what):
    try:
        use(side, read=what)
    except TypeError as error:
        assert "is host memory" in str(error), error
    else:
        raise AssertionError("host memory was taken")

def takes_page_locked_memory(what):
    block = runtime.adopt(what)
    with use(xlogmem.host, write=what):
        pass
    block.free()
"""
CUPY = START + """
import cupy, numpy
x = cupy.zeros(1024, "f4")
ptr = tracked(x[16:64], x, x.reshape(32, 32), x.data, x.data.ptr + 8)
gc.collect()
assert runtime.find_block(x).ptr == ptr == x.data.ptr           # the view is gone, its memory is not
block = runtime.adopt(cupy.cuda.alloc(512), stream=side)
assert block.nbytes == 512
refuses_host_memory(numpy.zeros(4))
takes_page_locked_memory(cupy.cuda.alloc_pinned_memory(64))
stream = cupy.cuda.Stream(non_blocking=True)
with stream, use(None, write=x) as recorder:
    assert recorder.stream.handle == stream.ptr
with use("current", read=x) as recorder:
    assert recorder.stream.handle == 1
del x
gc.collect()
assert runtime.find_block(ptr) is None
"""
NUMBA = START + """
import warnings
import numpy
from numba import cuda
warnings.simplefilter("ignore")
x = cuda.device_array(1024, numpy.float32)
ptr = tracked(x[16:64], x, x.gpu_data, x.gpu_data.owner, x.reshape(32, 32))
gc.collect()
assert runtime.find_block(x).ptr == ptr
takes_page_locked_memory(cuda.pinned_array(16))
with use(None, write=x) as recorder:
    assert recorder.stream.handle == 1
del x
gc.collect()
assert runtime.find_block(ptr) is None
"""
CORE = START + """
from cuda.bindings import driver
from cuda.core import Device
device = Device()
device.set_current()
stream = device.create_stream()
x = device.allocate(4096, stream=stream)
address = int(x.handle)
ptr = tracked(x, driver.CUdeviceptr(address), address + 4095)
assert ptr == address
try:
    use(None, read=x)
except TypeError as error:
    assert "cuda.core has not" in str(error)
else:
    raise AssertionError("cuda.core has a current stream")
with use(stream, write=x):
    pass
x.close(stream)
assert runtime.find_block(ptr) is None
y = device.allocate(4096, stream=stream)
block = runtime.adopt(y, stream=stream)
assert (block.ptr, block.nbytes) == (int(y.handle), 4096)
block.free()
y.close(stream)
"""


@pytest.mark.parametrize("program", [
    pytest.param(CUPY, id="cupy", marks=needs("cupy", "nvidia.cuda_nvrtc")),
    pytest.param(NUMBA, id="numba", marks=needs("numba_cuda", "nvidia.cuda_nvcc")),
    pytest.param(CORE, id="cuda.core", marks=needs("cuda.core")),
])
def test_the_libraries_themselves(checked, program):
    run = checked(program)
    assert (run.returncode, run.pairs) == (0, []), run.stderr
