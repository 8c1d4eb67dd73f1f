"""Twins of public reports of graphs: wrong as reported, with plain calls of the driver; with xlogmem right, or refused
with a text that says what to do."""
from __future__ import annotations

import ctypes
import gc
import mmap
from typing import Any

import numpy
import pytest
from cuda.bindings import driver as cuda
from four_streams import READ, READ_WRITE, RELAXED, WRITE
from graphs_by_hand import by_hand, in_thread, take_races

from xlogmem import (
    AsyncMemoryResource,
    BlockState,
    DeviceState,
    DirectMemoryResource,
    PinnedMemoryResource,
    PoolMemoryResource,
    StreamMisuseError,
    capture,
    capturing,
    host,
    use,
)
from xlogmem.sim.kernels import check

pytestmark = pytest.mark.simulator
ILLEGAL_ADDRESS = cuda.CUresult.CUDA_ERROR_ILLEGAL_ADDRESS
INVALIDATED, UNSUPPORTED = "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED", "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"
TWICE = 2                                               # launches


@pytest.fixture
def x(four):
    return four()


@pytest.fixture
def state(x):
    state = DeviceState(x.runtime)
    yield state
    state.__dict__.clear()                              # pytest keeps the state, which must not keep the runtime


def word_of(x: Any, ptr: int) -> int:
    """The first word there, when all is done."""
    check(cuda.cuCtxSynchronize())
    return int.from_bytes(x.driver.peek(ptr, 4), "little")


def words(address: int) -> Any:
    """The first of the host's words there."""
    return ctypes.c_uint32.from_address(address)


def pinned_pool() -> PoolMemoryResource:
    return PoolMemoryResource(PinnedMemoryResource())


# ---------------------------------------------------------------------------------------------- NVIDIA/warp#1714
def garbage(what: Any) -> None:
    """Leave it to a collector."""
    cycle = [what]
    cycle.append(cycle)


class Finalized:
    """An array of Warp's, which its finalizer frees."""

    def __init__(self, ptr: int, errors: list[str]) -> None:
        self.ptr, self.errors = ptr, errors

    def __del__(self) -> None:
        self.errors.append(cuda.cuMemFree(self.ptr)[0].name)


def test_warp_1714_as_reported(x):
    """Another thread collects garbage during a capture: the driver refuses the free, and ends the capture."""
    ptr, errors = int(check(cuda.cuMemAlloc(512))), []
    garbage(Finalized(ptr, errors))
    with by_hand(x.S, "global") as made:
        in_thread(gc.collect)
    assert (errors, made.failed) == ([UNSUPPORTED], [INVALIDATED])
    check(cuda.cuMemFree(ptr))


@pytest.mark.parametrize("resource", [AsyncMemoryResource, DirectMemoryResource,
                                      lambda: PoolMemoryResource(AsyncMemoryResource())])
def test_warp_1714_with_xlogmem(four, resource):
    x = four(resource=resource())
    a, b = x.alloc(x.S), x.alloc(x.T)
    x.use(x.T, (b, WRITE))
    with capture(x.S, mode="global") as graph:
        x.use(x.S, (a, WRITE))
        garbage(b)
        del b
        in_thread(gc.collect)
        in_thread(lambda: x.runtime.allocate(512, x.U).free())
        x.use(x.S, (a, READ_WRITE))
    graph.launch(x.S)
    assert word_of(x, a.ptr) == 2                       # filled with 1, and 1 more
    graph.close()
    x.runtime.synchronize()
    x.runtime.reap_pending()
    assert x.runtime.live_bytes == 512


# ---------------------------------------------------------------------------------------------- NVIDIA/warp#1641
def test_warp_1641_as_reported(x):
    """The body of a condition is captured by itself.  Memory of the parent that is dropped meanwhile is freed."""
    ptr = int(check(cuda.cuMemAllocAsync(512, x.S.handle)))
    with by_hand(x.S) as parent:
        x.kernels.fill(x.S.handle, ptr, 1, 1)
        with by_hand(x.T):
            check(cuda.cuMemFreeAsync(ptr, x.U.handle))
    check(cuda.cuGraphLaunch(parent.executable, x.S.handle))
    assert any("RACE free/use" in race for race in take_races(x))


def test_warp_1641_with_xlogmem(x):
    """What the body does is not known to the graph, and is refused; the parent's memory stays."""
    a = x.alloc(x.S)
    with capture(x.S) as graph:
        x.use(x.S, (a, WRITE))
        with by_hand(x.T):                              # as PyTorch and cuda.core do, on a stream of its own
            with pytest.raises(StreamMisuseError, match=r"is capturing a graph.*capture with xlogmem.capture"):
                x.use(x.T, (a, READ))
            with pytest.raises(StreamMisuseError, match="takes part in another capture"):
                graph.fork(x.T)
            with pytest.raises(StreamMisuseError, match="is capturing a graph"):
                x.runtime.allocate(512, x.T)
            a.free()
        x.alloc(x.U).free()
    assert a.state is BlockState.RETIRED
    for _ in range(TWICE):
        graph.launch(x.S)
    graph.close()
    assert a.state is BlockState.FREED


def test_warp_1641_in_a_capture_that_pauses(x):
    """As Warp does: the body is captured on the stream of the parent, whose capture is ended for it."""
    a = x.alloc(x.S)
    with (pytest.raises(StreamMisuseError, match=r"ended, or was spoilt, before this `with` statement did"),
          capture(x.S)):
        x.use(x.S, (a, WRITE))
        check(cuda.cuGraphDestroy(check(cuda.cuStreamEndCapture(x.S.handle))))
        check(cuda.cuStreamBeginCapture(x.S.handle, RELAXED))
        with pytest.raises(StreamMisuseError, match=r"is capturing a graph.*capture with xlogmem.capture"):
            x.use(x.S, (a, READ))
        a.free()
        assert a.state is BlockState.RETIRED
    check(cuda.cuGraphDestroy(check(cuda.cuStreamEndCapture(x.S.handle))))
    x.runtime.reap_pending()
    assert x.runtime.live_bytes == 0


# ---------------------------------------------------------------------------------------------- pytorch#161583
def uploads(x: Any, numbers: list[int], staging: list[int], targets: list[Any]) -> Any:
    """A graph that uploads each number from its staging memory."""
    with by_hand(x.S) as made:
        for number, source, target in zip(numbers, staging, targets, strict=True):
            words(source).value = number
            check(cuda.cuMemcpyHtoDAsync(target.ptr, source, 4, x.S.handle))
    return made.executable


def test_pytorch_161583_as_reported(x):
    """Staging memory that a pool hands out again in the capture has the last number at each launch."""
    targets = [x.alloc(x.S), x.alloc(x.S)]
    staging = int(check(cuda.cuMemHostAlloc(512, 0)))
    check(cuda.cuGraphLaunch(uploads(x, [1, 2], [staging, staging], targets), x.S.handle))
    assert [word_of(x, target.ptr) for target in targets] == [2, 2]
    check(cuda.cuMemFreeHost(staging))


def test_pytorch_161583_with_xlogmem(x):
    """The graph holds its staging memory; when it is closed, the pool has the memory again."""
    pool, targets = pinned_pool(), [x.alloc(x.S), x.alloc(x.S)]
    sizes = set()
    for turn in range(3):
        with capture(x.S) as graph:
            for number, target in enumerate(targets, 10 * turn):
                staging = x.runtime.allocate(512, host, resource=pool)
                with use(host, write=staging):
                    words(staging.ptr).value = number
                with use(x.S, read=staging, write=target):
                    check(cuda.cuMemcpyHtoDAsync(target.ptr, staging.ptr, 4, x.S.handle))
                staging.free()
        for stream in (x.S, x.T):
            graph.launch(stream)
        assert [word_of(x, target.ptr) for target in targets] == [10 * turn, 10 * turn + 1]
        graph.close()
        sizes.add(pool.pool_size())
    x.runtime.synchronize()
    assert len(sizes) == 1, "the memory of a closed graph was not used again"


# ---------------------------------------------------------------------------------------------- pytorch#167507
@pytest.mark.parametrize("way", ["as reported", "with xlogmem"])
def test_pytorch_167507(x, way):
    """The copy in a graph reads host memory when the launch gets there, not when it was captured or launched."""
    x.driver.set_policy("min")                          # work runs when it is waited for
    staging, target = x.runtime.allocate(512, host, resource=pinned_pool()), x.alloc(x.S)
    number = words(staging.ptr)
    number.value = 1
    with capture(x.S) as graph, use(x.S, read=staging, write=target):
        check(cuda.cuMemcpyHtoDAsync(target.ptr, staging.ptr, 4, x.S.handle))
    if way == "as reported":
        check(cuda.cuGraphLaunch(cuda.CUgraphExec(graph.handle), x.S.handle))
        number.value = 2                                # the next step's
    else:
        graph.launch(x.S)
        with use(host, write=staging):
            number.value = 2
    assert word_of(x, target.ptr) == (2 if way == "as reported" else 1)
    graph.close()
    staging.free()


# ---------------------------------------------------------------------------------------------- candle#3352
def test_candle_3352_as_reported(x):
    """Numbers are uploaded from a temporary of the host: a launch reads it where it was."""
    temporary, target = mmap.mmap(-1, 4096), x.alloc(x.S)
    executable = uploads(x, [1], [ctypes.addressof(ctypes.c_char.from_buffer(temporary))], [target])
    temporary.close()
    check(cuda.cuGraphLaunch(executable, x.S.handle))
    assert cuda.cuStreamSynchronize(x.S.handle)[0] == ILLEGAL_ADDRESS
    x.driver.reset()                                    # the context has failed


def test_candle_3352_with_xlogmem(x, state):
    """A temporary is refused; page-locked memory and the device's stay with the graph."""
    dims = numpy.arange(1, 5, dtype="u4")
    target = state.empty(4, "u4", x.S)
    with capture(x.S) as graph:
        with pytest.raises(StreamMisuseError, match=r"which the graph does not hold.*a Buffer in page-locked memory"):
            target.copy_from(dims, x.S)
        staging = state.empty(4, "u4", host, resource=pinned_pool())
        with staging.map(write=True) as array:
            array[:] = dims
        target.copy_from(staging, x.S)
        staging.release()
    held = target.ptr
    target.release()
    for _ in range(TWICE):
        x.alloc(x.S).free()
        graph.launch(x.S)
    assert word_of(x, held + 4) == 2
    graph.close()


# ---------------------------------------------------------------------------------------------- NVIDIA/cuopt#1748
def test_cuopt_1748_as_reported(x):
    """An allocation that knows no streams ends the capture.  A batch of copies is refused and does not end it, so that
    the graph lacks the copies (RMM's issue 2518)."""
    with by_hand(x.S, "thread_local") as made:
        assert cuda.cuMemAlloc(512)[0].name == UNSUPPORTED
    assert made.failed == [INVALIDATED]
    source, target = (int(check(cuda.cuMemAlloc(512))) for _ in range(2))
    x.kernels.fill(x.S.handle, source, 7, 1)
    x.kernels.fill(x.S.handle, target, 1, 1)
    attributes = cuda.CUmemcpyAttributes()
    attributes.srcAccessOrder = cuda.CUmemcpySrcAccessOrder.CU_MEMCPY_SRC_ACCESS_ORDER_STREAM
    with by_hand(x.S, "thread_local") as made:
        copied = cuda.cuMemcpyBatchAsync([cuda.CUdeviceptr(target)], [cuda.CUdeviceptr(source)], [4], 1, [attributes],
                                         [0], 1, x.S.handle)
    assert (copied[0].name, made.failed) == (UNSUPPORTED, [])
    check(cuda.cuGraphLaunch(made.executable, x.S.handle))
    assert word_of(x, target) == 1
    for ptr in (source, target):
        check(cuda.cuMemFree(ptr))


@pytest.mark.parametrize("mode", ["global", "thread_local", "relaxed"])
@pytest.mark.parametrize("resource", [AsyncMemoryResource, DirectMemoryResource,
                                      lambda: PoolMemoryResource(DirectMemoryResource())])
def test_cuopt_1748_with_xlogmem(four, resource, mode):
    x = four(resource=resource())
    state = DeviceState(x.runtime)
    source, target = (state.empty(1, "u4", x.S) for _ in range(2))
    with capture(x.S, mode=mode) as graph:
        block = x.runtime.allocate("3MiB", x.S)         # a chunk of the pool, too
        x.use(x.S, (block, WRITE))
        del block
        source.fill(7, x.S)
        target.copy_from(source, x.S)
    graph.launch(x.S)
    assert word_of(x, target.ptr) == 7
    graph.close()
    source.release()
    target.release()
    x.runtime.synchronize()
    assert x.runtime.live_bytes == 0


# ---------------------------------------------------------------------------------------------- cuda.core's operands
# tests/graph/test_graph_definition_lifetime.py: kernel_args_buffer_lifetime, kernel_args_survive_graph_clone,
# memset_buffer_lifetime, memset_buffer_survives_close, memcpy_buffer_lifetime, memcpy_buffer_survives_close; and
# inflight_launch_retains_attachments_until_completion.
OPERANDS = ["kernel", "memset", "memcpy"]


def operate(x: Any, kind: str, stream: Any, target: int, source: int) -> None:
    """Have the target one more, 0xAB in each byte, or the source's 5."""
    if kind == "kernel":
        x.kernels.add(stream.handle, target, 1, 1)
    elif kind == "memset":
        check(cuda.cuMemsetD8Async(target, 0xAB, 4, stream.handle))
    else:
        check(cuda.cuMemcpyDtoDAsync(target, source, 4, stream.handle))


EXPECTED = {"kernel": 1 + TWICE, "memset": 0xABABABAB, "memcpy": 5}


@pytest.mark.parametrize("kind", OPERANDS)
def test_operands_as_reported(x, kind):
    """What cuda.core's `GraphBuilder` captures refers to memory and does not own it."""
    target, source = (int(check(cuda.cuMemAllocAsync(512, x.S.handle))) for _ in range(2))
    with by_hand(x.S) as made:
        operate(x, kind, x.S, target, source)
    for ptr in (target, source):
        check(cuda.cuMemFreeAsync(ptr, x.S.handle))
    owners = [int(check(cuda.cuMemAllocAsync(512, x.S.handle))) for _ in range(2)]
    assert set(owners) == {target, source}
    x.kernels.fill(x.S.handle, target, 9, 1)
    check(cuda.cuGraphLaunch(made.executable, x.S.handle))
    assert all("STALE GRAPH" in race for race in take_races(x))
    assert word_of(x, target) != 9                      # of its next owner
    for ptr in owners:
        check(cuda.cuMemFreeAsync(ptr, x.S.handle))


@pytest.mark.parametrize("ends", ["dropped", "closed"])
@pytest.mark.parametrize("kind", OPERANDS)
def test_operands_with_xlogmem(x, kind, ends):
    target, source = x.alloc(x.S), x.alloc(x.S)
    address = target.ptr
    with use(x.S, write=[target, source]):
        x.kernels.fill(x.S.handle, target.ptr, 1, 1)
        x.kernels.fill(x.S.handle, source.ptr, 5, 1)
    with capture(x.S) as graph, use(x.S, read_write=target, read=source):
        operate(x, kind, x.S, target.ptr, source.ptr)
    if ends == "closed":
        target.free()
        source.free()
    del target, source
    gc.collect()
    for _ in range(TWICE):
        owner = x.alloc(x.T)
        x.use(x.T, (owner, WRITE))
        owner.free()
        graph.launch(x.S)
    assert word_of(x, address) == EXPECTED[kind]
    graph.close()
    assert x.runtime.live_bytes == 0


@pytest.mark.parametrize("way", ["as reported", "with xlogmem"])
@pytest.mark.parametrize("how", ["cuGraphClone", "cuGraphExecUpdate"])
def test_operands_of_a_clone_and_of_an_update(x, how, way):
    """What another library makes of its graph holds nothing, and is launched as the graph that names the memory."""
    target = x.alloc(x.S)
    address = target.ptr
    x.use(x.S, (target, WRITE))
    check(cuda.cuStreamBeginCapture(x.S.handle, RELAXED))
    with capturing(x.S, read_write=target, runtime=x.runtime) as graph:
        operate(x, "kernel", x.S, target.ptr, 0)
    captured = check(cuda.cuStreamEndCapture(x.S.handle))
    if how == "cuGraphClone":
        other = check(cuda.cuGraphClone(captured))
        executable = check(cuda.cuGraphInstantiate(other, 0))
        check(cuda.cuGraphDestroy(other))
    else:
        executable = check(cuda.cuGraphInstantiate(captured, 0))
        check(cuda.cuGraphExecUpdate(executable, captured))
    check(cuda.cuGraphDestroy(captured))
    target.free()
    if way == "as reported":
        graph.close()
    for _ in range(TWICE):
        owner = x.alloc(x.T)
        x.use(x.T, (owner, WRITE))
        owner.free()
        if way == "as reported":
            check(cuda.cuGraphLaunch(executable, x.S.handle))
        else:
            with graph.launching(x.S):
                check(cuda.cuGraphLaunch(executable, x.S.handle))
    found = take_races(x)
    assert bool(found) is (way == "as reported"), found
    if way == "with xlogmem":
        assert word_of(x, address) == 1 + TWICE
        graph.close()
    check(cuda.cuCtxSynchronize())
    check(cuda.cuGraphExecDestroy(executable))


@pytest.mark.parametrize("way", ["as reported", "with xlogmem"])
def test_operands_of_a_launch_under_way(x, way):
    """The graph is closed, and its memory has another owner, while the launch still runs."""
    x.driver.set_policy("min")
    target = x.alloc(x.S)
    x.use(x.S, (target, WRITE))
    with capture(x.S) as graph:
        x.use(x.S, (target, READ_WRITE))
    target.free()
    if way == "as reported":
        check(cuda.cuGraphLaunch(cuda.CUgraphExec(graph.handle), x.T.handle))
    else:
        graph.launch(x.T)
    graph.close()
    owner = x.alloc(x.U)
    x.use(x.U, (owner, WRITE))
    found = take_races(x)
    assert bool(found) is (way == "as reported"), found
    owner.free()
    x.runtime.synchronize()
    assert x.runtime.live_bytes == 0
