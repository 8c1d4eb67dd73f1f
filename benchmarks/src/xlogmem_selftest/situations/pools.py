"""Situations of pools: waits of a stream that takes free memory."""
from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from random import Random
from typing import Any

from cuda.bindings import driver as cuda

from xlogmem.errors import DriverError, OutOfDeviceMemoryError
from xlogmem.resources import AsyncMemoryResource, DeviceMemoryResource, PoolMemoryResource
from xlogmem.sim.kernels import check
from xlogmem_selftest.registry import situation
from xlogmem_selftest.situations.scene import NBYTES, Scene
from xlogmem_selftest.world import READ, WRITE, World, refused

AWHILE = .05                                            # seconds that a call is held up


def one_block() -> PoolMemoryResource:
    """A pool with room for one block: each allocation gets the memory of the last one."""
    return PoolMemoryResource(maximum_pool_size=NBYTES)


@situation
def memory_that_was_filled_and_freed_unused(world: World, rng: Random) -> None:
    """T is ordered after S as of the allocation, and takes what S filled since without a recorder."""
    with Scene(world, rng, resource=PoolMemoryResource(maximum_pool_size=2 * NBYTES)) as x:
        S, T = x.stream(), x.stream()
        block, other = x.block(S), x.block(S)
        x.use(T, (other, READ))
        x.work(S.handle, block, WRITE)
        block.free()
        x.work(T.handle, x.block(T), WRITE)


@situation
def neighbours_that_one_stream_freed(world: World, rng: Random) -> None:
    """T is ordered after S as of the free of the lower one; of both together the newer position counts."""
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
    """The memory stays what it was: the next call waits for its former users."""
    with Scene(world, rng, resource=one_block()) as x:
        S, T = x.stream(), x.stream()
        block = x.block(S)
        x.work(S.handle, block, WRITE)
        block.free()
        x.simulator.fail(rng.choice(["cuStreamWaitEvent", "cuEventRecord"]), 1, 999)
        refused(world, DriverError, lambda: x.block(T), "an allocation that could not wait")
        x.work(T.handle, x.block(T), WRITE)


@situation
def a_sealed_home_ordered_after_a_reader(world: World, rng: Random) -> None:
    """It takes no position when it frees, so its clock is not implied: T, ordered after S, waits for the reader."""
    with Scene(world, rng, resource=PoolMemoryResource(maximum_pool_size=2 * NBYTES)) as x:
        S, T, U = x.stream("sealed"), x.stream(), x.stream()
        block = x.block(S)
        x.use(S, (block, WRITE))
        x.use(U, (block, READ))
        other = x.block(U)
        x.use(S, (other, READ))                         # S is ordered after U
        block.free()
        x.work(T.handle, x.block(T), WRITE)


@situation
def a_sealed_home_whose_interface_is_read(world: World, rng: Random) -> None:
    """The reader queues unrecorded work, and T, which takes the memory, is ordered after S only as of the interface."""
    with Scene(world, rng, resource=PoolMemoryResource(maximum_pool_size=2 * NBYTES)) as x:
        S, T = x.stream("sealed"), x.stream()
        block, other = x.block(S), x.block(S)
        x.read_interface(block, S)
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
        refused(world, OutOfDeviceMemoryError, lambda: x.block(T), "memory that has to be waited for with the context")
        x.runtime.reap_pending()
        x.work(T.handle, x.block(T), WRITE)


@situation
def two_calls_that_expand_at_once(world: World, rng: Random) -> None:
    """A pool is never larger than it may be."""
    pool = one_block()
    with Scene(world, rng, resource=pool) as x:
        S, T = x.stream(), x.stream()
        x.simulator.on_call("cuMemAllocFromPoolAsync", lambda: refused(
            world, DriverError, lambda: x.block(T), "memory beyond the maximum"))
        x.block(S)
        x.expect(pool.pool_size() == NBYTES, f"a pool of at most {NBYTES} bytes has {pool.pool_size()}")


@situation
def memory_that_another_call_has_in_hand(world: World, rng: Random) -> None:
    """The only chunk is on its way back to upstream: an allocation waits for that, and takes it again."""
    pool = one_block()
    with Scene(world, rng, resource=pool) as x:
        S = x.stream()
        x.block(S).free()
        hold = x.simulator.hold("cuMemFreeAsync", 1, AWHILE)
        thread = threading.Thread(target=pool.trim)
        thread.start()
        hold.reached()
        try:
            x.block(S)
        except OutOfDeviceMemoryError as error:
            x.expect(False, f"a pool whose memory is being returned is out of memory: {error}")
        thread.join()


class NotYetError(MemoryError):
    """Calls something when it is dropped."""

    def __init__(self, then: Callable[[], object]) -> None:
        super().__init__("not yet")
        self.then = then

    def __del__(self) -> None:
        self.then()


class Reluctant(DeviceMemoryResource):
    """Refuses the first request."""

    order = "stream"

    def __init__(self, then: Callable[[], object]) -> None:
        super().__init__(0)
        self.then = [then]
        self.below = AsyncMemoryResource()

    def allocate(self, nbytes: int, stream: Any) -> int:
        if self.then:
            raise NotYetError(self.then.pop())
        return self.below.allocate(nbytes, stream)

    def deallocate(self, ptr: int, nbytes: int, stream: Any) -> None:
        self.below.deallocate(ptr, nbytes, stream)


@situation
def room_that_another_call_took_between_two_tries(world: World, rng: Random) -> None:
    """A pool is never larger than it may be, though upstream first refuses and another allocation comes then."""
    most = 3 * NBYTES // 2
    pool = PoolMemoryResource(Reluctant(lambda: x.block(S)), maximum_pool_size=most, chunk_size=most)
    with Scene(world, rng, resource=pool) as x:
        S = x.stream()
        with suppress(OutOfDeviceMemoryError):
            x.runtime.allocate(most // 2, S).free()
        x.expect(pool.pool_size() <= most, f"a pool of at most {most} bytes has {pool.pool_size()}")
