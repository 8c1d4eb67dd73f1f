"""Steps that launch without a recorder: where the rules allow it, or where the program orders the work itself."""
from __future__ import annotations

from random import Random

from xlogmem_selftest.registry import step
from xlogmem_selftest.steps.windows import ACCESS, describe
from xlogmem_selftest.world import PARTS, Claim, Item, NothingToDo, ProgramStream, World


@step
def hidden(world: World, rng: Random) -> None:
    """Unrecorded work where the rules allow it: on fresh blocks at home, and on opaque streams."""
    with world.lock:
        choice = [(item, stream) for item in world.items if not item.held and item.idle
                  for stream in (item.last_opaque and item.last_opaque[0], item.stream)
                  if stream is not None and parts_to_hide(world, item, stream)]
        if not choice:
            raise NothingToDo
        item, stream = rng.choice(choice)
        claim = world.claim_idle(rng, item, parts_to_hide(world, item, stream))
        stream.busy += 1
        if stream is not item.stream:
            item.quiet = True
        elif item.last_opaque and item.last_opaque[0] is not stream:
            item.last_opaque = None
    try:
        world.say(f"launch on {stream}, unrecorded: {describe([claim])}")
        world.launch(rng, stream, [claim])
    finally:
        with world.lock:
            world.unclaim_idle(claim)
            stream.busy -= 1


def parts_to_hide(world: World, item: Item, stream: ProgramStream) -> list[int]:
    if stream.gone or not world.usable(stream):
        return []
    if item.last_opaque and item.last_opaque == (stream, stream.registration) and stream.discipline == "opaque":
        return list(range(PARTS))
    return world.hiding_parts(item) if stream is item.stream else []


@step
def record(world: World, rng: Random) -> None:
    """Work that the program ordered by itself, recorded afterwards."""
    if world.depth or world.capturing or not world.protect:
        raise NothingToDo
    stream = world.enter_stream(rng)
    try:
        with world.lock:
            choice = [item for item in world.items if not item.held and item.idle]
            if not choice:
                raise NothingToDo
            item = rng.choice(choice)
            claim = world.claim_idle(rng, item)
            item.quiet = True
            item.last_opaque = None
            item.elsewhere += stream is not item.stream
        try:
            record_after(world, rng, stream, claim)
        finally:
            with world.lock:
                world.unclaim_idle(claim)
    finally:
        world.leave_stream(stream)


def record_after(world: World, rng: Random, stream: ProgramStream, claim: Claim) -> None:
    item = claim.item
    world.synchronize()
    world.make_accessible(item, stream)
    world.say(f"synchronize; launch on {stream}: {describe([claim])}; record")
    world.launch(rng, stream, [claim])
    try:
        if rng.random() < .5:
            world.runtime_of(item).record_block_use(item.id, world.argument(stream, rng))
        else:
            world.runtime_of(item).finish_block_use(item.id, world.argument(stream, rng), ACCESS[claim.access])
    except BaseException:                               # perhaps not recorded: then the program orders it
        world.synchronize()
        raise
