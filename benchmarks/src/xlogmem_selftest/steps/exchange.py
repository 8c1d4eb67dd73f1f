"""Steps that exchange memory with other libraries: blocks are exported and released, interfaces read, buffers imported.

The consumer is the program itself, and keeps a consumer's rules: it queues unrecorded work on the stream that it named
until the export is released, and finds complete contents there.  Right after an export those are the library's duty;
later the host waits for them first.
"""
from __future__ import annotations

from random import Random
from typing import Any

from xlogmem.interop._dtypes import DTYPES
from xlogmem.interop.buffers import Buffer, DeviceSnapshot, make_buffer
from xlogmem.interop.devices import DeviceState
from xlogmem.interop.interchange import from_dlpack
from xlogmem.launch import use
from xlogmem_selftest.libraries import Handed
from xlogmem_selftest.registry import step
from xlogmem_selftest.world import ROOM, Export, Item, NothingToDo, ProgramStream, World

WORD = DTYPES["uint32"]


def buffer_of(world: World, item: Item) -> Buffer:
    """A buffer over the whole of a block of the program."""
    runtime = world.runtime_of(item)
    with world.states_lock:
        state = world.states.get(item.device)
        if state is None:
            state = world.states[item.device] = DeviceState(runtime)
    assert item.block is not None
    return make_buffer(DeviceSnapshot(state._status, runtime, 0), item.block, (item.nbytes // 4,), WORD)


def choose_idle(world: World, rng: Random, stream: ProgramStream, protected: bool = True) -> Item:
    """An idle block for a use on `stream`; no other step frees it meanwhile.  `protected`: only where launches are."""
    if protected and not world.protect:
        raise NothingToDo
    with world.lock:
        choice = [item for item in world.items if not item.held and item.idle]
        if not choice:
            raise NothingToDo
        item = rng.choice(choice)
        item.held += 1
        item.uses += 1
        item.last_opaque = None
        item.elsewhere += stream is not item.stream
    return item


def launch_unrecorded(world: World, rng: Random, item: Item, stream: ProgramStream, what: str,
                      handed: Handed | None = None) -> None:
    """A launch of the consumer, on an idle block; a library that has it makes it."""
    with world.lock:
        claim = world.claim_idle(rng, item)
        item.quiet = True
    try:
        world.say(f"launch on {stream}, unrecorded, {what}: {claim.access}={item}{claim.parts}")
        world.launch(rng, stream, [claim], handed)
    finally:
        with world.lock:
            world.unclaim_idle(claim)


def add_export(world: World, item: Item, export: Export) -> None:
    with world.lock:
        if not item.exports:
            world.exported.append(item)                 # it may be freed meanwhile
        item.exports.append(export)


@step
def export(world: World, rng: Random) -> None:
    """A consumer imports a block by DLPack, and may work on its stream at once."""
    with world.on(rng) as stream:
        item = choose_idle(world, rng, stream)
        try:
            name: Any = {"legacy": 1, "thread": 2}.get(stream.kind, stream.argument)
            versioned = (1, 0) if rng.random() < .5 else None
            world.say(f"{item}.__dlpack__(stream={stream})")
            item.quiet = True
            capsule = buffer_of(world, item).__dlpack__(stream=name, max_version=versioned)
            export = Export(capsule, stream, stream.registration, stream.kind != "raw")
            del capsule
            add_export(world, item, export)
            if export.has_owner and rng.random() < .5:
                launch_unrecorded(world, rng, item, stream, "right after the export")
        finally:
            with world.lock:
                item.held -= 1


@step
def export_unordered(world: World, rng: Random) -> None:
    """-1: the consumer orders its work itself, and does not name its stream."""
    if world.depth or world.capturing:
        raise NothingToDo
    with world.on(rng) as stream:
        item = choose_idle(world, rng, stream)
        try:
            world.say(f"synchronize; {item}.__dlpack__(stream=-1); launch on {stream}; synchronize")
            world.synchronize()
            item.quiet = True
            capsule = buffer_of(world, item).__dlpack__(stream=-1)
            export = Export(capsule, stream, stream.registration, False)
            del capsule
            add_export(world, item, export)
            launch_unrecorded(world, rng, item, stream, "ordered by hand")
            world.synchronize()
        finally:
            with world.lock:
                item.held -= 1


@step
def consume(world: World, rng: Random) -> None:
    """The consumer of an export works on it, even after the block was freed; the reader of an interface, until then."""
    if world.depth or world.capturing:
        raise NothingToDo
    with world.lock:
        known = [(item, export) for item in world.exported for export in item.exports]
        known += [(item, export) for item in world.items for export in item.interfaces]
        choice = [(item, export) for item, export in known if not item.held and item.idle
                  and export.is_there and world.usable(export.stream)]
        if not choice:
            raise NothingToDo
        item, export = rng.choice(choice)
        export.stream.busy += 1
        item.held += 1
        item.last_opaque = None
    try:
        world.say("synchronize")
        world.synchronize()
        handed = export.capsule if isinstance(export.capsule, Handed) else None
        launch_unrecorded(world, rng, item, export.stream, "on what was exported", handed)
        del handed
        if export.capsule is not None and rng.random() < .5:
            drop_capsule(world, item, export)
    finally:
        with world.lock:
            item.held -= 1
            export.stream.busy -= 1


@step
def release_export(world: World, rng: Random) -> None:
    with world.lock:
        choice = [(item, export) for item in world.exported if not item.held for export in item.exports]
        if not choice:
            raise NothingToDo
        item, export = rng.choice(choice)
        item.held += 1
    try:
        drop_capsule(world, item, export)
    finally:
        with world.lock:
            item.held -= 1


def drop_capsule(world: World, item: Item, export: Export) -> None:
    """The deleter of a capsule that was not imported."""
    world.say(f"the deleter of {item}, exported on {export.stream}")
    with world.lock:
        item.exports.remove(export)
        if not item.exports:
            world.exported.remove(item)
    export.capsule = None


@step
def offer(world: World, rng: Random) -> None:
    """A consumer reads the interface, and works on the stream that it names."""
    with world.on(rng) as anywhere:
        item = choose_idle(world, rng, anywhere)
        try:
            world.say(f"{item}.__cuda_array_interface__")
            item.quiet = True
            with world.lock:                            # it does not name a stream unregistered meanwhile
                before = {stream: stream.registration for stream in (*world.streams, *world.defaults)}
            handle = buffer_of(world, item).__cuda_array_interface__["stream"]
            with world.lock:
                named = [stream for stream, registration in before.items() if registration == stream.registration
                         and stream.handle in (handle, handle - 1 if handle == 1 else handle) and world.usable(stream)]
                if not named:
                    return
                stream = named[0]
                stream.busy += 1
                item.interfaces.append(Export(None, stream, stream.registration, True))
            try:
                launch_unrecorded(world, rng, item, stream, "where the interface says")
            finally:
                world.leave_stream(stream)
        finally:
            with world.lock:
                item.held -= 1


@step
def take(world: World, rng: Random) -> None:
    """A buffer of another runtime is imported by DLPack, and released there once it is released here."""
    if world.neighbour is None or world.depth or len(world.items) > ROOM * max(1, world.threads // 2):
        raise NothingToDo
    if not world.protect:
        raise NothingToDo
    with world.states_lock:
        if 0 not in world.states:
            world.states[0] = DeviceState(world.runtime)
    theirs = world.stream_of_neighbour()
    world.end_captures()
    with world.states_lock:
        if world.neighbour_state is None:
            world.neighbour_state = DeviceState(world.neighbour)
    buffer = world.neighbour_state.empty(256, "uint32", theirs.library_stream)
    with use(theirs.library_stream, write=buffer):
        block = buffer.access()
        assert block is not None
        world.kernels.fill(theirs.handle, block.ptr, 7, 256)
    with world.on(rng) as stream:
        world.say(f"from_dlpack(a buffer of another runtime, stream={stream})")
        ours = from_dlpack(buffer, stream=world.argument(stream, rng), state=world.states[0]).access()
        assert ours is not None
        item = world.add_item(ours, None, 7)
        world.say(f"{item} is that buffer  # {item.ptr:#x}")
