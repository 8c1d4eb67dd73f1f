"""`await` for blocks, buffers and events, and accesses by coroutines: the event loop goes on meanwhile."""
from __future__ import annotations

import asyncio
import ctypes
import gc
import os
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest
from cuda.bindings import driver as cuda
from four_streams import READ, WRITE, Capture, FourStreams

import xlogmem
from xlogmem import (
    DeviceLostError,
    DeviceState,
    DriverError,
    PinnedMemoryResource,
    StaleBufferError,
    StreamMisuseError,
    UseAfterFreeError,
    host,
    use,
)
from xlogmem.sim.kernels import check

pytestmark = pytest.mark.simulator

NBYTES = 512


class Device:
    """Works while a coroutine is suspended: on the simulated driver nothing runs before a step."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver
        driver.set_policy("min")

    def run(self, coroutine: Awaitable, turns: int = 3) -> Any:
        """Run a coroutine.  The device begins to work after some turns of the loop."""
        async def main() -> Any:
            task = asyncio.ensure_future(coroutine)
            for self.turns in range(1, turns + 1):
                await asyncio.sleep(0)
            while not task.done():
                self.driver.step()
                await asyncio.sleep(0)
                self.turns += 1
            return await task

        return asyncio.run(main())


@pytest.fixture
def device(driver):
    return Device(driver)


async def of(what: Awaitable) -> Any:
    return await what


def files() -> int:
    """How many files of loops are open; a sanitizer opens some of its own."""
    gc.collect()
    count = 0
    for number in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):               # that of the listing itself
            count += os.readlink(f"/proc/self/fd/{number}") == "anon_inode:[eventfd]"
    return count


# ---------------------------------------------------------------------------------------------- the order
@pytest.mark.parametrize("dropped", [False, True])
def test_a_block_is_awaited_behind_every_use(four, device, dropped):
    """Of several streams; the twin drops the waits of the lane, and the work there is unordered."""
    x = four()
    block = x.alloc(x.S)
    done = [x.use(x.S, (block, WRITE)), x.use(x.T, (block, READ)), x.use(x.U, (block, READ))]
    if dropped:
        for number in range(1, 4):
            device.driver.drop("cuStreamWaitEvent", number)
    device.run(of(block))
    assert device.turns >= 3
    if not dropped:
        assert block.ready
    assert [x.ordered(operation, x.V) for operation in done] == [not dropped] * 3


def test_buffers_and_events_are_awaited(four, device):
    x = four()
    state = DeviceState(x.runtime)
    buffer = state.full((8, 8), 3, "uint8", x.S)
    device.run(of(buffer[2:]))
    assert buffer.access().ready
    first = x.work(x.S)
    event = x.S.record()
    later = x.work(x.S)
    device.run(of(event))
    assert event.ready
    assert x.ordered(first, x.T)
    assert not x.ordered(later, x.T)
    device.driver.clear_races()
    device.run(of(state.empty(0, "uint8")))
    x.runtime.synchronize()


def test_what_is_complete_is_not_waited_for(four, driver):
    x = four()
    block = x.alloc(x.S)
    x.use(x.S, (block, WRITE))
    event = x.S.record()
    x.runtime.synchronize()
    asyncio.run(of(block))
    asyncio.run(of(event))
    with x.runtime.allocate(0, x.S) as empty:
        asyncio.run(of(empty))
    assert driver.calls("cuLaunchHostFunc") == 0


def pinned(x: FourStreams) -> tuple[Any, ctypes.Array]:
    block = x.runtime.allocate(NBYTES, x.S, resource=PinnedMemoryResource())
    return block, (ctypes.c_uint8 * NBYTES).from_address(block.ptr)


def download(x: FourStreams, block: Any, value: int, declared: bool = True) -> None:
    source = x.alloc(x.T, NBYTES)
    with use(x.T, write=source):
        check(cuda.cuMemsetD8Async(source.ptr, value, NBYTES, x.T.handle))
    with use(x.T, read=source, write=block if declared else []):
        check(cuda.cuMemcpyDtoHAsync(block.ptr, source.ptr, NBYTES, x.T.handle))
    source.free()


async def first_byte(block: Any, array: ctypes.Array) -> int:
    async with use(host, read=block) as recorder:
        assert recorder.preflighted
        return array[0]


@pytest.mark.parametrize("declared", [True, False])
def test_an_access_of_a_coroutine_comes_after_the_work(four, device, declared):
    x = four()
    block, array = pinned(x)
    download(x, block, 5, declared)

    before = x.runtime.counters()["host_waits"]
    assert (device.run(first_byte(block, array)) == 5) is declared
    if declared:
        assert x.runtime.counters()["host_waits"] == before
    x.runtime.synchronize()
    block.free()


def test_an_access_looks_again_when_it_is_woken(four, device):
    """The memory was used meanwhile: the access waits for that, too, and not in the thread of the loop."""
    x = four()
    block, array = pinned(x)
    download(x, block, 4)

    async def main() -> int:
        task = asyncio.ensure_future(first_byte(block, array))
        await asyncio.sleep(0)                          # it waits for the first download
        download(x, block, 5)
        return await task

    before = x.runtime.counters()["host_waits"]
    assert device.run(main()) == 5
    assert x.runtime.counters()["host_waits"] == before
    block.free()


def test_memory_that_is_always_in_use_is_waited_for_in_the_end(four, device):
    """Whenever the access is suspended, the memory is used again."""
    x = four()
    block, array = pinned(x)
    download(x, block, 1)

    async def main() -> int:
        task = asyncio.ensure_future(first_byte(block, array))
        suspended = 0
        while not task.done():
            if device.driver.calls("cuLaunchHostFunc") > suspended:
                suspended += 1
                download(x, block, 1 + suspended)
            await asyncio.sleep(0)
        assert await task == 1 + suspended
        return suspended

    assert device.run(main()) in range(2, 5)
    block.free()


def test_an_access_waits_for_the_memory_of_two_devices(devices, driver):
    x = devices(peers=False)
    device = Device(driver)
    blocks = [runtime.allocate(NBYTES, streams[0], resource=PinnedMemoryResource(device_id=runtime.device_id))
              for runtime, streams in zip(x.runtimes, x.streams, strict=True)]
    sources = [x.allocate(0), x.allocate(1)]
    for block, source, streams in zip(blocks, sources, x.streams, strict=True):
        with use(streams[1], read=source, write=block):
            check(cuda.cuMemcpyDtoHAsync(block.ptr, source.ptr, 4, streams[1].handle))

    async def write() -> None:
        async with use(host, write=blocks):
            assert [block.ready for block in blocks] == [True, True]

    device.run(write())
    assert device.turns > 3
    for block in blocks + sources:
        block.free()


def test_an_access_begins_and_ends(four, device):
    x = four()
    block, _ = pinned(x)

    async def write() -> None:
        async with use(host, write=block):
            with pytest.raises(StreamMisuseError, match="still open, on the host"):
                use(x.S, read=block, on_conflict="raise").preflight()
        with use(x.S, read=block):
            pass
        with pytest.raises(KeyError):
            async with use(host, write=block):
                raise KeyError
        with use(x.S, read=block):
            pass

    device.run(write())
    x.runtime.synchronize()
    block.free()


# ---------------------------------------------------------------------------------------------- arrays
class Mapped:
    """A buffer of page-locked memory, on which a late download is queued."""

    def __init__(self, x: FourStreams, declared: bool = True) -> None:
        self.x, self.state = x, DeviceState(x.runtime)
        self.buffer = self.state.full(NBYTES, 1, "uint8", x.S, resource=PinnedMemoryResource())
        x.runtime.synchronize()
        download(x, self.buffer, 5, declared)

    async def first_byte(self, write: bool = False) -> int:
        async with self.buffer.map(write=write) as array:
            return int(array[0])

    def close(self) -> None:
        self.x.runtime.synchronize()
        self.__dict__.clear()                           # pytest keeps this object, which must not keep the runtime


@pytest.fixture
def mapped(four, device):
    made = []

    def make(**options: Any) -> Mapped:
        made.append(Mapped(four(), **options))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.mark.parametrize("write", [False, True])
@pytest.mark.parametrize("declared", [True, False])
def test_a_map_of_a_coroutine_comes_after_the_work(mapped, device, declared, write):
    m = mapped(declared=declared)
    before = m.x.runtime.counters()["host_waits"]
    assert device.run(m.first_byte(write)) == (5 if declared else 1)
    if declared:
        assert m.x.runtime.counters()["host_waits"] == before
    assert (device.turns > 3) is declared               # the loop went on meanwhile


def test_an_array_of_a_coroutine_is_empty_afterwards(mapped, device):
    m = mapped()

    async def main() -> None:
        async with m.buffer.map(write=True) as array:
            assert m.state._status.in_use == 1
            with pytest.raises(StreamMisuseError, match="still open, on the host"):
                use(m.x.S, read=m.buffer, on_conflict="raise").preflight()
            array[:] = 6
        assert array.size == m.state._status.in_use == 0
        with pytest.raises(BufferError, match="views of the array"):
            async with m.buffer.map() as array:
                view = array[1:]
        del view
        with pytest.raises(KeyError):
            async with m.buffer.map():
                raise KeyError
        with use(m.x.S, write=m.buffer):                # nothing is open
            pass

    device.run(main())
    assert m.buffer.tolist() == [6] * NBYTES
    device.run(empty_map(m.state))


async def empty_map(state: DeviceState) -> None:
    async with state.empty((0, 3), "int16").map(write=True) as array:
        assert array.shape == (0, 3)


def test_a_map_that_is_cancelled_leaves_nothing_open(mapped, device):
    m = mapped()
    mapping = m.buffer.map(write=True)

    async def main() -> None:
        task = asyncio.ensure_future(enter(mapping))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert m.state._status.in_use == 0
        with use(m.x.S, write=m.buffer, on_conflict="raise"):
            pass
        async with mapping as array:                    # it was never entered
            array[:] = 7

    device.run(main())
    assert m.buffer.tolist() == [7] * NBYTES


async def enter(mapping: Any) -> None:
    async with mapping:
        pass


def test_a_map_of_coroutines_is_entered_once(mapped, device):
    m = mapped()
    mapping = m.buffer.map()

    async def main() -> list:
        return await asyncio.gather(enter(mapping), enter(mapping), return_exceptions=True)

    refused = [done for done in device.run(main()) if done is not None]     # one of them, whichever comes later
    assert [type(error) for error in refused] == [StreamMisuseError]
    assert "entered once" in str(refused[0])


def test_maps_of_coroutines_that_are_refused(mapped, device):
    m = mapped()
    wrong = m.state.full(4, 1, "uint8", m.x.S)
    with pytest.raises(TypeError, match=r"read=: block .* is device memory"):
        asyncio.run(enter(wrong.map()))                 # at once: nothing runs
    mapping = m.buffer.map()

    async def replaced() -> None:
        task = asyncio.ensure_future(enter(mapping))
        await asyncio.sleep(0)
        m.state.begin_shutdown()                        # while it is suspended
        await task

    with pytest.raises(StaleBufferError, match="device shutting down"):
        device.run(replaced())
    with pytest.raises(StaleBufferError, match="device shutting down"):
        asyncio.run(enter(mapping))
    assert m.state._status.in_use == 0


# ---------------------------------------------------------------------------------------------- many
def test_many_are_pending_without_a_thread(four, device):
    x = four()
    blocks = [x.alloc(stream) for stream in (x.S, x.T, x.U, x.V) for _ in range(25)]
    for number, block in enumerate(blocks):
        x.use((x.S, x.T, x.U, x.V)[number // 25], (block, WRITE))
    streams = x.runtime.stream_pool.acquired
    made = device.driver.calls("cuStreamCreateWithPriority")
    threads = threading.active_count()
    seen = []

    async def main() -> None:
        tasks = [asyncio.ensure_future(of(block)) for block in blocks]
        await asyncio.sleep(0)
        seen.extend([x.runtime.stream_pool.acquired, device.driver.calls("cuStreamCreateWithPriority") - made,
                     threading.active_count()])
        await asyncio.gather(*tasks)

    device.run(main())
    assert seen == [streams, 32, threads]               # the program has its streams for itself
    assert all(block.ready for block in blocks)
    for block in blocks:
        x.use(x.S, (block, WRITE))
    device.run(main())
    assert seen[3:] == seen[:3]                         # the lanes are used again


def test_a_pool_whose_streams_are_all_in_use(device):
    runtime = xlogmem.DeviceRuntime(stream_pool=xlogmem.StreamPool(max_streams=2))
    streams = [runtime.acquire_stream(), runtime.acquire_stream()]
    with runtime.allocate(64, streams[0]) as block:
        with use(streams[0], write=block):
            check(cuda.cuMemsetD8Async(block.ptr, 3, 64, streams[0].handle))
        runtime.stream_pool.acquire()                   # the next in turn is the second
        with Capture(streams[1]):                       # a wait there would end the capture
            device.run(of(block))
        assert block.ready


def test_the_program_is_not_given_a_stream_that_waits(device):
    """It might capture a graph there."""
    runtime = xlogmem.DeviceRuntime(stream_pool=xlogmem.StreamPool(max_streams=2))
    stream = runtime.acquire_stream()
    with runtime.allocate(64, stream) as block:
        with use(stream, write=block):
            check(cuda.cuMemsetD8Async(block.ptr, 3, 64, stream.handle))

        async def main() -> None:
            task = asyncio.ensure_future(of(block))
            await asyncio.sleep(0)
            made = device.driver.calls("cuStreamCreateWithPriority")
            assert len(runtime.stream_pool) == 1
            own = runtime.acquire_stream(discipline="sealed")
            assert device.driver.calls("cuStreamCreateWithPriority") == made + 1
            await task
            own.synchronize()

        device.run(main())


def test_each_loop_has_its_own(four, driver):
    x = four()
    wrong = []

    def work(stream: Any) -> None:
        async def main() -> None:
            for _ in range(20):
                block = x.alloc(stream)
                x.use(stream, (block, WRITE))
                await block
                if not block.ready:
                    wrong.append(stream)
                block.free()

        try:
            asyncio.run(main())
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(stream,)) for stream in (x.S, x.T, x.U, x.V)]
    driver.set_policy("seeded", 5)
    stop = threading.Event()
    stepper = threading.Thread(target=lambda: [driver.step() or stop.wait(0.001) for _ in iter(stop.is_set, True)])
    for thread in [*threads, stepper]:
        thread.start()
    for thread in threads:
        thread.join()
    stop.set()
    stepper.join()
    assert wrong == []


# ---------------------------------------------------------------------------------------------- ends
def test_a_coroutine_that_gives_up_leaves_nothing(four, device):
    x = four()
    before = files()
    streams = x.runtime.stream_pool.acquired
    block = x.alloc(x.S)
    x.use(x.S, (block, WRITE))

    async def main() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(of(block), 0.01)
        block.free()
        while device.driver.step():
            await asyncio.sleep(0)
        await asyncio.sleep(0.01)
        assert x.runtime.stream_pool.acquired == streams

    asyncio.run(main())
    assert files() == before


def test_a_loop_that_is_closed_is_woken_no_more(four, device):
    """The number of its file does not go to another file before."""
    x = four()
    before = files()
    block = x.alloc(x.S)
    x.use(x.S, (block, WRITE))

    async def main() -> None:
        task = asyncio.ensure_future(of(block))         # asyncio.run cancels it
        await asyncio.sleep(0)
        assert not task.done()

    asyncio.run(main())
    gc.collect()
    assert files() == before + 1                        # of the host function
    x.runtime.synchronize()
    while device.driver.step():
        pass
    assert files() == before
    block.free()


def test_a_lost_device_wakes_all_that_wait(four, device):
    x = four()
    block, event = x.alloc(x.S), x.S.record()
    x.use(x.S, (block, WRITE))
    event = x.S.record()

    async def main() -> list[BaseException]:
        tasks = [asyncio.ensure_future(of(what)) for what in (block, event)]
        await asyncio.sleep(0)
        for query in ("cuStreamQuery", "cuEventQuery"):
            device.driver.fail(query, code=700)
        return await asyncio.gather(*tasks, return_exceptions=True)

    assert [type(error) for error in asyncio.run(main())] == [DeviceLostError] * 2
    assert x.runtime.lost
    check(cuda.cuMemFreeAsync(block.ptr, x.S.handle))   # the simulated device lives on


def test_a_query_that_fails_ends_no_wait(four, device):
    """The look for a lost device may fail for other reasons."""
    x = four()
    block = x.alloc(x.S)
    x.use(x.S, (block, WRITE))

    async def main() -> None:
        task = asyncio.ensure_future(of(block))
        await asyncio.sleep(0)
        queries = [device.driver.calls(name) for name in ("cuStreamQuery", "cuEventQuery")]
        for name in ("cuStreamQuery", "cuEventQuery"):
            device.driver.fail(name, code=2)
        while queries == [device.driver.calls(name) for name in ("cuStreamQuery", "cuEventQuery")]:
            await asyncio.sleep(0.01)
        for _ in range(3):
            await asyncio.sleep(0)
        assert not task.done()
        while not task.done():
            device.driver.step()
            await asyncio.sleep(0)
        await task

    asyncio.run(main())
    assert block.ready


def test_an_interrupt_loses_no_other_wakeup(four, device):
    """Of those that come at the same time; the loop is run again, as a notebook does."""
    x = four()
    blocks = [x.alloc(stream) for stream in (x.S, x.T, x.U)]
    for block, stream in zip(blocks, (x.S, x.T, x.U), strict=True):
        x.use(stream, (block, WRITE))
    loop = asyncio.new_event_loop()
    call_soon = loop.call_soon
    interrupts = [KeyboardInterrupt]

    def interrupted(callback: Callable, *arguments: Any, **options: Any) -> Any:
        if interrupts and "wakeup" in repr(callback):
            raise interrupts.pop()
        return call_soon(callback, *arguments, **options)

    async def begin() -> list:
        tasks = [asyncio.ensure_future(of(block)) for block in blocks]
        await asyncio.sleep(0)
        return tasks

    tasks = loop.run_until_complete(begin())
    while device.driver.step():
        pass
    x.runtime.synchronize()
    loop.call_soon = interrupted
    main = loop.create_task(asyncio.sleep(0.1))
    with pytest.raises(KeyboardInterrupt):
        loop.run_until_complete(main)
    loop.run_until_complete(main)
    assert sum(task.done() for task in tasks) == 2      # asyncio itself loses the one that was interrupted
    for task in tasks:
        task._log_destroy_pending = False
    loop.close()


# ---------------------------------------------------------------------------------------------- bad input
def test_errors(four, driver):
    x = four()
    block, _ = pinned(x)
    with pytest.raises(RuntimeError, match="no running event loop"):
        block.__await__().send(None)

    async def on_a_stream() -> None:
        async with use(x.S, read=block):
            pass

    with pytest.raises(TypeError, match="only accesses by the host"):
        asyncio.run(on_a_stream())
    block.free()
    with pytest.raises(UseAfterFreeError):
        asyncio.run(of(block))

    async def of_memory(what: Any) -> None:
        async with use(host, read=what, runtime=x.runtime):
            pass

    with pytest.raises(UseAfterFreeError, match="read=: "):
        asyncio.run(of_memory(block))
    driver.set_policy("min")
    block, _ = pinned(x)
    download(x, block, 5)
    left = use(host, read=block)
    left.cancel()
    with pytest.raises(StreamMisuseError, match="cancelled"):
        left.__aenter__().send(None)                    # at once
    x.runtime.synchronize()
    block.free()
    with x.alloc(x.S) as block:
        x.use(x.S, (block, WRITE))
        with pytest.raises(TypeError, match=r"read=: block .* is device memory"):
            asyncio.run(of_memory(block))               # at once: nothing runs
    with pytest.raises(StreamMisuseError, match="not tracked"):
        asyncio.run(of_memory(x.words))


@pytest.mark.parametrize("call", ["cuLaunchHostFunc", "cuStreamWaitEvent"])
def test_a_driver_that_refuses(four, device, call):
    x = four()
    streams = x.runtime.stream_pool.acquired
    block = x.alloc(x.S)
    x.use(x.T, (block, WRITE))
    device.driver.fail(call, code=2)
    with pytest.raises(DriverError, match=call):
        device.run(of(block))
    assert x.runtime.stream_pool.acquired == streams
    device.run(of(block))
    assert block.ready


def test_work_of_a_graph_is_not_awaited(four, driver):
    x = four()
    block = x.alloc(x.S)
    x.use(x.S, (block, WRITE))
    with Capture(x.S), pytest.raises(StreamMisuseError, match="captur"):
        asyncio.run(of(block))


def test_a_system_without_files(four, device):
    import resource

    x = four()
    block = x.alloc(x.S)
    x.use(x.S, (block, WRITE))
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)

    async def main() -> None:
        free = os.dup(0)
        os.close(free)
        resource.setrlimit(resource.RLIMIT_NOFILE, (free, limits[1]))
        try:
            with pytest.raises(OSError, match="ulimit -n"):
                await block
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)

    asyncio.run(main())
    x.runtime.synchronize()


def test_loops_of_uvloop(four, device):
    uvloop = pytest.importorskip("uvloop", reason="needs another library: uvloop")
    x = four()
    block = x.alloc(x.S)
    x.use(x.S, (block, WRITE))

    async def main(wait: Callable) -> None:
        task = asyncio.ensure_future(of(block))
        await asyncio.sleep(0)
        while not task.done():
            device.driver.step()
            await wait(0)

    uvloop.run(main(asyncio.sleep))
    assert block.ready
