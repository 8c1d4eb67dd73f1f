"""Steps with page-locked memory, which streams use like any other, and which the program itself reads and writes."""
from __future__ import annotations

import ctypes
from random import Random

from cuda.bindings import driver as cuda
from xlogmem_bench._loops import HOST, Held, NativeUse

from xlogmem import OutOfDeviceMemoryError, PinnedMemoryResource, PoolMemoryResource, host
from xlogmem.launch import LaunchRecorder
from xlogmem_selftest.registry import step
from xlogmem_selftest.steps.windows import ALONE, IN_A_CROWD, REFUSE_CONFLICTS, preflight
from xlogmem_selftest.world import (
    PARTS,
    READ,
    READ_WRITE,
    ROOM,
    WRITE,
    Claim,
    Item,
    NothingToDo,
    PinnedOwner,
    World,
    sure,
    tools,
)

FILLED = 0x5A5A5A5A                                     # each word of new memory for the host


@step
def adopt_pinned(world: World, rng: Random) -> None:
    """Page-locked memory, which some stream fills, or the program itself."""
    if world.depth or len(world.items) > ROOM * max(1, world.threads // 2):
        raise NothingToDo
    with world.on(rng) as stream:
        with world.context(stream.device):
            ptr = int(sure(cuda.cuMemHostAlloc, 1024, 1))
        owner = PinnedOwner(world, ptr, stream.device)
        home = stream if rng.random() < .4 else None
        if home is None:
            ctypes.memset(ptr, 0, 1024)
        else:
            world.ready_for_work(stream)
            with world.context(stream.device):
                tools(stream.device)[1].fill(stream.handle, ptr, 0, 256)
        try:
            block = world.runtime_of(stream).adopt(ptr, 1024, world.argument(stream, rng) if home else None,
                                                   owner=owner)
        except BaseException:
            world.synchronize()                         # the owner is dropped now
            raise
        item = world.add_item(block, home, 0, owner)
        item.on_host = True
        world.say(f"{item} = runtime.adopt(page-locked memory, 1024, {home})  # {ptr:#x}")


@step
def allocate_for_host(world: World, rng: Random) -> None:
    """Memory that is idle: the program writes it at once, without an access."""
    if len(world.items) > ROOM * max(1, world.threads // 2):
        raise NothingToDo
    device, nbytes = world.draw_device(rng), rng.choice(world.sizes)
    try:
        block = world.runtimes[device].allocate(nbytes, host, resource=host_pool(world, device))
    except OutOfDeviceMemoryError:                      # the pool is small
        if world.kind.failures or world.kind.captures or nbytes == max(world.sizes):
            raise NothingToDo from None
        raise
    ctypes.memset(block.ptr, FILLED & 0xFF, nbytes)
    item = world.add_item(block, None, filled=FILLED)
    world.say(f"{item} = {world.name_of(device)}.allocate({nbytes}, host)  # {item.ptr:#x}")


def host_pool(world: World, device: int) -> PoolMemoryResource:
    """The pool of page-locked memory of a runtime.  One with a maximum lets the host wait."""
    with world.lock:
        if device not in world.host_pools:
            rng, largest = Random(f"host memory {world.seed} {device}"), max(world.sizes)
            world.host_pools[device] = PoolMemoryResource(
                PinnedMemoryResource(device_id=device), maximum_pool_size=rng.choice([None, 2 * ROOM * largest]),
                chunk_size=rng.choice([largest, 4 * largest]))
        return world.host_pools[device]


@step
def access_on_host(world: World, rng: Random) -> None:
    """The program reads page-locked memory, which has to be what was written last, and writes it."""
    if not world.protect:
        raise NothingToDo
    claim = claim_on_host(world, rng)
    accessed = False
    try:
        world.say(f"with use(host, {claim.access}={claim.item}{claim.parts}): look, and write")
        recorder = recorder_on_host(world, rng, claim.item)
        item = claim.item
        getattr(recorder, claim.access)(item.id if isinstance(recorder, NativeUse) or rng.random() < .5 or
                                        item.block is None else item.block)
        preflight(world, recorder, rng)
        try:
            access(world, claim)
            accessed = True
        finally:
            recorder.commit()
    finally:
        with world.lock:
            world.unclaim(claim, accessed)
            claim.item.open -= 1


def claim_on_host(world: World, rng: Random) -> Claim:
    with world.lock:
        choice = [item for item in world.items if item.on_host and not item.held]
        if not choice:
            raise NothingToDo
        item = rng.choice(choice)
        kind = rng.choice([READ, WRITE, READ_WRITE])
        parts = world.free_parts(item, kind)
        if not parts:
            raise NothingToDo
        item.open += 1
        return world.claim_parts(item, kind, parts)


def recorder_on_host(world: World, rng: Random, item: Item) -> LaunchRecorder | NativeUse:
    runtime = world.runtimes[item.device]
    if rng.random() < .3:
        with world.lock:
            if not world.holds:
                world.holds += [Held(runtime) for runtime in world.runtimes]
        flags = REFUSE_CONFLICTS if world.threads == 1 or rng.random() < .3 else 0
        return NativeUse(world.holds[item.device], HOST, world.holds, flags)
    return LaunchRecorder(host, runtime=runtime,
                          on_conflict=rng.choice(IN_A_CROWD if world.threads > 1 else ALONE))


def access(world: World, claim: Claim) -> None:
    """What the program itself does, between the preflight and the end."""
    words = claim.item.nbytes // PARTS // 4
    for i, value in zip(claim.parts, claim.values, strict=True):
        part = (ctypes.c_uint32 * words).from_address(claim.item.ptr + 4 * i * words)
        was = claim.item.parts[i].value
        if claim.access != WRITE and was is not None and any(word != was for word in part):
            world.violation(f"the host finds {part[0]:#x} in {claim.item}[{i}], which has to be {was:#x}")
        if claim.access != READ:
            part[:] = [value] * words
