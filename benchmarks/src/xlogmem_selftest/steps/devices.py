"""Steps across devices, beside those of other modules, which use any block on any stream: copies, frees that name a
stream of another device, runtimes that come and go, and what is refused."""
from __future__ import annotations

import traceback
from random import Random
from typing import Any

from cuda.bindings import driver as cuda

from xlogmem.errors import StreamMisuseError
from xlogmem.launch import use as launch_on
from xlogmem.runtime import DeviceRuntime
from xlogmem.streams import StreamPool
from xlogmem_selftest.registry import step
from xlogmem_selftest.steps.exchange import buffer_of
from xlogmem_selftest.steps.windows import describe
from xlogmem_selftest.world import (
    READ,
    READ_WRITE,
    WRITE,
    Claim,
    ForeignStream,
    Item,
    NothingToDo,
    ProgramStream,
    World,
    refused,
    sure,
    tools,
)


@step
def copy_between(world: World, rng: Random) -> None:
    """A buffer of one device is copied to one of another, on a stream of either."""
    if not world.protect:
        raise NothingToDo
    with world.on(rng) as stream:
        source, target = choose_pair(world, rng, stream)
        try:
            world.say(f"buffer of {target}.copy_from(buffer of {source}, {stream})")
            buffer_of(world, target).copy_from(buffer_of(world, source), world.argument(stream, rng))
        except BaseException:
            for item in (source, target):               # perhaps it was queued
                item.quiet = True
            for part in target.parts:
                part.value = None
            raise
        else:
            for old, new in zip(source.parts, target.parts, strict=True):
                new.value = old.value
        finally:
            with world.lock:
                source.held -= 1
                target.held -= 1


def choose_pair(world: World, rng: Random, stream: ProgramStream) -> tuple[Item, Item]:
    """Idle blocks of two devices, as long as each other; nothing else happens to them meanwhile."""
    with world.lock:
        idle = [item for item in world.items if not item.held and item.idle]
        pairs = [(source, target) for source in idle for target in idle
                 if source.device != target.device and source.nbytes == target.nbytes
                 and stream.device in (source.device, target.device)
                 and all(part.value is not None for part in source.parts)]
        if not pairs:
            raise NothingToDo
        pair = rng.choice(pairs)
        for item in pair:
            item.held += 1
            item.uses += 1
            item.last_opaque = None
            item.elsewhere += stream is not item.stream
    return pair


@step
def free_after(world: World, rng: Random) -> None:
    """Work without a record on a stream of another device, which the free names."""
    if world.depth or world.capturing or not world.protect:
        raise NothingToDo
    with world.on(rng) as stream:
        with world.lock:
            choice = [item for item in world.items if not item.held and item.idle and item.device != stream.device]
            if not choice:
                raise NothingToDo
            item = rng.choice(choice)
            claim = world.claim_idle(rng, item)
            world.items.remove(item)
            item.gone = True
        block = item.block
        try:
            world.synchronize()
            world.make_accessible(item, stream)
            world.say(f"synchronize; launch on {stream}: {describe([claim])}; {item}.free({stream})")
            world.launch(rng, stream, [claim])
            assert block is not None
            block.free(world.argument(stream, rng))
            item.block = None
            world.freed(item, block)
        except BaseException:
            world.synchronize()                         # perhaps the stream was not recorded
            world.restore(item)
            raise
        finally:
            with world.lock:
                world.unclaim_idle(claim)


@step
def visit(world: World, rng: Random) -> None:
    """Another runtime of a device comes, uses blocks of others on a stream that ends with it, and goes; or the stream
    is one that the program's own runtime knows too."""
    if world.depth or world.capturing or not world.protect:
        raise NothingToDo
    shared = world.reserve_stream(rng, "object", "raw") if rng.random() < .3 else None
    try:
        stay(world, rng, shared)
    except BaseException as error:
        traceback.clear_frames(error.__traceback__)     # they hold that runtime
        raise
    finally:
        if shared is not None:                          # that runtime is gone, and no other step unregisters it there:
            world.end_registration(shared, None)        # nothing unrecorded is promised any more
            shared.closing = False                      # from now on other threads may destroy the stream


def stay(world: World, rng: Random, shared: ProgramStream | None) -> None:
    """The visit; the other runtime ends with this call."""
    device = world.draw_device(rng) if shared is None else shared.device
    runtime = DeviceRuntime(device, stream_pool=StreamPool(device, max_streams=4))
    stream = shared or stream_of_visitor(world, rng, runtime)
    if shared is not None:
        runtime.register_stream(shared.argument, discipline=shared.discipline)
    use_as_visitor(world, rng, runtime, stream)
    if stream.kind in ("raw", "object") and rng.random() < .5:
        world.say(f"that runtime.unregister_stream({stream})")
        runtime.unregister_stream(stream.argument)


def stream_of_visitor(world: World, rng: Random, runtime: DeviceRuntime) -> ProgramStream:
    """A new stream, which no other step chooses."""
    device = runtime.device_id
    discipline = rng.choice(world.kind.disciplines)
    own = rng.random() < .5
    named: Any
    if own:
        named = runtime.acquire_stream(discipline=discipline)
    else:
        with world.context(device):
            named = ForeignStream(int(sure(cuda.cuStreamCreate, 1)))
        runtime.register_stream(named, discipline=discipline)
    return ProgramStream(world.next_number("stream"), "own" if own else "object", named, int(named.handle), discipline,
                         device)


def use_as_visitor(world: World, rng: Random, runtime: DeviceRuntime, stream: ProgramStream) -> None:
    with world.lock:
        stream.busy += 1
    claims: list[Claim] = []
    launched = False
    try:
        claims = world.claim(rng, stream, 2, except_device=stream.device)   # no runtime knows another's of its device
        world.say(f"{stream}, {stream.discipline}, in another runtime of device {stream.device}, which ends: "
                  f"with use({stream}, {describe(claims)}): launch")
        named = runtime.register_stream(stream.argument)
        visiting = runtime.allocate(1024, named)
        uses: dict[str, Any] = {READ: [], WRITE: [visiting], READ_WRITE: []}
        for claim in claims:
            uses[claim.access].append(claim.item.id)
            claim.item.last_opaque = None
        with launch_on(named, **uses, on_conflict="wait" if world.threads > 1 else "count"):
            launched = True
            world.launch(rng, stream, claims)
            with world.context(stream.device):
                tools(stream.device)[1].fill(stream.handle, visiting.ptr, 1, 256)
    finally:
        for claim in claims:                            # the stream goes: nothing unrecorded is promised
            claim.item.quiet = True
        world.end_claims(stream, claims, launched)


@step
def wrong_device(world: World, rng: Random) -> None:
    """On a stream of another device nothing is allocated and nothing is adopted."""
    if len(world.devices) == 1:
        raise NothingToDo
    with world.on(rng) as stream:
        other = rng.choice([device for device in world.devices if device != stream.device])
        argument = world.argument(stream, rng)
        world.say(f"{world.name_of(other)}.allocate(256, {stream}), of device {stream.device}")
        refused(world, StreamMisuseError, lambda: world.runtimes[other].allocate(256, argument),
                "an allocation on a stream of another device")
