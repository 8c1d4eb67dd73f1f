"""A driver call that does not return stops nothing else."""
from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

import pytest
from cuda.bindings import driver as cuda
from four_streams import WRITE, FourStreams
from stress import PATIENCE, held_up, nothing_lost, together
from which_driver import SIMULATED

from xlogmem import (
    DeviceBlock,
    DeviceRuntime,
    DirectMemoryResource,
    Stream,
    StreamPool,
    _driver,
    sim,
    use,
)
from xlogmem.sim.kernels import Kernels, check


def go_on(runtime: DeviceRuntime, kernels: Kernels, context: object, *streams: Stream, reap: bool = True) -> None:
    """What four threads do on two streams while a fifth does not return from the driver."""
    def work(number: int) -> None:
        check(cuda.cuCtxSetCurrent(context))
        own, other = streams[number % 2], streams[1 - number % 2]
        for turn in range(10):
            block = runtime.allocate(256, own)
            with use(own, write=block):
                kernels.fill(own.handle, block.ptr, turn, 64)
            with use(other, read=block):
                pass
            assert runtime.find_block(block.ptr) == block.id
            assert runtime.counters()["live_blocks"] > 0
            assert runtime.bytes_outstanding >= block.nbytes
            if turn % 2:
                block.free()
            del block
            if reap:
                runtime.reap_pending(blocking=False)

    together(work, 4)


def read_on(stream: Stream, block: DeviceBlock) -> None:
    with use(stream, read=block):
        pass


def see_another(runtime: DeviceRuntime) -> None:
    other = DeviceRuntime()
    stream = other.acquire_stream()
    runtime.register_stream(stream.handle)
    runtime.unregister_stream(stream.handle)


def come_and_go() -> None:
    other = DeviceRuntime()
    read_on(other.acquire_stream(), other.allocate(64))
    other.synchronize()


def run_out_of_memory(x: FourStreams) -> None:
    x.driver.fail("cuMemAllocFromPoolAsync", code=2)
    x.alloc(x.S)


# Driver call -> what makes it, given a block that was written on S; bytes are pending on S.
CALLS: dict[str, Callable[[FourStreams, DeviceBlock], object]] = {
    "cuCtxGetCurrent": lambda x, block: x.alloc(x.S),
    "cuCtxPopCurrent": lambda x, block: x.alloc(x.S),
    "cuCtxPushCurrent": lambda x, block: x.alloc(x.S),
    "cuEventCreate": lambda x, block: read_on(x.T, block),
    "cuEventDestroy": lambda x, block: (come_and_go(), _driver.trim_events()),
    "cuEventQuery": lambda x, block: x.runtime.reap_pending(blocking=False),
    "cuEventRecord": lambda x, block: read_on(x.T, block),
    "cuEventSynchronize": lambda x, block: x.runtime.reap_pending(),
    "cuMemAlloc": lambda x, block: x.alloc(x.S),
    "cuMemAllocFromPoolAsync": lambda x, block: x.alloc(x.S),
    "cuMemFree": lambda x, block: block.free(),
    "cuMemFreeAsync": lambda x, block: block.free(),
    "cuMemPoolCreate": lambda x, block: come_and_go(),
    "cuMemPoolDestroy": lambda x, block: come_and_go(),
    "cuMemPoolTrimTo": lambda x, block: run_out_of_memory(x),
    "cuStreamCreateWithPriority": lambda x, block: x.runtime.acquire_stream(),
    "cuStreamDestroy": lambda x, block: come_and_go(),
    "cuStreamGetId": lambda x, block: see_another(x.runtime),
    "cuStreamIsCapturing": lambda x, block: x.alloc(x.S),
    "cuStreamWaitEvent": lambda x, block: read_on(x.T, block),
}


@contextlib.contextmanager
def meanwhile(work: Callable[[], object], ready: Callable[[], bool], end: Callable[[], object]) -> Iterator[None]:
    """A thread does the work, and is inside it until `end`."""
    thread = threading.Thread(target=work)
    thread.start()
    try:
        assert ready(), "the call did not come"
        yield
        assert thread.is_alive(), "it did not wait, or had lost patience before the others were done"
    finally:
        end()
        thread.join(PATIENCE)
    assert not thread.is_alive()


@pytest.mark.simulator
@pytest.mark.promise(82)
@pytest.mark.parametrize("call", CALLS)
def test_a_call_that_does_not_return_stops_no_other_thread(four, driver, _context, call):
    """The driver keeps one thread: neither a lock nor the GIL is kept across the call, so others go on elsewhere."""
    _driver.trim_events()
    x = four(resource=DirectMemoryResource() if call in ("cuMemAlloc", "cuMemFree") else None)
    blocks = [x.alloc(x.S)]
    x.work(x.S, (blocks[0], WRITE))
    x.alloc(x.S).free()
    hold = driver.hold(call)
    returned = []
    with meanwhile(lambda: CALLS[call](x, blocks[0]), hold.reached, lambda: returned.append(hold.release())):
        go_on(x.runtime, x.kernels, _context, x.U, x.V)
    assert returned == [True], "the others went on only after the call had lost patience"
    blocks.clear()
    nothing_lost(x.runtime)


@pytest.mark.simulator
def test_unregistering_a_stream_that_is_held_up_stops_no_call_on_others(four, driver, _context):
    """By their handles, as foreign streams are; the last fence of the unregistered one cannot be recorded yet."""
    x = four()
    foreign = [int(check(cuda.cuStreamCreate(1))) for _ in range(3)]
    for handle in foreign:
        x.alloc(handle).free()
    hold = driver.hold("cuEventRecord")
    returned = []
    with meanwhile(lambda: x.runtime.unregister_stream(foreign[0]), hold.reached,
                   lambda: returned.append(hold.release())):
        for handle in foreign[1:] * 2:
            x.runtime.register_stream(handle)
            block = x.alloc(handle)
            read_on(x.S, block)
            block.free(handle)
    assert returned == [True]
    for handle in foreign[1:]:
        x.runtime.unregister_stream(handle)
    nothing_lost(x.runtime)
    for handle in foreign:
        check(cuda.cuStreamDestroy(handle))


@pytest.mark.simulator
def test_creating_a_stream_stops_no_other_thread(driver, _context):
    """A spare stream is there for another thread; of two that would need the last place one is given another's."""
    runtime = DeviceRuntime(stream_pool=StreamPool(max_streams=3))
    kept = [runtime.acquire_stream(discipline="opaque"), runtime.acquire_stream()]
    spare = kept.pop().handle
    hold = driver.hold("cuStreamCreateWithPriority")
    returned = []
    with meanwhile(lambda: kept.append(runtime.acquire_stream(discipline="sealed")), hold.reached,
                   lambda: returned.append(hold.release())):
        kept.append(runtime.acquire_stream())
        assert kept[-1].handle == spare
        assert runtime.acquire_stream() == kept[-1]
    assert returned == [True]
    assert len(runtime.stream_pool) == 3


# What blocks while the queue of S is full, given blocks of S and T -> the driver call that does.
FULL: dict[str, tuple[str, Callable[[FourStreams, DeviceBlock, DeviceBlock], object]]] = {
    "a launch": ("cuLaunchKernel", lambda x, mine, other: x.use(x.S, (mine, WRITE))),
    "an allocation": ("cuMemAllocFromPoolAsync", lambda x, mine, other: x.alloc(x.S)),
    "a record": ("cuEventRecord", lambda x, mine, other: read_on(x.T, mine)),
    "a wait": ("cuStreamWaitEvent", lambda x, mine, other: read_on(x.S, other)),
    "a free": ("cuMemFreeAsync", lambda x, mine, other: mine.free()),
    "a reap": ("cuEventRecord", lambda x, mine, other: x.runtime.reap_pending()),
}


@pytest.mark.simulator
@pytest.mark.promise(82)
@pytest.mark.parametrize("what", FULL)
def test_a_full_queue_stops_only_calls_that_need_it(four, driver, _context, what):
    """Launches fill the queue of a stream that is held up; whatever has to go there waits in the driver, really.  If
    others stand still too, the simulated driver's watchdog ends the process and shows all stacks."""
    x = four()
    call, work = FULL[what]
    blocks = [x.alloc(x.S), x.alloc(x.T)]
    if what == "a reap":
        x.alloc(x.S).free()
    inside, opened = threading.Event(), contextlib.ExitStack()
    opened.enter_context(held_up(x.S))
    with opened:
        while driver.pending_operations() <= 1024:      # and one runs
            x.kernels.delay(x.S.handle, 1)
        driver.on_call(call, inside.set)
        with meanwhile(lambda: work(x, *blocks), lambda: inside.wait(PATIENCE), opened.close):
            # A reap would have to record on S, where bytes are pending.
            go_on(x.runtime, x.kernels, _context, x.U, x.V, reap=what != "a reap")
    blocks.clear()
    nothing_lost(x.runtime)


@pytest.mark.promise(54, 82)
def test_a_reap_waits_for_a_stream_that_is_held_up_and_stops_no_other_thread(kernels, _context):
    runtime = DeviceRuntime()
    S, U, V = (runtime.acquire_stream() for _ in range(3))
    block = runtime.allocate(4096, S)
    inside, opened = threading.Event(), contextlib.ExitStack()
    opened.enter_context(held_up(S))
    with opened:
        block.free()
        if SIMULATED:
            sim.simulator().on_call("cuEventSynchronize", inside.set)
        else:
            inside.set()                                # a GPU does not show it; it is inside before it returns
        with meanwhile(runtime.reap_pending, lambda: inside.wait(PATIENCE), opened.close):
            go_on(runtime, kernels, _context, U, V)
            assert runtime.pending_bytes >= 4096
    nothing_lost(runtime)
