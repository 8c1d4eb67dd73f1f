"""Steps about which block an address, a handle or a buffer means, and which runtime a stream belongs to."""
from __future__ import annotations

from random import Random
from typing import ClassVar

from xlogmem.errors import StreamMisuseError, UseAfterFreeError
from xlogmem.launch import LaunchRecorder
from xlogmem_selftest.registry import step
from xlogmem_selftest.world import NothingToDo, World, refused


class Empty:
    """An array without elements."""

    __cuda_array_interface__: ClassVar = {"shape": (0,), "typestr": "<u4", "data": (0, False), "version": 3}


@step
def empty(world: World, rng: Random) -> None:
    """A buffer of no bytes belongs to no block, and is safe."""
    with world.on(rng) as stream:
        if stream in world.capturing or not world.protect:
            raise NothingToDo
        world.say(f"with use({stream}, write=<no bytes>): pass")
        with LaunchRecorder(world.argument(stream, rng), runtime=world.runtime_for(rng, stream)).write(Empty()):
            pass


@step
def look_up(world: World, rng: Random) -> None:
    """An address inside a block is that block's; live blocks are found, freed ones are not."""
    with world.holding(rng) as item:
        world.say(f"runtime.find_block({item})")
        found = world.runtime_of(item).find_block(item.ptr + rng.randrange(item.nbytes))
        if found != item.id:
            world.violation(f"the address of {item} (generation {item.id.generation}) is {found}'s")


@step
def stale(world: World, rng: Random) -> None:
    """Handles of freed blocks stay dead, whichever block is at their address now."""
    with world.lock:
        if not world.stale:
            raise NothingToDo
        identity, block = rng.choice(list(world.stale))
    with world.on(rng) as stream:
        if stream in world.capturing or not world.protect:
            raise NothingToDo
        if world.kind.foreign and stream.kind != "own":  # naming it queries the driver, which may refuse too
            raise NothingToDo
        world.say(f"use and free of generation {identity.generation}, which is freed")
        recorder = LaunchRecorder(stream.argument, runtime=world.runtime_of(stream))

        def again() -> None:
            recorder.read(identity if rng.random() < .5 else block)
            recorder.preflight()

        refused(world, UseAfterFreeError, again, "the use of a freed block")
        refused(world, UseAfterFreeError, block.free, "the second free of a block")


@step
def wrong_runtime(world: World, rng: Random) -> None:
    """A stream of one runtime is not a stream of another, whatever its number."""
    if world.neighbour is None:
        raise NothingToDo
    world.say("runtime.allocate(256, a stream of another runtime)")
    stream = world.neighbour.default_stream
    refused(world, StreamMisuseError, lambda: world.runtime.allocate(256, stream), "a stream of another runtime")
