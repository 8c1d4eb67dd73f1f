"""PyTorch itself on its enabled allocator.  Each program has a process of its own: PyTorch takes an allocator once."""
from __future__ import annotations

import importlib.util
import os
import subprocess
import sys

import pytest
from places import ROOT

pytestmark = [pytest.mark.gpu,
              pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="PyTorch is not installed")]

ENABLED = """
import sys
import pytest
import torch
import xlogmem
xlogmem.enable("torch")
runtime = xlogmem.get_runtime
"""


@pytest.fixture
def play():
    def run(program: str, *arguments: str) -> None:
        environment = {name: value for name, value in os.environ.items() if name != "XLOGMEM_SIMULATE"}
        done = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, timeout=100,
                              env=environment | {"PYTHONPATH": os.pathsep.join(sys.path)}, cwd=ROOT / "tests")
        assert done.returncode == 0, done.stderr
    return run


def test_tensors_are_blocks(play):
    play(ENABLED + """
x = torch.arange(1000, device="cuda")
assert runtime().find_block(x).ptr == x.untyped_storage().data_ptr()
assert runtime().find_block(x[500:]) == runtime().find_block(x)
assert int(x.sum()) == 499500 and runtime().live_bytes >= 8000
del x
torch.cuda.synchronize()
runtime().reap_pending()
""")


@pytest.mark.parametrize("recorded", ["recorded", "not"])
def test_recorded_streams_are_waited_for(play, recorded):
    """Read on a slow stream, dropped, and allocated again: without `record_stream` others' data is read."""
    play(ENABLED + """
side, wrong = torch.cuda.Stream(), torch.zeros((), dtype=torch.int64, device="cuda")
torch.cuda.synchronize()
for batch in range(50):
    x = torch.full((1 << 18,), batch, dtype=torch.int32, device="cuda")
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        torch.cuda._sleep(1_000_000)
        wrong += (x != batch).sum()
    if sys.argv[1] == "recorded":
        x.record_stream(side)
    del x
    y = torch.full((1 << 18,), -1, dtype=torch.int32, device="cuda")
    del y
torch.cuda.synchronize()
assert (int(wrong) == 0) == (sys.argv[1] == "recorded"), int(wrong)
""", recorded)


@pytest.mark.parametrize("declared", ["declared", "not"])
def test_a_use_orders_both_ways(play, declared):
    play(ENABLED + """
from contextlib import nullcontext
side, wrong = torch.cuda.Stream(), 0
x = torch.zeros(1 << 20, dtype=torch.int32, device="cuda")
for turn in range(20):
    torch.cuda._sleep(4_000_000)                        # without the use, the other stream is far ahead
    x += 1
    with torch.cuda.stream(side), xlogmem.use(side, read_write=x) if sys.argv[1] == "declared" else nullcontext():
        x *= 2
torch.cuda.synchronize()
expected = 0
for turn in range(20):
    expected = (expected + 1) * 2
wrong = int((x != expected).sum())
assert (wrong == 0) == (sys.argv[1] == "declared"), wrong
""", declared)


def test_out_of_memory_is_pytorchs_own_error_and_it_goes_on(play):
    play(ENABLED + """
with pytest.raises(torch.OutOfMemoryError, match=r"^CUDA out of memory. Tried to allocate .* from xlogmem: "):
    torch.empty(1 << 50, dtype=torch.uint8, device="cuda")
assert int(torch.ones(10, device="cuda").sum()) == 10
""")


def test_a_network_learns(play):
    """Autograd frees in its own threads, without the GIL."""
    play(ENABLED + """
torch.manual_seed(1)
net = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1)).cuda()
adam = torch.optim.Adam(net.parameters(), 1e-2)
x = torch.randn(512, 64, device="cuda")
y = x.sum(1, keepdim=True)
losses = []
for _ in range(60):
    loss = ((net(x) - y) ** 2).mean()
    adam.zero_grad()
    loss.backward()
    adam.step()
    losses.append(float(loss))
assert losses[-1] < losses[0] / 5, losses
assert runtime().counters()["allocations"] > 1000
""")


def test_a_pool_of_segments_for_a_part_of_a_program(play):
    play("""
import torch
import xlogmem
from xlogmem.allocators.torch import mem_pool
before = torch.ones(1000, device="cuda")
pool = mem_pool()
with torch.cuda.use_mem_pool(pool):
    x = torch.arange(1000, device="cuda")
assert xlogmem.get_runtime().find_block(x) and xlogmem.get_runtime().find_block(before) is None
side = torch.cuda.Stream()
with torch.cuda.stream(side), xlogmem.use(side, read_write=x):
    x += 1
assert int(x.sum()) == 500500
del x, pool
torch.cuda.synchronize()
torch.cuda.empty_cache()
xlogmem.get_runtime().reap_pending()
assert xlogmem.get_runtime().live_bytes == 0
""")


def test_it_is_refused_after_the_first_tensor(play):
    play("""
import pytest
import torch
import xlogmem
torch.ones(1, device="cuda")
with pytest.raises(RuntimeError, match="PyTorch has initialised CUDA"):
    xlogmem.enable("torch")
""")


def test_a_tensor_that_is_dropped_in_a_capture_brings_a_warning(play):
    """Whichever stream it was made on; the graph does not own its memory."""
    play(ENABLED + """
a, b, out = (torch.full((1 << 10,), 1.0, device="cuda") for _ in range(3))
torch.cuda.synchronize()
graph, again = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
with pytest.warns(RuntimeWarning, match="1 tensor of 4.0 KiB dropped while a graph was captured"):
    with torch.cuda.graph(graph):
        torch.add(a, b, out=out)
        del a
import warnings
warnings.simplefilter("error")
with torch.cuda.graph(again):
    torch.add(b, b, out=out)
again.replay()
torch.cuda.synchronize()
assert float(out.sum()) == 2048.0
""")
