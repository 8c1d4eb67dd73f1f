"""PyTorch itself under the check: on its own pool, and where the program has chosen the driver's.

Without a GPU: its builds for CUDA 13 start on the simulated driver.  Its kernels are not known there, so that these
programs copy.
"""
from __future__ import annotations

import json
import subprocess
import sys

import pytest
from checked_libraries import torch_for_cuda

pytestmark = pytest.mark.simulator
if not torch_for_cuda():
    pytestmark = [pytestmark, pytest.mark.skip(reason="needs a checked library: torch, for CUDA")]

BEGIN = """
import queue, sys, threading
import torch
fixed = "fixed" in sys.argv
count = 1 << 14
host = torch.ones(count).pin_memory()
main, side = torch.cuda.current_stream(), torch.cuda.Stream()

def upload(target=None):
    made = torch.empty(count, device="cuda") if target is None else target
    return made.copy_(host, non_blocking=True)
"""
END = """
torch.cuda.synchronize()
print("end on", torch.cuda.get_allocator_backend())
"""
FRESH = """
x = torch.empty(count, device="cuda")
with torch.cuda.stream(side):
    upload(x)                                           # nothing was there before
"""
NOT_FRESH = """
for _ in range(3):
    x = torch.empty(count, device="cuda")
    if fixed:
        side.wait_stream(main)
    with torch.cuda.stream(side):
        upload(x)
    main.wait_stream(side)
    y = x.clone()
    del x, y
"""
DROPPED = """
x = upload()
side.wait_stream(main)
with torch.cuda.stream(side):
    y = x.clone()
if fixed:
    x.record_stream(side)
del x
x = upload()
main.wait_stream(side)
"""
DROPPED_IN_TIME = """
for _ in range(3):
    x = upload()
    side.wait_stream(main)
    with torch.cuda.stream(side):
        y = x.clone()
    del x                                               # the next allocation comes after the wait
    main.wait_stream(side)
"""
HANDED_OVER = """
made, dropped = queue.Queue(), threading.Semaphore(1)

def produce():
    with torch.cuda.stream(torch.cuda.Stream()):
        for _ in range(20):
            dropped.acquire()                           # so that each has the memory of the one before
            x = upload()
            made.put((x, torch.cuda.current_stream().record_event()))
            del x
    made.put(None)

producer = threading.Thread(target=produce)
producer.start()
while item := made.get():
    x, event = item
    side.wait_event(event)
    with torch.cuda.stream(side):
        y = x.clone()
    if fixed:
        x.record_stream(side)
    del x, y, item
    dropped.release()
producer.join()
"""
REPLAYED = """
x = upload()
graphs = [torch.cuda.CUDAGraph() for _ in range(2)]
with torch.cuda.graph(graphs[0]):
    a = x.clone()
    b = a.clone()
    del a
    c = b.clone()
    del b
with torch.cuda.graph(graphs[1], pool=graphs[0].pool()):
    d = c.clone()
    e = d.clone()
    del d
side.wait_stream(main)
for _ in range(3):
    with torch.cuda.stream(side):
        for graph in graphs:
            graph.replay()
    if fixed:
        main.wait_stream(side)
    y = e.clone()
    side.wait_stream(main)
del c, e, graphs
torch.cuda.empty_cache()
upload()
"""
CAPTURED = """
x = upload()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    capturing = torch.cuda.current_stream()
    a = x.clone()
    side.wait_stream(capturing)
    with torch.cuda.stream(side):
        b = torch.empty_like(x)
        b.copy_(a)
    if fixed:
        capturing.wait_stream(side)
    address = a.data_ptr()
    del a
    c = x.clone()                                       # in the place of a, which the branch may still read
    assert c.data_ptr() == address
    capturing.wait_stream(side)
graph.replay()
"""
PRIVATE = """
pool = torch.cuda.MemPool()
with torch.cuda.use_mem_pool(pool):
    x = upload()
    side.wait_stream(main)
    with torch.cuda.stream(side):
        y = x.clone()
    if fixed:
        main.wait_stream(side)
    del x
    x = upload()
main.wait_stream(side)
del x, y, pool
torch.cuda.empty_cache()
"""
FSDP = """
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.testing._internal.distributed.fake_pg import FakeStore
dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=1)
if not fixed:                                           # its stream of reductions does not wait for the optimizer
    wait_stream = torch.cuda.Stream.wait_stream
    torch.cuda.Stream.wait_stream = lambda self, other: None if self.priority < 0 else wait_stream(self, other)

class Scaled(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(count, device="cuda"))

    def forward(self, x):
        return x * self.weight

model = torch.nn.Sequential(Scaled(), Scaled())
for part in model:
    fully_shard(part)
fully_shard(model)
for _ in range(3):
    model(torch.ones(count, device="cuda")).sum().backward()
    read = [one.grad._local_tensor.clone() for one in model.parameters()]   # as an optimizer does
    model.zero_grad()
"""
PRODUCTS = """
layer = torch.nn.Linear(128, 128, device="cuda")
x, y = torch.empty(128, 128, device="cuda"), torch.empty(128, 128, device="cuda")
side.wait_stream(main)
x.copy_(host.view(128, 128), non_blocking=True)
if fixed:
    side.wait_stream(main)
with torch.cuda.stream(side):
    torch.mm(x, y)
    z = layer(x)
main.wait_stream(side)
"""
BACKENDS = {"own": "native", "driver": "cudaMallocAsync"}


@pytest.fixture
def check(tmp_path, clean_environment):
    """What is found in a program on PyTorch's own pool, or on the driver's: the pairs, and whether for certain."""
    def run(program, *arguments, pool="own", end=END):
        (tmp_path / "program.py").write_text(BEGIN + program + end)
        kept = {name: value for name, value in clean_environment.items() if not name.startswith("PYTORCH")}
        done = subprocess.run(
            [sys.executable, "-m", "xlogmem", "check", "--no-gpu", "--json", "out.json", "--", sys.executable,
             "program.py", *arguments], capture_output=True, text=True, cwd=tmp_path, timeout=300,
            env=kept | {"PYTORCH_CUDA_ALLOC_CONF": f"backend:{BACKENDS[pool]}"})
        assert "Traceback" not in done.stderr, done.stderr
        assert not end or f"end on {BACKENDS[pool]}" in done.stdout, done.stderr
        found = json.loads((tmp_path / "out.json").read_text())["findings"]
        return {(one["pair"], one["certain"]) for one in found}

    return run


@pytest.mark.parametrize(("program", "pair"), [
    (NOT_FRESH, "alloc/use"),
    (DROPPED, "read/reuse"),
    (HANDED_OVER, "read/reuse"),
    (REPLAYED, "write/read"),
    (CAPTURED, "read/write"),
    (PRIVATE, "read/reuse"),
    (FSDP, "read/reuse"),
    (PRODUCTS, "write/read"),
], ids=["not-fresh", "dropped", "handed-over", "replayed", "captured", "private-pool", "fsdp", "products"])
def test_what_is_wrong_is_found_and_its_repaired_twin_is_right(check, program, pair):
    assert (pair, True) in check(program)
    assert check(program, "fixed") == set()


@pytest.mark.parametrize(("program", "pair", "is_right"), [
    (NOT_FRESH, "alloc/use", True),
    (DROPPED, "read/free", True),
    (HANDED_OVER, "read/free", True),
    (FSDP, "read/free", False),                         # what is right on PyTorch's pool is not on the driver's
], ids=["not-fresh", "dropped", "handed-over", "fsdp"])
def test_a_program_that_has_chosen_the_drivers_pool(check, program, pair, is_right):
    assert (pair, True) in check(program, pool="driver")
    assert is_right is (check(program, "fixed", pool="driver") == set())


def test_memory_that_nothing_has_used_before_is_there(check):
    assert check(FRESH) == set()
    assert check(FRESH, pool="driver") == {("alloc/use", True)}


def test_a_wait_in_time_is_in_time(check):
    assert check(DROPPED_IN_TIME) == set()
    assert check(DROPPED_IN_TIME, pool="driver") == {("read/free", True)}


def test_what_is_never_waited_for_is_wrong(check):
    """... though the memory was not handed out again before the program ended."""
    assert check(DROPPED, end="") >= {("read/reuse", True)}
    program = DROPPED.partition("x = upload()\nmain")[0]
    assert check(program, end="") == {("read/free", True)}
    assert check(program, "fixed", end="") == set()


def test_what_no_kernel_has_computed_is_zero(check):
    """PyTorch goes on by results that it reads on the host; the memory had another owner before."""
    assert check("""
x, square = torch.zeros(8, device="cuda"), torch.eye(4).cuda()
for _ in range(4):
    ones = [torch.ones(128).cuda() for _ in range(8)]
    del ones
    assert not x.any().item()
    torch.linalg.solve(square, square), torch.linalg.inv(square)
    assert torch.nonzero(x).shape == (0, 1)
""") == set()


def test_torch_compile_on_its_own_pool(check):
    """It saves the state of a pool and restores it."""
    program = """
@torch.compile(backend="cudagraphs")
def twice(x):
    first = x.clone()
    return first.clone(), first

for _ in range(5):
    torch.compiler.cudagraph_mark_step_begin()
    y, first = twice(upload())
    z = y.clone()
    del y, first, z
"""
    assert check(program) == set()


def test_threads_that_allocate_while_the_program_ends(check):
    program = """
keep = [upload() for _ in range(10)]

def run():
    while True:
        upload()

threading.Thread(target=run, daemon=True).start()
"""
    assert check(program) == set()
