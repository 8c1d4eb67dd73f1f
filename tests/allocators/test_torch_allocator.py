"""PyTorch's tensors as blocks, through its functions for other allocators.

Each program has a process of its own: PyTorch takes an allocator once, and keeps it.
"""
from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch_stand_in
from c_table import ENVIRONMENT
from places import ROOT

pytestmark = [pytest.mark.simulator,
              pytest.mark.skipif(torch_stand_in.COMPILER is None, reason="no C++ compiler here")]

BEGIN = """
import sys
from pathlib import Path
from cuda.bindings import driver as cuda
import pytest
import torch_stand_in
import xlogmem
from xlogmem import use
from xlogmem import sim
from xlogmem.sim.kernels import check
driver = sim.install()
check(cuda.cuInit(0))
check(cuda.cuCtxSetCurrent(check(cuda.cuDevicePrimaryCtxRetain(0))))
torch = torch_stand_in.install(Path(sys.argv[1]))
"""
ENABLED = BEGIN + """
from foreign_streams import ForeignStream
from four_streams import FourStreams, at
from xlogmem import runtime as runtimes
x = FourStreams(driver)
runtimes._runtimes[0] = x.runtime
xlogmem.enable("torch")
"""
END = """
check(cuda.cuCtxSynchronize())
assert not driver.races(), driver.races()
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    return torch_stand_in.build(tmp_path_factory.mktemp("torch"))


@pytest.fixture
def play(library):
    def run(program: str, *arguments: str) -> str:
        path = os.pathsep.join(filter(None, (str(ROOT / "tests/helpers"), os.environ.get("PYTHONPATH"))))
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", program + END, str(library), *arguments],
            capture_output=True, text=True, cwd=ROOT / "tests", timeout=100,
            env=os.environ | ENVIRONMENT | {"PYTHONPATH": path})
        assert done.returncode == 0, done.stderr
        return done.stdout
    return run


@pytest.mark.parametrize("more", ["", ", pool_allocator=True", ", statistics=True"])
def test_the_error_of_a_budget_names_the_library(play, more):
    """... in tensors of new memory, and of memory that was freed before."""
    play(BEGIN + f"""
xlogmem.enable("torch", limit="64KiB"{more})
for _ in range(3):
    kept = [torch.empty(1 << 14) for _ in range(3)]
    budget = xlogmem.get_runtime().resource
    while not hasattr(budget, "holders"):
        budget = budget.upstream
    with pytest.raises(torch.OutOfMemoryError, match="Held by PyTorch: 49152 bytes"):
        torch.empty(1 << 20)
    assert budget.holders() == {{"PyTorch": 49152}}
    assert xlogmem.get_runtime().snapshot().by_tag()["PyTorch"]
    del kept
""")


def test_without_a_budget_tensors_have_no_tag(play):
    play(ENABLED + """
tensor = torch.empty(512)
assert list(x.runtime.snapshot().by_tag()) == [None]
""")


def test_a_tensor_is_a_block_until_it_is_dropped(play):
    play(ENABLED + """
home = ForeignStream()
torch.state.stream = home.handle
tensor = torch.empty(512)
found = x.runtime.find_block(tensor)
assert (found.ptr, x.runtime.live_bytes) == (tensor.data_ptr(), 512)
assert found.alloc_stream.handle == home.handle and found.alloc_stream.discipline == "opaque"
del tensor
x.runtime.reap_pending()
assert x.runtime.live_bytes == x.runtime.pending_bytes == 0
assert torch.empty(0).data_ptr() == 0 and x.runtime.counters()["allocations"] == 1
""")


@pytest.mark.parametrize("recorded", ["recorded", "not"])
def test_memory_is_free_after_what_the_recorded_streams_have_by_then(play, recorded):
    """The prefetcher: copies on one stream, computes on another, drops its tensors at once."""
    play(ENABLED + """
recorded = sys.argv[2] == "recorded"
loads, computes = ForeignStream(), ForeignStream()
torch.state.stream = loads.handle
event = check(cuda.cuEventCreate(2))
before = driver.calls("cuEventQuery"), driver.calls("cuEventSynchronize"), driver.calls("cuStreamSynchronize")
for batch in range(5):
    tensor = torch.empty(512)
    x.kernels.fill(loads.handle, tensor.ptr, batch, 1)
    check(cuda.cuEventRecord(event, loads.handle))
    check(cuda.cuStreamWaitEvent(computes.handle, event, 0))
    if recorded:
        tensor.record_stream(computes.handle)
    x.kernels.count_unequal(computes.handle, x.next_word(), tensor.ptr, batch, 1)
    del tensor
assert before == (driver.calls("cuEventQuery"), driver.calls("cuEventSynchronize"), driver.calls("cuStreamSynchronize"))
assert bool(driver.races()) != recorded
driver.clear_races()
""", recorded)


@pytest.mark.parametrize("declared", ["declared", "not"])
def test_a_use_orders_both_ways(play, declared):
    play(ENABLED + """
declared = sys.argv[2] == "declared"
home = ForeignStream()
torch.state.stream = home.handle
tensor = torch.empty(512)
x.kernels.fill(home.handle, tensor.ptr, 1, 1)
if declared:
    with use(x.T, read_write=tensor):
        x.kernels.add(x.T.handle, tensor.ptr, 1, 1)
else:
    x.kernels.add(x.T.handle, tensor.ptr, 1, 1)
x.kernels.add(home.handle, tensor.ptr, 1, 1)
assert bool(driver.races()) != declared
if not declared:
    check(cuda.cuCtxSynchronize())
del tensor
driver.clear_races()
""", declared)


def test_record_stream_passes_over_memory_of_others(play):
    play(ENABLED + """
tensor = torch.empty(8)
keep, tensor.ptr = tensor.ptr, int(check(cuda.cuMemAlloc(64)))
streams, calls = x.runtime.stream_count(), driver.calls("cuStreamGetId")
stream = ForeignStream()
tensor.record_stream(stream.handle)
assert (x.runtime.stream_count(), driver.calls("cuStreamGetId")) == (streams, calls)
check(cuda.cuMemFree(tensor.ptr))
tensor.ptr = keep
""")


def test_out_of_memory_is_pytorchs_own_error(play):
    play(ENABLED + """
from xlogmem.allocators import _pluggable
assert _pluggable.has_out_of_memory
with pytest.raises(torch.OutOfMemoryError, match=r"^CUDA out of memory. Tried to allocate 1125899906842624 bytes on "
                   r"GPU 0 from xlogmem: .*CUDA_ERROR_OUT_OF_MEMORY"):
    torch.empty(1 << 50)
assert torch.empty(8).data_ptr()                        # it goes on
""")


def test_other_errors_say_what_was_wrong(play):
    play(ENABLED + """
stream = ForeignStream()
torch.state.stream = stream.handle
tensor = torch.empty(8)
check(cuda.cuStreamBeginCapture(stream.handle, cuda.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL))
for call in (lambda: torch.empty(8), lambda: tensor.record_stream(stream.handle)):
    with pytest.raises(RuntimeError, match="captur") as caught:
        call()
    assert not isinstance(caught.value, torch.OutOfMemoryError)
check(cuda.cuGraphDestroy(check(cuda.cuStreamEndCapture(stream.handle))))
torch.state.stream = 0
for device in (-1, 64):
    torch.state.device = device
    with pytest.raises(RuntimeError, match=f"xlogmem: there is no device {device}"):
        torch.empty(8)
torch.state.device = 5
with pytest.raises(RuntimeError, match="ValueError: device 5 is not here"):
    torch.empty(8)
torch.state.device = 0
""")


def test_whatever_opening_a_runtime_raises_is_said(play):
    play(BEGIN + """
xlogmem.enable("torch")
from xlogmem.allocators import _pluggable
class Bad(Exception):
    def __str__(self):
        raise ValueError
for error, text in ((OSError("\\udcff" + 200 * "\N{EURO SIGN}"), r"OSError: \\?\u20ac{81}$"),
                    (Bad(), "Bad$"), (KeyboardInterrupt(), "KeyboardInterrupt")):
    def broken(device):
        raise error
    _pluggable.get_runtime = broken
    with pytest.raises(RuntimeError, match=text):
        torch.empty(8)
""")


def test_threads_allocate_without_the_gil_and_open_a_runtime_once(play):
    play(BEGIN + """
import threading
xlogmem.enable("torch")
barrier, failed = threading.Barrier(8), []
def work():
    try:
        barrier.wait()
        for _ in range(50):
            torch.empty(64)
    except BaseException as error:
        failed.append(error)
threads = [threading.Thread(target=work) for _ in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert not failed, failed
runtime = xlogmem.get_runtime()
runtime.reap_pending()
assert (runtime.counters()["allocations"], runtime.live_bytes) == (400, 0)
""")


def test_each_device_has_its_own_runtime(play):
    play(BEGIN + """
xlogmem.enable("torch")
first = torch.empty(8)
torch.state.device = 1
second = torch.empty(8)
assert xlogmem.get_runtime(0).find_block(first).device_id == 0
assert xlogmem.get_runtime(1).find_block(second).device_id == 1
assert xlogmem.get_runtime(1).find_block(first) is None
stream = xlogmem.get_runtime(1).acquire_stream()
second.record_stream(stream.handle)
del first, second
""")


def test_it_is_enabled_once_and_stays(play):
    play(BEGIN + """
xlogmem.enable("torch")
taken = torch._C._cuda_getAllocator()
xlogmem.enable("torch")
tensor = torch.empty(8)
xlogmem.enable("torch")                                 # CUDA is initialised, with our allocator
assert torch._C._cuda_getAllocator() is taken
with pytest.raises(RuntimeError, match=r"PyTorch does not take its own allocator back.*mem_pool"):
    xlogmem.disable("torch")
assert xlogmem.get_runtime().find_block(tensor) and xlogmem.get_runtime().live_bytes == 8
""")


def test_it_is_refused_once_cuda_is_initialised(play):
    play(BEGIN + """
torch.state.initialized = True
with pytest.raises(RuntimeError, match=r"PyTorch has initialised CUDA.*before.*use_mem_pool\\(xlogmem.alloc"):
    xlogmem.enable("torch")
assert torch.state.allocator is None
""")


def test_a_pytorch_without_cuda_is_refused(play):
    play(BEGIN + """
del torch._C._cuda_customAllocator
with pytest.raises(RuntimeError, match=r"PyTorch 2.11.0 was built without CUDA"):
    xlogmem.enable("torch")
""")


def test_on_rmm_it_goes_through_rmm(play):
    play(BEGIN + """
from types import ModuleType
from xlogmem.allocators import _pluggable
rmm = ModuleType("rmm.allocators.torch")
rmm.rmm_torch_allocator = torch.cuda.memory.CUDAPluggableAllocator(
    _pluggable.__file__, "xlogmem_torch_allocate", "xlogmem_torch_free")
sys.modules[rmm.__name__] = rmm
torch.cuda.memory.change_current_allocator(rmm.rmm_torch_allocator)
from xlogmem.allocators import torch as neighbour
assert neighbour.is_on_rmm()
torch.state.allocator = None
assert not neighbour.is_on_rmm()
""")


def test_segments_of_a_pool_are_blocks_and_none_is_given_where_there_is_no_memory(play):
    play(BEGIN + """
from xlogmem.allocators.torch import mem_pool
torch.state.initialized = True                          # PyTorch's own allocator stays
pool = mem_pool(no_split=True)
assert pool.options == {"no_split": True}
ptr = pool.segment(2 << 20)
runtime = xlogmem.get_runtime()
assert runtime.find_block(ptr + (1 << 20)).ptr == ptr
with pytest.raises(torch.OutOfMemoryError, match="Tried to allocate 1125899906842624"):
    pool.segment(1 << 50)
del pool
runtime.reap_pending()
assert runtime.live_bytes == 0
""")


def test_with_every_tensor_a_block_there_is_no_pool(play):
    play(BEGIN + """
from xlogmem.allocators.torch import mem_pool
mem_pool()
xlogmem.enable("torch")
with pytest.raises(RuntimeError, match=r"no pools with another allocator.*enable\\('torch'\\).*Leave out use_mem_pool"):
    mem_pool()
""")


def test_without_pytorchs_exceptions_out_of_memory_is_a_runtime_error(play):
    play(BEGIN.replace("import torch_stand_in\n", "import torch_stand_in\nimport xlogmem.allocators._pluggable\n") + """
from xlogmem.allocators import _pluggable
xlogmem.enable("torch")
assert not _pluggable.has_out_of_memory                 # it was imported before PyTorch was
with pytest.raises(RuntimeError, match="CUDA out of memory") as caught:
    torch.empty(1 << 50)
assert not isinstance(caught.value, torch.OutOfMemoryError)
""")


@pytest.mark.parametrize("resource", ["", "PoolMemoryResource"])
def test_tensors_that_are_dropped_in_a_capture_bring_a_warning(play, resource):
    """The graph does not own their memory, whichever stream they were made on.  A tensor that is kept is silent."""
    wanted = f"FourStreams(driver, resource=xlogmem.{resource}())" if resource else "FourStreams(driver)"
    play(ENABLED.replace("FourStreams(driver)", wanted) + """
home, other = ForeignStream(), ForeignStream()
torch.state.stream = other.handle
beside = torch.empty(512)
torch.state.stream = home.handle
tensor, kept = torch.empty(512), torch.empty(512)
graphs = [torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()]
graphs[0].capture_begin()
x.kernels.fill(home.handle, tensor.ptr, 1, 1)
del tensor, beside
with pytest.warns(RuntimeWarning, match="2 tensors of 1.0 KiB dropped while a graph was captured"):
    graphs[0].capture_end()
del kept
graphs[1].capture_begin()
graphs[1].capture_end()
for graph in graphs:
    check(cuda.cuGraphDestroy(graph.graph))
""")
