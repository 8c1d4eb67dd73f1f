"""Situations that chance makes too seldom: each needs several things in the right order, or a look from outside.

The programs choose them like any other step, with the policy, the schedule and the streams drawn; each has a small
runtime of its own.  What is not ordered the simulated driver reports, so a situation only has to bring it about; what
is no question of order it looks at itself.  They need the simulated driver: injected failures, gaps, a second device.
"""
from __future__ import annotations

import os
import threading
import time
import warnings
from collections.abc import Callable, Iterable
from contextlib import suppress
from random import Random
from types import TracebackType
from typing import Any, Self, TypeVar

from cuda.bindings import driver as cuda

from xlogmem import _driver
from xlogmem._dtypes import DTYPES
from xlogmem._kernels import check
from xlogmem.blocks import BlockState, DeviceBlock
from xlogmem.buffers import Buffer, make_buffer
from xlogmem.devices import DeviceState
from xlogmem.errors import DriverError, StreamMisuseError, UseAfterFreeError, XlogmemError
from xlogmem.launch import LaunchRecorder
from xlogmem.resources import AsyncMemoryResource, DeviceMemoryResource, PoolMemoryResource
from xlogmem.runtime import DeviceRuntime
from xlogmem.selftest.world import READ, READ_WRITE, WRITE, ForeignStream, World, refused, sure
from xlogmem.streams import StreamPool

__all__ = ["SITUATIONS"]

NBYTES = 1024
HALF = NBYTES // 2

Uses = Iterable[tuple[DeviceBlock, str]]
SITUATIONS: list[Callable[[World, Random], None]] = []
Situation = TypeVar("Situation", bound=Callable[[World, Random], None])


def situation(function: Situation) -> Situation:
    SITUATIONS.append(function)
    return function


class Scene:
    """A runtime with a few streams, which is cleared away at the end and has to be empty then."""

    def __init__(self, world: World, rng: Random, resource: DeviceMemoryResource | None = None,
                 policy: str | None = None) -> None:
        self.world = world
        self.simulator = world.simulator
        self.kernels = world.kernels
        self.runtime = DeviceRuntime(policy=policy or rng.choice(["adaptive", "lazy", "precise"]),
                                     resource=resource or AsyncMemoryResource(),
                                     stream_pool=StreamPool(max_streams=8))
        self.state = DeviceState(self.runtime)          # of buffers
        self.blocks: list[DeviceBlock] = []
        self.lost_blocks = 0                            # that the runtime was right to give up

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        if kind is None:
            for block in self.blocks:
                if block.state is BlockState.LIVE:
                    block.free()
            self.blocks.clear()
            self.runtime.reap_pending()
            counters = self.runtime.counters()
            self.expect(self.runtime.bytes_outstanding == 0 and counters["live_blocks"] == 0
                        and counters["allocations"] == counters["frees"] + self.lost_blocks,
                        f"{self.runtime.bytes_outstanding} bytes are left: {counters}")

    def expect(self, truth: bool, text: str) -> None:
        if not truth:
            self.world.violation(text)

    def stream(self, discipline: str = "ordinary") -> Any:
        return self.runtime.acquire_stream(discipline=discipline)

    def block(self, stream: Any = None) -> DeviceBlock:
        """Freed at the end, unless it is before."""
        self.blocks.append(self.runtime.allocate(NBYTES, stream))
        return self.blocks[-1]

    def work(self, stream: int, block: DeviceBlock, access: str, offset: int = 0, nbytes: int = NBYTES) -> None:
        """Queue a kernel, recorded or not."""
        at, words = block.ptr + offset, nbytes // 4
        if access == READ:
            self.kernels.copy(stream, self.world.scratch(nbytes), at, words)
        elif access == WRITE:
            self.kernels.fill(stream, at, 1, words)
        else:
            self.kernels.add(stream, at, 1, words)

    def buffer(self, block: DeviceBlock) -> Buffer:
        """Over the whole of a block."""
        return make_buffer(self.state._standing, self.runtime, 0, block, (NBYTES // 4,), DTYPES["uint32"])

    def offer(self, block: DeviceBlock, stream: Any) -> None:
        """Somebody reads the interface of a block, which names this stream."""
        named = self.buffer(block).__cuda_array_interface__["stream"]
        self.expect(named == stream.handle, f"the interface names {named:#x}, not {stream.handle:#x}")

    def prepare(self, stream: Any, *uses: tuple[DeviceBlock, str], **options: Any) -> LaunchRecorder:
        recorder = LaunchRecorder(stream, runtime=self.runtime, **options)
        for block, access in uses:
            getattr(recorder, access)(block)
        recorder.preflight()
        return recorder

    def use(self, stream: Any, *uses: tuple[DeviceBlock, str]) -> None:
        recorder = self.prepare(stream, *uses)
        for block, access in uses:
            self.work(getattr(stream, "handle", stream), block, access)
        recorder.commit()


# ---------------------------------------------------------------------------------------------- fences and knowledge
@situation
def a_fence_in_use(world: World, rng: Random) -> None:
    """T waits for a fence of S; before that is noted, S records more fences than its ring holds."""
    with Scene(world, rng) as x:
        S, T, U = x.stream(), x.stream(), x.stream()
        first, later = x.block(S), [x.block(S) for _ in range(8)]

        def others() -> None:
            for block in later:
                x.use(S, (block, WRITE))
                x.use(U, (block, READ))

        x.simulator.on_call("cuStreamWaitEvent", others, when="after")
        x.use(T, (first, READ))
        for block in later:
            x.use(T, (block, READ))


@situation
def a_stream_that_learns_while_its_fence_is_recorded(world: World, rng: Random) -> None:
    """S is ordered after U between the record on S, made for T, and its bookkeeping; T does not know U by that."""
    with Scene(world, rng) as x:
        S, T, U = x.stream(), x.stream(), x.stream()
        one, two = x.block(S), x.block(U)
        x.use(U, (two, WRITE))
        x.simulator.on_call("cuEventRecord", lambda: x.use(S, (two, READ)), when="after")
        x.use(T, (one, READ))
        x.use(T, (two, READ))


@situation
def a_fence_that_the_host_waited_for(world: World, rng: Random) -> None:
    """The fence that covers a free is older than a write; a reap that waited for it says nothing of the write."""
    with Scene(world, rng) as x:
        S, T = x.stream(), x.stream()
        block, freed = x.block(S), x.block(S)
        freed.free()
        x.use(T, (block, READ))
        x.use(S, (block, WRITE))
        x.runtime.reap_pending()
        x.use(T, (block, READ))


# ---------------------------------------------------------------------------------------------- launches
@situation
def two_launches_at_once(world: World, rng: Random) -> None:
    """A use that conflicts with one that is not filed yet can be refused (W11)."""
    with Scene(world, rng) as x:
        S, T = x.stream(), x.stream()
        block = x.block(S)
        first, second = rng.choice([(READ, WRITE), (WRITE, READ), (WRITE, READ_WRITE)])
        window = x.prepare(S, (block, first))
        refused(world, StreamMisuseError, lambda: x.prepare(T, (block, second), on_conflict="raise"),
                f"a {second} beside an open {first}")
        window.cancel()


@situation
def one_source_of_two_captures(world: World, rng: Random) -> None:
    """Nothing is queued for a launch that is refused because of another of its sources (W10)."""
    with Scene(world, rng) as x:
        S, T, U = x.stream(), x.stream(), x.stream()
        one, two = x.block(S), x.block(U)
        x.use(S, (one, WRITE))
        x.use(U, (two, WRITE))
        queued = x.simulator.calls("cuStreamWaitEvent"), x.simulator.calls("cuEventRecord")
        check(cuda.cuStreamBeginCapture(S.handle, cuda.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED))
        with suppress(StreamMisuseError):               # a fence may be there from before the capture
            x.prepare(T, (two, READ), (one, READ)).cancel()
            queued = x.simulator.calls("cuStreamWaitEvent"), x.simulator.calls("cuEventRecord")
        x.expect(queued == (x.simulator.calls("cuStreamWaitEvent"), x.simulator.calls("cuEventRecord")),
                 "something was queued for a launch that was refused")
        check(cuda.cuGraphDestroy(check(cuda.cuStreamEndCapture(S.handle))))


@situation
def a_read_on_an_opaque_stream(world: World, rng: Random) -> None:
    """Whoever may read there may also write there, later and unrecorded."""
    with Scene(world, rng) as x:
        S, T, home = x.stream("opaque"), x.stream(), x.stream()
        block = x.block(home)
        x.use(home, (block, WRITE))
        x.use(S, (block, READ))
        x.work(S.handle, block, WRITE)
        x.use(T, (block, READ))


@situation
def a_hand_back_that_cannot_be_queued(world: World, rng: Random) -> None:
    """Then the host waits, so that what the opaque home gets afterwards is in order all the same."""
    with Scene(world, rng) as x:
        home, T = x.stream("opaque"), x.stream()
        block = x.block(home)
        window = x.prepare(T, (block, WRITE))
        x.work(T.handle, block, WRITE)
        x.simulator.fail("cuStreamWaitEvent", 1, 999)
        window.commit()
        x.work(home.handle, block, READ_WRITE)


# ---------------------------------------------------------------------------------------------- without a window
@situation
def work_recorded_beside_a_reader(world: World, rng: Random) -> None:
    """Filing work that nobody prepared removes nothing: the reader is still waited for (W4)."""
    with Scene(world, rng) as x:
        S, T, U, V = x.stream(), x.stream(), x.stream(), x.stream()
        block = x.block(S)
        x.use(S, (block, WRITE))
        check(cuda.cuCtxSynchronize())
        x.use(T, (block, READ))
        x.work(U.handle, block, READ)
        x.runtime.record_block_use(block, U)
        x.use(V, (block, WRITE))


@situation
def work_recorded_on_a_fresh_block(world: World, rng: Random) -> None:
    """It waited for nobody, so it says nothing of what is filled at home."""
    with Scene(world, rng) as x:
        S, T, U = x.stream(), x.stream(), x.stream()
        block, other = x.block(S), x.block(S)
        check(cuda.cuCtxSynchronize())
        x.work(U.handle, block, WRITE, 0, HALF)
        x.runtime.record_block_use(block, U)
        x.use(T, (other, READ))
        x.work(S.handle, block, WRITE, HALF, HALF)
        x.use(T, (block, READ))


@situation
def work_recorded_on_a_retired_block(world: World, rng: Random) -> None:
    """It is filed, then refused: the free that is still to come waits for it."""
    with Scene(world, rng) as x:
        S, T, U = x.stream(), x.stream(), x.stream()
        block = x.block(S)
        check(cuda.cuCtxSynchronize())
        window = x.prepare(T, (block, WRITE))
        x.work(T.handle, block, WRITE, 0, HALF)
        block.free()
        x.work(U.handle, block, WRITE, HALF, HALF)
        refused(world, UseAfterFreeError, lambda: x.runtime.record_block_use(block, U), "work on a retired block")
        window.commit()


# ---------------------------------------------------------------------------------------------- frees
class Twice(DeviceMemoryResource):
    """Hands out addresses that are in use."""

    order = "stream"

    def __init__(self) -> None:
        super().__init__(0)
        self.ptr = int(check(cuda.cuMemAlloc(NBYTES)))
        self.freed = 0

    def allocate(self, nbytes: int, stream: Any) -> int:
        return self.ptr

    def deallocate(self, ptr: int, nbytes: int, stream: Any) -> None:
        self.freed += 1


@situation
def an_address_that_is_handed_out_twice(world: World, rng: Random) -> None:
    """The old block is the corrupt one: stale from then on, and never freed (W19)."""
    resource = Twice()
    with Scene(world, rng, resource=resource) as x:
        old, new = x.block(), x.block()
        x.lost_blocks = 1
        x.expect(x.runtime.live_bytes == NBYTES, f"{x.runtime.live_bytes} bytes are live after a collision")
        refused(world, UseAfterFreeError, old.free, "the free of a block that lost its address")
        new.free()
        x.expect(resource.freed == 1, f"memory that was handed out twice was freed {resource.freed} times")
    check(cuda.cuMemFree(resource.ptr))


class Recycling(DeviceMemoryResource):
    """Keeps what is freed, and hands it out again at once: a free has to be complete when it is called."""

    order = "host"

    def __init__(self) -> None:
        super().__init__(0)
        self.kept: list[int] = []

    def allocate(self, nbytes: int, stream: Any) -> int:
        return self.kept.pop() if self.kept else int(check(cuda.cuMemAlloc(NBYTES)))

    def deallocate(self, ptr: int, nbytes: int, stream: Any) -> None:
        self.kept.append(ptr)


@situation
def work_before_a_free_on_the_host(world: World, rng: Random) -> None:
    """"Freed on S" means after everything on S, recorded or not; a resource without streams waits for that too."""
    resource = Recycling()
    with Scene(world, rng, resource=resource) as x:
        S, T = x.stream(), x.stream()
        block = x.block(S)
        x.use(T, (block, WRITE))
        check(cuda.cuCtxSynchronize())
        x.work(S.handle, block, WRITE)
        block.free()
        x.use(T, (x.block(T), WRITE))
    for ptr in resource.kept:
        check(cuda.cuMemFree(ptr))


@situation
def work_before_its_stream_dies(world: World, rng: Random) -> None:
    """The heir frees the block after everything that was queued on the stream where it would have been freed."""
    with Scene(world, rng) as x:
        T, heir = x.stream(), x.stream()
        owner = ForeignStream(int(check(cuda.cuStreamCreate(1))))
        block = x.block(owner)
        x.use(T, (block, WRITE))
        check(cuda.cuCtxSynchronize())
        x.work(owner.handle, block, WRITE)
        x.runtime.unregister_stream(owner, heir=heir)
        block.free()


@situation
def an_interface_and_a_loan_on_one_stream(world: World, rng: Random) -> None:
    """The loan ends; who read the interface goes on working there without telling, and T knows S as of before."""
    with Scene(world, rng) as x:
        S, T = x.stream(), x.stream()
        block = x.block(S)
        loan = x.buffer(block).__dlpack__(stream=S.handle)
        x.offer(block, S)
        del loan
        x.use(T, (block, READ))                         # not fresh any more
        x.work(S.handle, block, READ)
        x.use(T, (block, WRITE))


@situation
def a_stream_under_another_discipline(world: World, rng: Random) -> None:
    """What could be hidden there before, or can be from now on, is waited for."""
    with Scene(world, rng) as x:
        T, U = x.stream(), x.stream()
        owner = ForeignStream(int(check(cuda.cuStreamCreate(1))))
        disciplines = rng.sample(["ordinary", "opaque", "sealed"], 3)
        named = x.runtime.register_stream(owner, discipline=disciplines[0])
        block = x.block(named)
        told = rng.random() < .5
        if told:
            x.offer(block, named)
        elsewhere = False
        for discipline in disciplines:
            x.runtime.register_stream(owner, discipline=discipline)
            x.use(U, (x.block(named), READ))            # a fence for what was filed so far
            if told or discipline == "opaque" or (discipline == "ordinary" and not elsewhere):
                x.work(owner.handle, block, READ if elsewhere else rng.choice([READ, WRITE]))
            elif rng.random() < .5:
                x.use(T, (block, rng.choice([READ, WRITE])))
                sure(cuda.cuStreamSynchronize, T.handle)
                elsewhere = True
            elif rng.random() < .5:
                x.use(named, (block, READ))
        if rng.random() < .5:
            x.runtime.unregister_stream(owner)
        x.use(T, (block, rng.choice([READ, WRITE])))
        block.free()
        x.runtime.reap_pending()


@situation
def an_address_that_comes_back_while_it_is_freed(world: World, rng: Random) -> None:
    """Once the resource has the bytes anybody may get the address, and is who lives there."""
    with Scene(world, rng) as x:
        S = x.stream()
        block = x.block(S)
        new: list[DeviceBlock] = []
        x.simulator.on_call("cuMemFreeAsync", lambda: new.append(x.block(S)), when="after")
        block.free()
        x.expect(x.runtime.find_block(new[0].ptr) == new[0].id, "a block cannot be found by its address")


# ---------------------------------------------------------------------------------------------- pools
def one_block() -> PoolMemoryResource:
    """A pool with room for one block: whoever takes one gets what the last owner had."""
    return PoolMemoryResource(maximum_pool_size=NBYTES)


@situation
def memory_that_was_filled_and_freed_unused(world: World, rng: Random) -> None:
    """T knows S as of the allocation, and takes what S filled since without a recorder."""
    with Scene(world, rng, resource=PoolMemoryResource(maximum_pool_size=2 * NBYTES)) as x:
        S, T = x.stream(), x.stream()
        block, other = x.block(S), x.block(S)
        x.use(T, (other, READ))
        x.work(S.handle, block, WRITE)
        block.free()
        x.work(T.handle, x.block(T), WRITE)


@situation
def neighbours_that_one_stream_freed(world: World, rng: Random) -> None:
    """T knows S as of when the lower was freed; of both together the newer position counts."""
    with Scene(world, rng, resource=PoolMemoryResource(maximum_pool_size=4 * NBYTES, chunk_size=4 * NBYTES)) as x:
        S, T = x.stream(), x.stream()
        lower, upper, other, kept = (x.block(S) for _ in range(4))
        x.work(S.handle, lower, WRITE)
        lower.free()
        x.use(T, (kept, READ))
        other.free()
        x.work(S.handle, upper, WRITE)
        upper.free()
        whole = x.runtime.allocate(3 * NBYTES, T)
        x.kernels.fill(T.handle, whole.ptr, 1, 3 * NBYTES // 4)
        whole.free()


@situation
def a_wait_for_memory_that_fails(world: World, rng: Random) -> None:
    """The memory stays what it was: the next call waits for its former owners."""
    with Scene(world, rng, resource=one_block()) as x:
        S, T = x.stream(), x.stream()
        block = x.block(S)
        x.work(S.handle, block, WRITE)
        block.free()
        x.simulator.fail(rng.choice(["cuStreamWaitEvent", "cuEventRecord"]), 1, 999)
        refused(world, DriverError, lambda: x.block(T), "an allocation that could not wait")
        x.work(T.handle, x.block(T), WRITE)


@situation
def a_sealed_home_that_knows_a_reader(world: World, rng: Random) -> None:
    """It takes no position when it frees, so what it knows is not implied: T, which knows S, waits for the reader."""
    with Scene(world, rng, resource=PoolMemoryResource(maximum_pool_size=2 * NBYTES)) as x:
        S, T, U = x.stream("sealed"), x.stream(), x.stream()
        block = x.block(S)
        x.use(S, (block, WRITE))
        x.use(U, (block, READ))
        other = x.block(U)
        x.use(S, (other, READ))                         # S knows U
        block.free()
        x.work(T.handle, x.block(T), WRITE)


@situation
def a_sealed_home_where_somebody_reads_the_interface(world: World, rng: Random) -> None:
    """He works there without telling, and T, which takes the memory, knows S only as of the interface."""
    with Scene(world, rng, resource=PoolMemoryResource(maximum_pool_size=2 * NBYTES)) as x:
        S, T = x.stream("sealed"), x.stream()
        block, other = x.block(S), x.block(S)
        x.offer(block, S)
        x.use(S, (other, WRITE))
        x.use(T, (other, READ))
        x.work(S.handle, block, WRITE)
        block.free()
        x.work(T.handle, x.block(T), WRITE)


@situation
def a_stream_that_is_gone_when_its_memory_is_taken(world: World, rng: Random) -> None:
    """A bare handle need not outlive the blocks that were freed on it."""
    with Scene(world, rng, resource=one_block()) as x:
        T = x.stream()
        handle = int(check(cuda.cuStreamCreate(1)))
        block = x.block(handle)
        x.work(handle, block, WRITE)
        block.free()
        x.blocks.clear()
        del block
        check(cuda.cuStreamDestroy(handle))
        x.work(T.handle, x.block(T), WRITE)


@situation
def two_calls_that_grow_at_once(world: World, rng: Random) -> None:
    """A pool is never larger than it may be."""
    pool = one_block()
    with Scene(world, rng, resource=pool) as x:
        S, T = x.stream(), x.stream()
        x.simulator.on_call("cuMemAllocFromPoolAsync", lambda: refused(
            world, DriverError, lambda: x.block(T), "memory beyond the maximum"))
        x.block(S)
        x.expect(pool.pool_size() == NBYTES, f"a pool of at most {NBYTES} bytes has {pool.pool_size()}")


# ---------------------------------------------------------------------------------------------- streams
@situation
def a_launch_while_its_stream_is_unregistered(world: World, rng: Random) -> None:
    """The last fence does not cover it, so it cannot be the last."""
    stays_open = rng.random() < .5
    with Scene(world, rng) as x:
        T, U = x.stream(), x.stream()
        owner = ForeignStream(int(check(cuda.cuStreamCreate(1))))
        S = x.runtime.register_stream(owner)
        block = x.block(U)
        windows = []

        def launch() -> None:
            window = x.prepare(S, (block, WRITE))
            x.work(S.handle, block, WRITE)
            windows.append(window)
            if not stays_open:
                window.commit()

        x.simulator.on_call("cuEventRecord", launch, when="after")
        refused(world, StreamMisuseError, lambda: x.runtime.unregister_stream(S, heir=U),
                "unregistering a stream in use")
        if stays_open:
            windows[0].commit()
        x.use(T, (block, READ))
        windows.clear()
        if S.registered:
            x.runtime.unregister_stream(S, heir=U)


@situation
def a_handle_that_comes_back(world: World, rng: Random) -> None:
    """The driver gives a new stream the handle of a destroyed one, whose work is not done yet (W15)."""
    with Scene(world, rng) as x:
        T = x.stream()
        handle = int(check(cuda.cuStreamCreate(1)))
        S = x.runtime.register_stream(handle)
        block = x.block(T)
        x.use(S, (block, WRITE))
        check(cuda.cuStreamDestroy(handle))
        again = int(check(cuda.cuStreamCreate(1)))
        x.expect(again == handle, "the simulated driver did not use the handle again")
        x.use(again, (block, READ_WRITE))
        x.expect(not S.registered, "a destroyed stream is still registered")
        x.runtime.unregister_stream(again)
        check(cuda.cuStreamDestroy(again))


@situation
def the_default_stream_of_another_thread(world: World, rng: Random) -> None:
    """Its handle means another stream here; its work is waited for all the same (W13)."""
    with Scene(world, rng) as x:
        block = x.block()

        def other() -> None:
            with world.context():
                x.use(2, (block, WRITE))

        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        if rng.random() < .5:
            x.use(2, (block, READ_WRITE))
        x.use(x.runtime.default_stream, (block, READ_WRITE))


class Silent(DeviceMemoryResource):
    """Does not say how its frees are ordered."""

    def allocate(self, nbytes: int, stream: Any) -> int:
        raise AssertionError("it was not refused")

    def deallocate(self, ptr: int, nbytes: int, stream: Any) -> None:
        raise AssertionError("it was not refused")


@situation
def parts_that_do_not_fit(world: World, rng: Random) -> None:
    """Streams and resources of another device, and a resource that promises nothing, are refused (W17, W21)."""
    with Scene(world, rng) as x:
        refused(world, XlogmemError, lambda: DeviceRuntime(resource=Silent(0)), "a resource that orders nothing")
        if _driver.device_count() < 2:
            return
        refused(world, XlogmemError, lambda: DeviceRuntime(resource=AsyncMemoryResource(1), stream_pool=StreamPool(0)),
                "a resource of another device")
        device = check(cuda.cuDeviceGet(1))
        check(cuda.cuCtxPushCurrent(check(cuda.cuDevicePrimaryCtxRetain(device))))
        stream = int(check(cuda.cuStreamCreate(1)))
        check(cuda.cuCtxPopCurrent())
        refused(world, StreamMisuseError, lambda: x.runtime.register_stream(stream), "a stream of another device")
        check(cuda.cuStreamDestroy(stream))
        check(cuda.cuDevicePrimaryCtxRelease(device))


# ---------------------------------------------------------------------------------------------- accounting
@situation
def a_reap_that_only_looks(world: World, rng: Random) -> None:
    """Bytes stay pending until the host has seen their frees complete, however many there are (W26, W30)."""
    with Scene(world, rng) as x:
        S, T = x.stream(), x.stream()
        first, other, *blocks = (x.block(S) for _ in range(2 + rng.choice([1, 64])))
        x.simulator.set_policy("min")
        first.free()
        x.use(T, (other, READ))                         # a fence that covers the first free
        check(cuda.cuStreamSynchronize(T.handle))
        for block in blocks:
            block.free()
        x.runtime.reap_pending(blocking=False)
        if x.simulator.pending_operations() >= len(blocks):
            x.expect(x.runtime.pending_bytes >= NBYTES * len(blocks),
                     f"{x.runtime.pending_bytes} bytes are pending of {NBYTES * len(blocks)} that are not free yet")
        x.simulator.set_policy("seeded", rng.randrange(1000))
        x.runtime.reap_pending()
        x.expect(x.runtime.pending_bytes == 0, "bytes are pending after a reap that waited")


@situation
def a_reap_in_the_middle_of_a_free(world: World, rng: Random) -> None:
    """Bytes are live or pending at every moment, and released only after their free was queued (W26, W27)."""
    with Scene(world, rng) as x:
        S, T = x.stream(), x.stream()
        block, other = x.block(S), x.block(S)
        seen = []
        x.simulator.set_policy("min")

        def look() -> None:
            seen.append(x.runtime.bytes_outstanding)
            x.use(T, (other, READ))                     # a fence of S, before the free
            check(cuda.cuStreamSynchronize(T.handle))

        x.simulator.on_call("cuMemFreeAsync", look)
        block.free()
        x.expect(seen == [2 * NBYTES], f"{seen} bytes were outstanding during a free of {NBYTES}")
        x.runtime.reap_pending(blocking=False)
        if x.simulator.pending_operations():
            x.expect(x.runtime.pending_bytes == NBYTES, "bytes were released whose free is not done")
        x.simulator.set_policy("seeded", rng.randrange(1000))


@situation
def a_reap_that_fails_on_one_stream(world: World, rng: Random) -> None:
    """The others are visited (W28)."""
    with Scene(world, rng) as x:
        S, T = x.stream(), x.stream()
        for stream in (S, T):
            x.block(stream).free()
        x.simulator.fail("cuEventSynchronize", 1, 999)
        refused(world, DriverError, x.runtime.reap_pending, "a failed wait of the host")
        x.expect(x.runtime.pending_bytes == NBYTES,
                 f"{x.runtime.pending_bytes} bytes are pending after a reap that failed on one stream of two")


# ---------------------------------------------------------------------------------------------- the process
@situation
def a_capture_that_begins_under_a_record(world: World, rng: Random) -> None:
    """S was not capturing when it was asked; when the event is recorded it is, and the event belongs to the graph."""
    with Scene(world, rng) as x:
        S, T = x.stream(), x.stream()
        block = x.block(S)
        if x.runtime.policy == "precise":
            x.work(S.handle, block, WRITE)              # no fence covers it
        else:
            x.use(S, (block, WRITE))
        relaxed = cuda.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
        x.simulator.on_call("cuEventRecord", lambda: check(cuda.cuStreamBeginCapture(S.handle, relaxed)))
        refused(world, StreamMisuseError, lambda: x.prepare(T, (block, READ)), "waiting for a stream that captures")
        check(cuda.cuGraphDestroy(check(cuda.cuStreamEndCapture(S.handle))))
        x.use(T, (block, READ))


@situation
def a_global_capture_elsewhere(world: World, rng: Random) -> None:
    """It forbids everybody's allocations, frees, queries and synchronizes, and is spoiled by them: not by ours."""
    with Scene(world, rng) as x:
        S, T, elsewhere = x.stream(), x.stream(), x.stream()
        mode = rng.choice([cuda.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL,
                           cuda.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL])
        kept = x.block(S)
        check(cuda.cuStreamBeginCapture(elsewhere.handle, mode))
        block = x.block(S)
        x.use(S, (block, WRITE))
        x.use(T, (block, READ), (kept, WRITE))
        block.free()
        x.runtime.reap_pending(blocking=rng.random() < .5)
        result = cuda.cuStreamEndCapture(elsewhere.handle)
        x.expect(int(result[0]) == 0, f"a capture elsewhere was spoiled: {result[0].name}")
        if int(result[0]) == 0:
            check(cuda.cuGraphDestroy(result[1]))


@situation
def a_forked_child(world: World, rng: Random) -> None:
    """CUDA cannot be used there, and only we say so."""
    if rng.random() > .2:                               # it takes longer than the others together
        return
    with Scene(world, rng) as x:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")             # Python's own about threads
            child = os.fork()
        if child == 0:
            try:
                x.runtime.allocate(NBYTES)
            except XlogmemError as error:
                os._exit("forked" not in str(error))
            finally:
                os._exit(2)
        for _ in range(1000):
            pid, status = os.waitpid(child, os.WNOHANG)
            if pid:
                x.expect(os.waitstatus_to_exitcode(status) == 0, "a forked child could allocate")
                return
            time.sleep(.01)
        os.kill(child, 9)
        os.waitpid(child, 0)
        x.expect(False, "a forked child did not end")
