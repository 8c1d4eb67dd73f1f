"""Steps that adopt memory: of another library, of another runtime, or parts that overlap a block."""
from __future__ import annotations

from random import Random

from cuda.bindings import driver as cuda

from xlogmem.errors import StreamMisuseError
from xlogmem_selftest.registry import step
from xlogmem_selftest.world import PARTS, ROOM, NothingToDo, Owner, World, refused, sure, tools


@step
def adopt(world: World, rng: Random) -> None:
    """Memory of another library: its work is queued on a stream, or the memory is ready on every stream."""
    if len(world.items) > ROOM * max(1, world.threads // 2):
        raise NothingToDo
    with world.on(rng) as stream:
        aside = world.asides[stream.device]
        with world.context(stream.device):
            ptr = int(sure(cuda.cuMemAllocAsync, 1024, aside))
            sure(cuda.cuStreamSynchronize, aside)
            owner = Owner(world, ptr, stream.device)
            world.ready_for_work(stream)
            tools(stream.device)[1].fill(stream.handle, ptr, 0, 256)
        home = stream if rng.random() < .75 else None
        if home is None:
            with world.context(stream.device):
                sure(cuda.cuStreamSynchronize, stream.handle)
        try:
            block = world.runtime_of(stream).adopt(ptr, 1024, world.argument(stream, rng) if home else None,
                                                   owner=owner)
        except BaseException:
            world.synchronize()                         # the owner is dropped now, and frees elsewhere
            raise
        item = world.add_item(block, home, 0, owner)
        world.say(f"{item} = runtime.adopt(memory, 1024, {home})  # {ptr:#x}")


@step
def adopt_from_neighbour(world: World, rng: Random) -> None:
    """Memory of another runtime: produced there, adopted here, freed there once it is released here."""
    if world.neighbour is None or world.depth or len(world.items) > ROOM * max(1, world.threads // 2):
        raise NothingToDo
    stream = world.stream_of_neighbour()
    world.end_captures()
    block = world.neighbour.allocate(1024, stream.library_stream)
    world.kernels.fill(stream.handle, block.ptr, 7, 256)
    adopted = world.runtime.adopt(block.ptr, 1024, stream.argument, owner=block)
    item = world.add_item(adopted, stream, 7)
    world.say(f"{item} = runtime.adopt(a block of another runtime, 1024, {stream})  # {block.ptr:#x}")


@step
def alias(world: World, rng: Random) -> None:
    """Adopting a part of a block gives that block."""
    with world.holding(rng) as item:
        world.say(f"runtime.adopt(inside {item}) is {item}")
        block = world.runtime_of(item).adopt(item.ptr + 64, 64, owner=object())
        if block.id != item.id:
            world.violation(f"a part of {item} was adopted as generation {block.generation}")


@step
def overlap(world: World, rng: Random) -> None:
    """Adopting what overlaps a block in part is refused."""
    with world.holding(rng) as item:
        world.say(f"runtime.adopt(the end of {item} and more)")
        refused(world, StreamMisuseError,
                lambda: world.runtime_of(item).adopt(item.ptr + item.nbytes // PARTS, item.nbytes,
                                                     owner=object()),
                f"memory that overlaps {item} in part")
