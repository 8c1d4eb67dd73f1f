"""Situations of frees: addresses used twice, unrecorded work, streams that are unregistered."""
from __future__ import annotations

import warnings
from random import Random
from typing import Any

from cuda.bindings import driver as cuda

from xlogmem.blocks import DeviceBlock
from xlogmem.errors import DriverError, UseAfterFreeError
from xlogmem.resources import DeviceMemoryResource
from xlogmem.sim.kernels import check
from xlogmem_selftest.registry import situation
from xlogmem_selftest.situations.scene import NBYTES, Scene
from xlogmem_selftest.world import READ, READ_WRITE, WRITE, ForeignStream, World, refused, sure


class Twice(DeviceMemoryResource):
    """Allocates the same address again and again."""

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
    """The old block is the corrupt one: stale from then on, and never freed."""
    resource = Twice()
    with Scene(world, rng, resource=resource) as x:
        old = x.block()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            new = x.block()
        x.lost_blocks = 1
        x.expect(x.runtime.counters()["evictions"] == 1, "a collision of addresses was not counted")
        x.expect(x.runtime.live_bytes == NBYTES, f"{x.runtime.live_bytes} bytes are live after a collision")
        refused(world, UseAfterFreeError, old.free, "the free of a block that lost its address")
        new.free()
        x.expect(resource.freed == 1, f"memory that was handed out twice was freed {resource.freed} times")
    check(cuda.cuMemFree(resource.ptr))


class Recycling(DeviceMemoryResource):
    """Keeps freed memory and allocates it again at once: the memory has to be unused when `deallocate` is called."""

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
def a_free_away_from_a_home_that_became_opaque(world: World, rng: Random) -> None:
    """Writers elsewhere left no entry of the home, whose owner queues unrecorded work from then on."""
    with Scene(world, rng) as x:
        T = x.stream()
        owner = ForeignStream(int(check(cuda.cuStreamCreate(1))))
        block = x.block(owner)
        for _ in range(2):
            x.use(T, (block, WRITE))
        sure(cuda.cuStreamSynchronize, T.handle)
        x.runtime.register_stream(owner, discipline="opaque")
        x.work(owner.handle, block, WRITE)
        block.free(T)


@situation
def a_free_that_failed_elsewhere(world: World, rng: Random) -> None:
    """The block is still freed where it would have been: without a stream, once the host has seen its uses complete."""
    with Scene(world, rng) as x:
        S, T, U = x.stream(), x.stream(), x.stream()
        ptr = int(check(cuda.cuMemAllocAsync(NBYTES, U.handle)))
        sure(cuda.cuStreamSynchronize, U.handle)
        adopted = x.runtime.adopt(ptr, NBYTES)
        x.use(T, (adopted, WRITE))
        x.simulator.fail("cuStreamWaitEvent", 1, 999)
        refused(world, DriverError, lambda: adopted.free(S), "a free whose wait fails")
        adopted.free()
        check(cuda.cuMemFreeAsync(ptr, U.handle))


@situation
def work_before_its_stream_is_unregistered(world: World, rng: Random) -> None:
    """The successor frees the block after everything queued on the stream where it would have been freed."""
    with Scene(world, rng) as x:
        T, successor = x.stream(), x.stream()
        owner = ForeignStream(int(check(cuda.cuStreamCreate(1))))
        block = x.block(owner)
        x.use(T, (block, WRITE))
        check(cuda.cuCtxSynchronize())
        x.work(owner.handle, block, WRITE)
        x.runtime.unregister_stream(owner, successor=successor)
        block.free()


@situation
def an_interface_and_an_export_on_one_stream(world: World, rng: Random) -> None:
    """The export is released; the reader of the interface still queues unrecorded work, and T is ordered after S as of
    before."""
    with Scene(world, rng) as x:
        S, T = x.stream(), x.stream()
        block = x.block(S)
        export = x.buffer(block).__dlpack__(stream=S.handle)
        x.read_interface(block, S)
        del export
        x.use(T, (block, READ_WRITE))                   # S waits for it, and T has waited for all of S
        x.work(S.handle, block, READ)
        x.use(T, (block, WRITE))


@situation
def a_consumer_that_goes_on_after_a_use_elsewhere(world: World, rng: Random) -> None:
    """It has the memory until it releases its export, or as long as it reads an interface, and keeps no record."""
    with Scene(world, rng) as x:
        S, T = x.stream("sealed"), x.stream()
        block = x.block(S)
        export = None
        if rng.random() < .5:
            export = x.buffer(block).__dlpack__(stream=S.handle)
        else:
            x.read_interface(block, S)
        x.use(T, (block, WRITE))
        x.work(S.handle, block, READ)
        del export


@situation
def a_stream_under_another_discipline(world: World, rng: Random) -> None:
    """Unrecorded work that was possible before, or is from now on, is waited for."""
    with Scene(world, rng) as x:
        T, U = x.stream(), x.stream()
        owner = ForeignStream(int(check(cuda.cuStreamCreate(1))))
        disciplines = rng.sample(["ordinary", "opaque", "sealed"], 3)
        named = x.runtime.register_stream(owner, discipline=disciplines[0])
        block = x.block(named)
        interface = rng.random() < .5
        if interface:
            x.read_interface(block, named)
        elsewhere = False
        for discipline in disciplines:
            x.runtime.register_stream(owner, discipline=discipline)
            x.use(U, (x.block(named), READ))            # a fence for what was recorded so far
            if interface or discipline == "opaque" or (discipline == "ordinary" and not elsewhere):
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
    """Once the resource has the memory another block may get the address, which then means that block."""
    with Scene(world, rng) as x:
        S = x.stream()
        block = x.block(S)
        new: list[DeviceBlock] = []
        x.simulator.on_call("cuMemFreeAsync", lambda: new.append(x.block(S)), when="after")
        block.free()
        x.expect(x.runtime.find_block(new[0].ptr) == new[0].id, "a block cannot be found by its address")


@situation
def a_free_on_a_bare_handle_that_is_put_off(world: World, rng: Random) -> None:
    """Its stream is destroyed before the free is carried out, which comes after what was queued there."""
    with Scene(world, rng) as x:
        block, T = x.block(x.stream()), x.stream()
        handle = int(check(cuda.cuStreamCreate(1)))
        check(cuda.cuCtxSynchronize())
        window = x.prepare(T, (block, READ))
        x.work(T.handle, block, READ)
        x.work(handle, block, READ)
        block.free(handle)
        check(cuda.cuStreamDestroy(handle))
        window.commit()


@situation
def an_export_to_a_bare_handle(world: World, rng: Random) -> None:
    """Its stream is destroyed once the consumer has returned the memory."""
    with Scene(world, rng) as x:
        block, T = x.block(x.stream()), x.stream()
        handle = int(check(cuda.cuStreamCreate(1)))
        export = x.buffer(block).__dlpack__(stream=handle)
        del export
        check(cuda.cuStreamDestroy(handle))
        x.use(T, (block, WRITE))
