"""Steps that allocate and free, and steps about freed memory: reaped, trimmed, accounted for."""
from __future__ import annotations

import gc
from random import Random
from typing import Any

from xlogmem.resources import PoolMemoryResource
from xlogmem.resources.layers import find_layer
from xlogmem_selftest.registry import step
from xlogmem_selftest.world import ROOM, NothingToDo, World


@step
def allocate(world: World, rng: Random) -> None:
    if len(world.items) > ROOM * max(1, world.threads // 2):
        drop(world, rng)
        return
    nbytes = rng.choice(world.sizes)
    with world.on(rng) as stream:
        runtime = world.runtime_of(stream)
        if rng.random() < .3:                           # often enough for the cache of the stream
            for _ in range(4):
                runtime.allocate(nbytes, world.argument(stream, rng)).free()
        block = runtime.allocate(nbytes, world.argument(stream, rng))
        item = world.add_item(block, stream)
        world.say(f"{item} = {world.name_of(stream.device)}.allocate({nbytes}, {stream})  # {item.ptr:#x}")


@step
def free(world: World, rng: Random) -> None:
    """At any time, by any thread, on any stream; after one of another device, at home."""
    item = world.take_item(rng)
    block, before = item.block, item.home
    elsewhere = not item.from_neighbour and (item.home is not None or item.adopted) and rng.random() < .5
    stream = None
    try:
        if elsewhere:
            stream = world.enter_stream(rng)
            if stream.device == item.device:
                item.home = stream
        world.say(f"{item}.free({stream or ''})")
        assert block is not None
        block.free(world.argument(stream, rng) if stream else None)
        item.block = None
        world.freed(item, block)
    except BaseException:
        item.home = before
        world.restore(item)
        raise
    finally:
        if stream:
            world.leave_stream(stream)


@step
def drop(world: World, rng: Random) -> None:
    """The last reference goes, by itself or with a cycle of garbage."""
    item = world.take_item(rng)
    world.say(f"del {item}")
    if rng.random() < .3:
        cycle: list[Any] = [item.block]
        cycle.append(cycle)
    item.block = None
    world.freed(item)


@step
def collect(world: World, rng: Random) -> None:
    world.say("gc.collect()")
    gc.collect()


@step
def reap(world: World, rng: Random) -> None:
    blocking = rng.random() < .3
    device = world.draw_device(rng)
    world.say(f"{world.name_of(device)}.reap_pending(blocking={blocking})")
    world.runtimes[device].reap_pending(blocking=blocking)


@step
def trim(world: World, rng: Random) -> None:
    """A pool returns idle chunks upstream while other threads allocate and free."""
    device = world.draw_device(rng)
    pool = find_layer(world.runtimes[device].resource, PoolMemoryResource)
    if pool is None:
        raise NothingToDo
    keep = rng.choice([0, 0, 2 * max(world.sizes)])
    world.say(f"{world.name_of(device)}.resource.trim({keep})")
    pool.trim(keep)


@step
def account(world: World, rng: Random) -> None:
    """The figures agree with what the program knows, to the byte."""
    kind = world.kind
    if world.depth or kind.failures or kind.captures or kind.gaps or kind.foreign or not world.protect:
        raise NothingToDo
    gc.collect()
    device = world.draw_device(rng)
    runtime = world.runtimes[device]
    runtime.reap_pending()
    live = sum(item.nbytes for item in world.all_items
               if item.device == device and not item.adopted and (not item.gone or item.open or item.exports))
    seen = runtime.live_bytes, runtime.pending_bytes, runtime.bytes_outstanding
    if seen != (live, 0, live):
        world.violation(f"live, pending and outstanding bytes are {seen}, not {(live, 0, live)}")
