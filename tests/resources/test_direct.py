"""The direct resource: it is tracked, and the host waits before it frees."""
from __future__ import annotations

import random

import pytest
from cuda.bindings import driver as cuda
from four_streams import READ, WRITE
from places import HELPERS
from sim_support import python
from stress import together, words_at

from xlogmem import (
    AsyncMemoryResource,
    BlockState,
    DeviceRuntime,
    DirectMemoryResource,
    StreamMisuseError,
    StreamPool,
    UseAfterFreeError,
    use,
)
from xlogmem.sim.kernels import check

THREADS = 8


@pytest.mark.simulator
@pytest.mark.promise(127, 132, 133)
@pytest.mark.parametrize("dropped", [False, True])
def test_direct_frees_after_the_uses_and_its_stream(four, driver, dropped):
    """The host waits for every use and for the block's stream; then the bytes are gone, with nothing to reap."""
    x = four(resource=DirectMemoryResource())
    driver.set_policy("min")
    block = x.alloc(x.S)
    assert block.stream == x.S
    x.work(x.S, (block, WRITE))                         # unrecorded
    x.use(x.T, (block, READ))
    if dropped:
        driver.drop("cuEventSynchronize")
        driver.drop("cuEventSynchronize", 2)
    queued = []
    driver.on_call("cuMemFree", lambda: queued.append(driver.pending_operations()))
    block.free()
    assert (queued[0] > 0) == dropped
    assert driver.calls("cuEventSynchronize") == 2
    assert driver.calls("cuMemFree") == 1
    assert x.runtime.bytes_outstanding == 0
    if dropped:
        driver.clear_races()                            # there are some where cuMemFree does not wait


@pytest.mark.simulator
def test_direct_frees_after_what_is_on_its_stream_now(four, driver):
    """Also where no use is left that names the stream: "freed on S" means after everything on S."""
    x = four(resource=DirectMemoryResource())
    driver.set_policy("min")
    block = x.alloc(x.S)
    for _ in range(3):
        x.use(x.T, (block, WRITE))
    x.work(x.S)
    queued = []
    driver.on_call("cuMemFree", lambda: queued.append(driver.pending_operations()))
    block.free()
    assert queued == [0]


NO_WAIT = """
import sys
from xlogmem import DirectMemoryResource, PoolMemoryResource, sim
simulator = sim.install()
sys.path.append(sys.argv[1])
import sim_support
from four_streams import READ, WRITE, FourStreams
sim_support.retain()
resource = DirectMemoryResource()
if sys.argv[2] == "pool":
    resource = PoolMemoryResource(resource)
x = FourStreams(simulator, resource=resource)
for turn in range(2):
    block = x.alloc(x.S)
    x.work(x.S, (block, WRITE))                         # unrecorded
    x.use(x.T, (block, READ))
    if turn:
        for nth in (1, 2):
            simulator.drop("cuEventSynchronize", nth)
    block.free()
    getattr(resource, "trim", bool)()                   # a pool gives its chunk back
    print(sorted(race.split(":")[0] for race in simulator.races()))
"""


@pytest.mark.simulator
@pytest.mark.parametrize("resource", ["direct", "pool"])
def test_direct_frees_what_is_idle(resource):
    """Where cuMemFree waits for nothing, as CUDA 13 allows, frees are right all the same: the host has waited."""
    done = python("-c", NO_WAIT, str(HELPERS), resource, free_waits=0)
    assert done.stderr == ""
    assert done.stdout == "[]\n['RACE read/free', 'RACE write/free']\n"


@pytest.mark.promise(129, 131)
def test_direct_validates_streams_and_generations():
    """An unregistered stream is refused, and a stale block does not free the newer one at its address."""
    runtime, other = DeviceRuntime(resource=DirectMemoryResource()), DeviceRuntime()
    with pytest.raises(StreamMisuseError, match="another runtime"):
        runtime.allocate(64, other.default_stream)
    seen = {}
    for _ in range(20):
        block = runtime.allocate(64)
        if block.ptr in seen:
            with pytest.raises(UseAfterFreeError):
                seen[block.ptr].free()
            assert (block.state, runtime.live_bytes) == (BlockState.LIVE, 64)
        seen[block.ptr] = block
        block.free()
    assert len(seen) < 20


@pytest.mark.promise(69, 134)
def test_direct_is_chosen_for_memory_checkers(monkeypatch):
    """XLOGMEM_RESOURCE=direct puts every runtime on cuMemAlloc; without it the stream-ordered backend serves."""
    monkeypatch.delenv("XLOGMEM_RESOURCE", raising=False)
    assert type(DeviceRuntime().resource) is AsyncMemoryResource
    monkeypatch.setenv("XLOGMEM_RESOURCE", "direct")
    runtime = DeviceRuntime()
    assert type(runtime.resource) is DirectMemoryResource
    runtime.allocate(64).free()
    assert runtime.bytes_outstanding == 0


@pytest.mark.usefixtures("_busy_interpreter")
@pytest.mark.promise(211)
def test_direct_memory_in_many_threads(kernels, _context):
    """Random sizes, each written and read back; the accounting returns to what it was."""
    own = DeviceRuntime(resource=DirectMemoryResource(), stream_pool=StreamPool(max_streams=THREADS))
    kept = own.allocate(4096)
    baseline = own.bytes_outstanding
    streams = [own.acquire_stream() for _ in range(THREADS)]
    seed = 211

    def work(number: int) -> None:
        check(cuda.cuCtxSetCurrent(_context))
        draw, stream = random.Random(f"{seed} {number}"), streams[number]
        for turn in range(64):
            count, value = draw.randint(16, 1024), draw.getrandbits(32)         # 64 to 4,096 bytes
            block = own.allocate(4 * count, stream)
            with use(stream, write=block):
                kernels.fill(stream.handle, block.ptr, value, count)
            with use(stream, read=block):
                seen = words_at(block.ptr, count, stream)
            assert seen == [value] * count, f"seed {seed}, thread {number}, turn {turn}"
            if turn % 2:
                block.free()
            del block

    together(work, THREADS)
    own.reap_pending()
    assert own.bytes_outstanding == baseline == kept.nbytes
    assert own.counters()["allocations"] == own.counters()["frees"] + 1 == 64 * THREADS + 1
