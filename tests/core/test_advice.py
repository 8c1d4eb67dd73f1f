"""What messages advise is tried: the wrong call says it, and the program that follows it works.  Where the advice is
about order, the simulated driver reports no race, and reports one without the advice."""
from __future__ import annotations

import pickle
import threading
from collections.abc import Callable

import numpy as np
import pytest
from cuda.bindings import driver as cuda
from four_streams import FourStreams

import xlogmem
from xlogmem import DeviceRuntime, DeviceState, LaunchRecorder, StreamMisuseError, use
from xlogmem.sim.kernels import check

pytestmark = pytest.mark.simulator


class Array:
    """An array of another library."""

    def __init__(self, address: int, nbytes: int = 4096) -> None:
        self.__cuda_array_interface__ = {"version": 3, "shape": (nbytes,), "typestr": "|u1", "data": (address, False)}


def advised(call: Callable[[], object], *texts: str) -> None:
    """The call is refused, and its message has this advice."""
    with pytest.raises(Exception) as caught:  # noqa: PT011
        call()
    for text in texts:
        assert text in str(caught.value)


def enter(recorder: LaunchRecorder) -> None:
    with recorder:
        pass


# ---------------------------------------------------------------------------------------------- about order
@pytest.mark.parametrize("followed", [True, False])
def test_an_untracked_array_is_adopted_with_the_stream_that_made_it(four, driver, memory, followed):
    x = four()
    array = Array(memory)
    x.kernels.fill(x.S.handle, memory, 1, 1024)
    advised(lambda: enter(use(x.T, read=array)), "adopt(x, stream=s)", "untracked='ignore'")
    held = x.runtime.adopt(array, stream=x.S) if followed else None
    with use(x.T, read=array, untracked="raise" if followed else "ignore"):
        x.kernels.add(x.T.handle, memory, 1, 1024)
    if held is not None:
        held.free()
    check(cuda.cuCtxSynchronize())
    assert bool(driver.races()) == (not followed)
    driver.clear_races()


def test_an_array_in_a_library_is_allocated_here(four):
    """Allocate it from the runtime."""
    x = four()
    block = x.runtime.allocate(4096, x.S)
    x.kernels.fill(x.S.handle, block.ptr, 1, 1024)
    with use(x.T, read=Array(block.ptr)):
        x.kernels.add(x.T.handle, block.ptr, 1, 1024)
    block.free()


@pytest.mark.parametrize("advice", ["Leave that one first", "name the memory of both in one use()"])
def test_two_uses_of_one_block(four, advice):
    x = four()
    a, b = x.alloc(x.S), x.alloc(x.S)
    with use(x.S, write=a):
        advised(lambda: enter(use(x.T, write=[a, b])), advice)
        x.kernels.fill(x.S.handle, a.ptr, 1, 1)
    if advice.startswith("Leave"):
        with use(x.T, write=[a, b]):
            x.kernels.fill(x.T.handle, a.ptr, 2, 1)
    else:
        with use(x.T, write=[a, b]):
            x.kernels.fill(x.T.handle, a.ptr, 2, 1)
            x.kernels.fill(x.T.handle, b.ptr, 2, 1)
    a.free()
    b.free()


def test_on_conflict_wait(four):
    x = four()
    block = x.alloc(x.S)

    def launch() -> None:
        with use(x.T, write=block, on_conflict="wait"):
            x.kernels.fill(x.T.handle, block.ptr, 2, 1)

    with use(x.S, write=block):
        advised(lambda: enter(use(x.T, write=block, on_conflict="raise")), "on_conflict='wait'")
        thread = threading.Thread(target=launch)
        thread.start()
        x.kernels.fill(x.S.handle, block.ptr, 1, 1)
    thread.join()
    block.free()


def test_a_use_around_the_launch_of_a_graph(four):
    x = four()
    block = x.alloc(x.S)
    x.kernels.fill(x.S.handle, block.ptr, 1, 1)
    check(cuda.cuStreamBeginCapture(x.T.handle, cuda.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL))
    advised(lambda: enter(use(x.T, write=block)), "around the launch of the graph", "end the capture")
    x.kernels.fill(x.T.handle, block.ptr, 2, 1)
    graph = check(cuda.cuStreamEndCapture(x.T.handle))
    whole = check(cuda.cuGraphInstantiate(graph, 0))
    with use(x.T, write=block):
        check(cuda.cuGraphLaunch(whole, x.T.handle))
    block.free()
    check(cuda.cuCtxSynchronize())
    check(cuda.cuGraphExecDestroy(whole))
    check(cuda.cuGraphDestroy(graph))


def test_a_block_of_another_device():
    here, there = DeviceRuntime(), DeviceRuntime(1)
    S, block = here.acquire_stream(), there.allocate(64)
    advised(lambda: enter(use(S, read=block)), "xlogmem.enable_peer_access(0, 1)")
    xlogmem.enable_peer_access(0, 1)
    enter(use(S, read=block))
    xlogmem.disable_peer_access(0, 1)


def test_a_destroyed_stream(four, driver):
    x = four()
    block, handle = x.alloc(x.S), check(cuda.cuStreamCreate(1))
    stream = x.runtime.register_stream(handle)
    enter(use(stream, read=block))
    check(cuda.cuStreamDestroy(handle))
    advised(lambda: enter(use(stream, read=block)), "unregister_stream()", "make this call again")
    x.runtime.unregister_stream(handle)
    enter(use(x.T, read=block))
    block.free()
    assert driver.races() == ["DEAD STREAM: cuStreamIsCapturing was called with the handle of a destroyed stream"]
    driver.clear_races()


# ---------------------------------------------------------------------------------------------- the others
def test_what_a_use_advises(four, memory):
    x = four()
    block = x.alloc(x.S)
    advised(lambda: enter(use(x.S)), "pass read=, write= or read_write=", "read=[]")
    enter(use(x.S, read=[]))
    entered = use(x.S, read=block)
    enter(entered)
    advised(lambda: enter(entered), "make a new one for each launch, with use()")
    enter(use(x.S, read=block))
    advised(use, "use(stream, read=..., write=...)")
    late = use(x.S, read=block)
    with late:
        advised(lambda: late.read(memory), "name all of it first")
    advised(LaunchRecorder(x.S).read(block).commit, "Use it in a `with` statement")
    enter(LaunchRecorder(x.S).read(block))
    with pytest.warns(ResourceWarning, match="call commit\\(\\) or cancel\\(\\)"):
        use(x.S, read=block).preflight()
    dropped = use(x.S, read=block)
    dropped.preflight()
    dropped.cancel()
    beyond = Array(block.ptr, block.nbytes + 1)
    advised(lambda: enter(use(x.S, read=beyond)), "Make one of its size")
    enter(use(x.S, read=Array(block.ptr, block.nbytes)))
    advised(lambda: x.runtime.adopt(memory), "give nbytes")
    part = x.runtime.adopt(memory + 64, 128)
    advised(lambda: x.runtime.adopt(memory + 128, 128), "adopt the whole of it, or a part that is inside it")
    x.runtime.adopt(memory + 64, 64)
    part.free()
    block.free()


def test_what_runtimes_and_resources_advise():
    pool = xlogmem.PoolMemoryResource()
    advised(lambda: DeviceRuntime(1, resource=pool), "pass device_id=0", "make it with device_id=1")
    first = DeviceRuntime(0, resource=pool)
    DeviceRuntime(1, resource=xlogmem.PoolMemoryResource(device_id=1))
    advised(lambda: DeviceRuntime(resource=pool), "give each runtime a pool of its own")
    DeviceRuntime(resource=xlogmem.PoolMemoryResource())
    advised(lambda: DeviceRuntime(resource="pool"), "such as PoolMemoryResource()")
    advised(lambda: xlogmem.PoolMemoryResource(initial_pool_size="1TiB"), "give less, or leave it out")
    first.allocate(64).free()
    advised(lambda: xlogmem.LimitingResourceAdaptor(xlogmem.PoolMemoryResource()), '"8GiB"', "0.5")
    for limit in ("8GiB", 0.5):
        xlogmem.LimitingResourceAdaptor(xlogmem.PoolMemoryResource(), limit)
    advised(lambda: xlogmem.get_runtime("gpu"), "such as 'cuda:0'")
    assert DeviceRuntime("cuda:0").device_id == 0


def test_what_why_advises(four, monkeypatch):
    x = four()
    monkeypatch.setattr("xlogmem.observe.history.recording._latest", None)
    said, = xlogmem.why(x.T)
    assert "xlogmem.record_history() begins one" in said
    assert 'stacks="all"' in said
    with xlogmem.record_history(stacks="all"):
        block = x.alloc(x.S)
        enter(use(x.T, read=block))
        said, *_ = xlogmem.why(x.T)
    assert f"stream {x.T.id} waited for stream {x.S.id}" in said
    assert "test_advice.py" in said
    block.free()


def test_what_buffers_advise(state):
    buffer = state.full(4, 1, "int32")
    advised(lambda: buffer.__setitem__(0, 5), "buffer[...].fill(value)", "buffer[...].copy_from(array)")
    buffer[1].fill(5)
    buffer[2:].copy_from(np.array([6, 7], dtype="int32"))
    advised(lambda: np.asarray(buffer), "use to_numpy()")
    assert buffer.to_numpy().tolist() == [1, 5, 6, 7]
    advised(lambda: bool(buffer), "use its size")
    assert buffer.size == 4
    advised(lambda: pickle.dumps(buffer), "send its token")
    assert pickle.loads(pickle.dumps(buffer.token)) == buffer.token
    advised(lambda: xlogmem.from_dlpack(np.zeros(3), state=state), "from_dlpack(array, device=0)")
    assert xlogmem.from_dlpack(np.zeros(3), device=0, state=state).size == 3
    released = state.empty(3)
    released.release()
    advised(released.to_numpy, "Make another one")
    assert isinstance(state, DeviceState)


def test_an_array_of_the_host_is_copied_to_the_device(state):
    array, runtime = np.array([1, 2, 3]), state.runtime
    for call in (lambda: use(0, read=array, runtime=runtime), lambda: runtime.adopt(array)):
        advised(call, "copy it to the device, as cupy.asarray(x), xlogmem.from_numpy(x) and a tensor's x.cuda() do")
    copy = state.from_numpy(array)
    enter(use(0, read=copy, runtime=runtime))


def test_what_a_resolver_has_to_be(four):
    x = four()
    block = x.alloc(x.S)

    class Mine:
        pass

    advised(lambda: xlogmem.register_resolver(Mine), "resolver(what, hold)")
    xlogmem.register_resolver(Mine, lambda what, hold: [block])
    enter(use(x.T, read=Mine()))
    xlogmem.register_resolver(Mine, None)
    advised(lambda: enter(use(x.T, read=Mine())), "is not a block")
    block.free()


def test_a_second_runtime_orders_by_its_own_streams(four):
    """Take a stream of this one."""
    x, other = four(), DeviceRuntime()
    advised(lambda: other.allocate(64, x.S), "take a stream of this one")
    block = other.allocate(64, other.acquire_stream())
    with pytest.raises(StreamMisuseError):
        enter(use(x.S, read=block))
    assert isinstance(x, FourStreams)
