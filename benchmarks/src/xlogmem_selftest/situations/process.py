"""Situations of the whole process: its accounts, captures of other streams, a lost context, a fork."""
from __future__ import annotations

import gc
import os
import threading
import time
import warnings
from random import Random
from typing import Any

from cuda.bindings import driver as cuda

from xlogmem.errors import DeviceLostError, DriverError, StreamMisuseError, XlogmemError
from xlogmem.interop.devices import DeviceState
from xlogmem.launch import use
from xlogmem.resources import AsyncMemoryResource, DeviceMemoryResource
from xlogmem.runtime import DeviceRuntime
from xlogmem.sim.kernels import check
from xlogmem_selftest.registry import situation
from xlogmem_selftest.situations.scene import NBYTES, Scene
from xlogmem_selftest.world import READ, WRITE, ForeignStream, World, refused


@situation
def a_reap_that_only_looks(world: World, rng: Random) -> None:
    """Bytes stay pending until the host has seen their frees complete, however many there are."""
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
        pending = x.runtime.pending_bytes               # the query may run some of what is queued
        if x.simulator.pending_operations() >= len(blocks):
            x.expect(pending >= NBYTES * len(blocks),
                     f"{pending} bytes are pending of {NBYTES * len(blocks)} that are not free yet")
        x.simulator.set_policy("seeded", rng.randrange(1000))
        x.runtime.reap_pending()
        x.expect(x.runtime.pending_bytes == 0, "bytes are pending after a reap that waited")


@situation
def a_reap_in_the_middle_of_a_free(world: World, rng: Random) -> None:
    """Bytes are live or pending at every moment, and released only after their free was queued."""
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
        pending = x.runtime.pending_bytes
        if x.simulator.pending_operations():
            x.expect(pending == NBYTES, "bytes were released whose free is not done")
        x.simulator.set_policy("seeded", rng.randrange(1000))


@situation
def a_reap_that_fails_on_one_stream(world: World, rng: Random) -> None:
    """The other streams are visited."""
    with Scene(world, rng) as x:
        S, T = x.stream(), x.stream()
        for stream in (S, T):
            x.block(stream).free()
        x.simulator.fail("cuEventSynchronize", 1, 999)
        refused(world, DriverError, x.runtime.reap_pending, "a failed wait of the host")
        x.simulator.fail("cuEventQuery", 1, 999)
        pending = x.runtime.pending_bytes
        x.expect(pending == NBYTES, f"{pending} bytes are pending after a reap that failed on one stream of two")


@situation
def a_capture_that_begins_under_a_record(world: World, rng: Random) -> None:
    """S was not capturing when it was queried; when the event is recorded it is, and the event belongs to the graph."""
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
    """It forbids allocations, frees, queries and synchronizes on every stream, and they invalidate it; ours do not."""
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
        x.expect(int(result[0]) == 0, f"a capture elsewhere was invalidated: {result[0].name}")
        if int(result[0]) == 0:
            check(cuda.cuGraphDestroy(result[1]))


@situation
def an_error_that_loses_the_device(world: World, rng: Random) -> None:
    """Whatever call meets it, later ones fail without the driver."""
    runtime = DeviceRuntime()
    with Scene(world, rng) as x:
        x.simulator.fail("cuStreamCreateWithPriority", code=rng.choice([226, 700, 719, 911]))
        refused(world, DeviceLostError, runtime.acquire_stream, "a stream of a lost device")
        x.expect(runtime.lost, "a runtime goes on in a broken context")


@situation
def a_context_that_is_replaced_beside_a_fill(world: World, rng: Random) -> None:
    """A fill that began in the old context ends there before there is a new context."""
    state = DeviceState(DeviceRuntime())
    with Scene(world, rng) as x:
        buffer = state.empty(NBYTES, "uint8")
        block = buffer.access()
        assert block is not None
        ptr = block.ptr
        epochs: list[int] = []
        held = x.simulator.hold("cuMemsetD8Async")
        x.simulator.on_call("cuMemsetD8Async", lambda: epochs.append(state.epoch), when="after")
        filler = threading.Thread(target=buffer.fill, args=(1,))
        recovery = threading.Thread(target=state.recover)
        filler.start()
        held.reached()
        state.mark_lost()
        recovery.start()
        recovery.join(.01)                              # it may get that far only if it is wrong
        held.release()
        filler.join()
        recovery.join()
        x.expect(epochs == [1], f"a fill of epoch 0 was enqueued in epoch {epochs}")
        x.expect(state.epoch == 2, f"the epoch is {state.epoch} after a recovery")
        del buffer, block, filler
        check(cuda.cuCtxSynchronize())
        check(cuda.cuMemFreeAsync(ptr, 0))              # a runtime that is lost cannot
        check(cuda.cuCtxSynchronize())


@situation
def work_behind_a_large_free(world: World, rng: Random) -> None:
    """A reap waits for the free, and not for what was queued after it."""
    with Scene(world, rng) as x:
        S, block = x.stream(), x.block()
        x.use(S, (block, READ))
        x.simulator.set_policy("min")
        large = x.runtime.allocate(64 << 20, S)
        large.free()
        x.use(S, (block, READ))
        x.runtime.reap_pending()
        records = x.runtime.counters()["records"]
        x.expect(x.simulator.pending_operations() > 0, "a reap waited for work that was queued after a large free")
        x.expect(x.runtime.pending_bytes == 0 and x.runtime.counters()["records"] == records,
                 "bytes are pending after a reap")
        x.simulator.set_policy("seeded", rng.randrange(1000))


@situation
def figures_without_a_reap(world: World, rng: Random) -> None:
    """Bytes do not count as pending that the device has long released."""
    with Scene(world, rng) as x:
        S = x.stream()
        x.runtime.allocate(64 << 20, S).free()
        check(cuda.cuStreamSynchronize(S.handle))
        x.expect(x.runtime.pending_bytes == 0, "bytes of a free that is complete are pending")


@situation
def a_capture_on_a_stream_that_no_runtime_knows(world: World, rng: Random) -> None:
    """A wait for the whole context would end it, so calls that do not say that they wait put that off."""
    with Scene(world, rng) as x:
        block, elsewhere = x.block(), ForeignStream(int(check(cuda.cuStreamCreate(1))))
        export = x.buffer(block).__dlpack__(stream=-1)
        del export
        relaxed = cuda.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
        check(cuda.cuStreamBeginCapture(elsewhere.handle, relaxed))
        x.simulator.fail("cuMemAllocFromPoolAsync", 1, 2)
        x.block()
        x.runtime.reap_pending(blocking=False)
        result = cuda.cuStreamEndCapture(elsewhere.handle)
        x.expect(int(result[0]) == 0, f"a capture that cannot be seen was ended: {result[0].name}")
        if int(result[0]) == 0:
            check(cuda.cuGraphDestroy(result[1]))


class Counted(DeviceMemoryResource):
    """Counts the blocks that were not freed."""

    order = "stream"

    def __init__(self) -> None:
        super().__init__(0)
        self.live = 0

    def allocate(self, nbytes: int, stream: Any) -> int:
        self.live += 1
        return int(check(cuda.cuMemAllocAsync(nbytes, stream)))

    def deallocate(self, ptr: int, nbytes: int, stream: Any) -> None:
        check(cuda.cuMemFreeAsync(ptr, stream))
        self.live -= 1


class Application:
    """Refers to itself, so the collector ends it."""

    block: Any
    owner: Any
    itself: Any


@situation
def a_runtime_that_ends_with_something_left(world: World, rng: Random) -> None:
    """Its last block was filled on a stream that is gone, or is in one cycle with the owner of its stream."""
    resource, application = Counted(), Application()
    runtime, owner = DeviceRuntime(resource=resource), ForeignStream(int(check(cuda.cuStreamCreate(1))))
    stream: Any = owner if rng.random() < .5 else owner.handle
    application.block = runtime.allocate(NBYTES, stream)
    check(cuda.cuMemsetD8Async(application.block.ptr, 1, NBYTES, owner.handle))
    application.owner, application.itself = owner, application
    del runtime, owner, stream, application
    gc.collect()
    DeviceRuntime(resource=AsyncMemoryResource())
    if resource.live:
        world.violation(f"{resource.live} blocks are left of a runtime that ended")


@situation
def a_dropped_block_whose_reader_captures(world: World, rng: Random) -> None:
    """It is freed after the capture, and no reap fails because of it."""
    with Scene(world, rng, policy="lazy") as x:
        S, T = x.stream(), x.stream()
        block = x.runtime.allocate(NBYTES, S)
        x.use(T, (block, READ))
        relaxed = cuda.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
        check(cuda.cuStreamBeginCapture(T.handle, relaxed))
        del block
        try:
            x.runtime.reap_pending(blocking=rng.random() < .5)
        except XlogmemError as error:
            x.expect(False, f"a reap failed because of a capture: {error}")
        check(cuda.cuGraphDestroy(check(cuda.cuStreamEndCapture(T.handle))))


@situation
def a_forked_child(world: World, rng: Random) -> None:
    """CUDA cannot be used there, and only xlogmem reports it; no lock stays held that another thread held."""
    if rng.random() > .2:                               # it takes longer than all other situations together
        return
    with Scene(world, rng) as x:
        S = x.stream()
        block, stop = x.block(S), threading.Event()

        def keep_the_lock_busy() -> None:
            while not stop.is_set():
                with use(S, read=[block] * 5000):
                    pass

        busy = threading.Thread(target=keep_the_lock_busy)
        busy.start()
        try:
            for _ in range(3):
                status = _status_of_child(x.runtime)
                x.expect(status is not None, "a forked child did not end")
                x.expect(status in (0, None), "a forked child could allocate")
                if status != 0:
                    break
        finally:
            stop.set()
            busy.join()


def _status_of_child(runtime: DeviceRuntime) -> int | None:
    """Exit status of a child that looks, then allocates: 0 if it could look and was refused, None if it did not end."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")                 # Python's own about threads
        child = os.fork()
    if child == 0:
        try:
            _ = runtime.live_bytes
            runtime.allocate(NBYTES)
        except XlogmemError as error:
            os._exit("forked" not in str(error))
        finally:
            os._exit(2)
    for _ in range(1000):
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status)
        time.sleep(.01)
    os.kill(child, 9)
    os.waitpid(child, 0)
    return None
