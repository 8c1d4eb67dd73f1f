"""Situations of streams: unregistered or destroyed in use, of another thread, of another device."""
from __future__ import annotations

import threading
from random import Random
from typing import Any

from cuda.bindings import driver as cuda

from xlogmem import _driver
from xlogmem._devices import enable_peer_access
from xlogmem.blocks import DeviceBlock
from xlogmem.errors import StreamMisuseError, XlogmemError
from xlogmem.resources import AsyncMemoryResource, DeviceMemoryResource
from xlogmem.runtime import DeviceRuntime
from xlogmem.sim.kernels import check
from xlogmem.streams import StreamPool
from xlogmem_selftest.registry import situation
from xlogmem_selftest.situations.scene import NBYTES, Scene
from xlogmem_selftest.world import READ, READ_WRITE, WRITE, ForeignStream, World, refused, tools


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
        refused(world, StreamMisuseError, lambda: x.runtime.unregister_stream(S, successor=U),
                "unregistering a stream in use")
        if stays_open:
            windows[0].commit()
        x.use(T, (block, READ))
        windows.clear()
        if S.registered:
            x.runtime.unregister_stream(S, successor=U)


@situation
def a_handle_that_comes_back(world: World, rng: Random) -> None:
    """The driver gives a new stream the handle of a destroyed one, whose work is not done yet."""
    with Scene(world, rng) as x:
        T = x.stream()
        handle = int(check(cuda.cuStreamCreate(1)))
        S = x.runtime.register_stream(handle)
        block = x.block(T)
        x.use(S, (block, WRITE))
        if rng.random() < .5:
            x.use(T, (block, READ))                     # a fence, which is not the last
            x.use(S, (block, WRITE))
        check(cuda.cuStreamDestroy(handle))
        again = int(check(cuda.cuStreamCreate(1)))
        x.expect(again == handle, "the simulated driver did not use the handle again")
        x.runtime.register_stream(again)
        x.expect(not S.registered, "a destroyed stream is still registered")
        del S
        other = ForeignStream(int(check(cuda.cuStreamCreate(1))))
        x.runtime.register_stream(other)
        x.use(again, (block, READ_WRITE))
        x.runtime.unregister_stream(again)
        check(cuda.cuStreamDestroy(again))


def taken_over(x: Scene, home: Any) -> tuple[DeviceBlock, int]:
    """A block with an entry of a dead stream, and a stream that has the index of that one."""
    dead = ForeignStream(int(check(cuda.cuStreamCreate(1))))
    block = x.block(home)
    x.use(dead, (block, WRITE))
    x.runtime.unregister_stream(dead)
    x.runtime.reap_pending()
    count = x.runtime.stream_count()
    handle = int(check(cuda.cuStreamCreate(1)))
    x.runtime.register_stream(handle)
    x.expect(x.runtime.stream_count() == count, "the index of a dead stream is not used again")
    return block, handle


@situation
def an_index_that_another_stream_has_now(world: World, rng: Random) -> None:
    """A use filed there before is complete: the new stream, which is destroyed, has nothing to do with it."""
    with Scene(world, rng) as x:
        S, T = x.stream(), x.stream()
        block, handle = taken_over(x, S)
        x.runtime.register_stream(handle, discipline="opaque")
        check(cuda.cuStreamDestroy(handle))
        x.use(T, (block, rng.choice([READ, WRITE])))
        block.free()


@situation
def an_index_that_the_home_has_now(world: World, rng: Random) -> None:
    """The home is opaque from now on; the entry at its index is not its own, and says nothing about work there."""
    with Scene(world, rng) as x:
        T = x.stream()
        home = ForeignStream(int(check(cuda.cuStreamCreate(1))))
        block, handle = taken_over(x, home)
        x.runtime.unregister_stream(home, successor=handle)
        x.use(T, (block, READ))
        check(cuda.cuStreamSynchronize(T.handle))
        x.runtime.register_stream(handle, discipline="opaque")
        x.work(handle, block, WRITE)
        x.use(T, (block, WRITE))
        x.runtime.unregister_stream(handle)
        check(cuda.cuStreamDestroy(handle))


@situation
def the_default_stream_of_another_thread(world: World, rng: Random) -> None:
    """Its handle means another stream here; its work is waited for all the same."""
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


@situation
def a_stream_that_another_device_knows(world: World, rng: Random) -> None:
    """It is not unregistered at home while that uses it; later its last fence stands for what it did elsewhere."""
    if _driver.device_count() < 2:
        return
    enable_peer_access(1, 0)
    with Scene(world, rng) as x:
        T, block = x.stream(), x.block()
        home = DeviceRuntime(1, stream_pool=StreamPool(1, max_streams=2))
        with world.context(1):
            handle = int(check(cuda.cuStreamCreate(1)))
            S = home.register_stream(handle)
            recorder = x.prepare(S, (block, WRITE))
            tools(1)[1].fill(handle, block.ptr, 1, NBYTES // 4)
            refused(world, StreamMisuseError, lambda: home.unregister_stream(S),
                    "unregistering a stream in use elsewhere")
            recorder.commit()
            home.unregister_stream(S)
            check(cuda.cuStreamDestroy(handle))
        x.use(T, (block, READ))


class Silent(DeviceMemoryResource):
    """A resource that does not say how its frees are ordered."""

    def allocate(self, nbytes: int, stream: Any) -> int:
        raise AssertionError("it was not refused")

    def deallocate(self, ptr: int, nbytes: int, stream: Any) -> None:
        raise AssertionError("it was not refused")


@situation
def parts_that_do_not_fit(world: World, rng: Random) -> None:
    """Streams and resources of another device, and a resource that promises nothing, are refused."""
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
