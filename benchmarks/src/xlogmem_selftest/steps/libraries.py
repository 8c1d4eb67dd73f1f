"""Steps with other libraries: they work on blocks, and their arrays are used here.

Of what a library does, nothing is recorded.  The rules allow that on its stream: on a block from the export to its
release, on an array of its own always, because uses elsewhere come after what it has queued, and it waits for them.
"""
from __future__ import annotations

import contextlib
from random import Random
from typing import Any

from xlogmem.interop.devices import DeviceState
from xlogmem.interop.interchange import from_dlpack
from xlogmem.launch import use
from xlogmem_selftest.libraries import Library
from xlogmem_selftest.registry import step
from xlogmem_selftest.steps.exchange import add_export, buffer_of, choose_idle, launch_unrecorded
from xlogmem_selftest.world import READ, READ_WRITE, ROOM, WRITE, Export, Item, NothingToDo, ProgramStream, World

NBYTES = 1024


def choose(world: World, rng: Random) -> tuple[str, Library, ProgramStream]:
    """A library and a stream of its."""
    if not world.libraries:
        raise NothingToDo
    name = rng.choice(list(world.libraries))
    return name, world.libraries[name], rng.choice(world.streams_of[name])


class Unordered:
    """A buffer whose exports order nothing: what a library would get without xlogmem."""

    def __init__(self, buffer: Any) -> None:
        self.buffer = buffer

    def __dlpack_device__(self) -> Any:
        return self.buffer.__dlpack_device__()

    def __dlpack__(self, **options: Any) -> Any:
        return self.buffer.__dlpack__(**options | {"stream": -1})

    @property
    def __cuda_array_interface__(self) -> Any:
        return self.buffer.__cuda_array_interface__


@step
def export_to_library(world: World, rng: Random) -> None:
    """A library takes a block, works on it, and goes on until it drops its array."""
    name, library, theirs = choose(world, rng)
    item = choose_idle(world, rng, theirs, protected=False)
    try:
        item.quiet = True
        world.say(f"{item} is taken by {name} on {theirs}")
        buffer: Any = buffer_of(world, item)
        exporter = buffer if world.protect else Unordered(buffer)
        if library.by_interface:
            work_by_interface(world, rng, item, name, exporter)
        else:
            handed = world.handed(name, library.view(exporter, theirs.argument), theirs)
            export = Export(handed, theirs, theirs.registration, True)
            add_export(world, item, export)
            del buffer, exporter
            launch_unrecorded(world, rng, item, theirs, f"by {name}", handed)
        world.happened[f"{name} exported"] += 1
    finally:
        item.held -= 1


def work_by_interface(world: World, rng: Random, item: Item, name: str, exporter: Any) -> None:
    """On the stream that the interface names, whichever that is; the array is dropped at once."""
    library, handle = world.libraries[name], exporter.__cuda_array_interface__["stream"]
    named = [stream for stream in (*world.streams, *world.defaults) if world.usable(stream)
             and stream.handle in (handle, handle - 1 if handle == 1 else handle)]
    if named:
        stream = library.named(handle)
        handed = world.handed(name, library.view(exporter, stream), named[0], stream)
        launch_unrecorded(world, rng, item, named[0], f"by {name}, where the interface says", handed)


@step
def adopt_array(world: World, rng: Random) -> None:
    """An array from a library's own allocator becomes a block: adopted, or imported by DLPack."""
    name, library, theirs = choose(world, rng)
    if name in world.enabled or len(world.items) > ROOM:
        raise NothingToDo
    array = world.empty(name, theirs, NBYTES)
    value = written(world, rng, name, array, theirs)
    ptr = library.address_of(array)
    world.happened[f"{name} imported"] += 1
    if library.by_interface or rng.random() < .5:
        item = world.add_item(world.runtime.adopt(array, None, theirs.argument), theirs, value)
        world.say(f"{item} = runtime.adopt(an array of {name}, {theirs})  # {ptr:#x}")
        return
    if 0 not in world.states:
        world.states[0] = DeviceState(world.runtime)
    with world.on(rng) as stream:
        imported = from_dlpack(array, stream=world.argument(stream, rng), producer=theirs.argument,
                               state=world.states[0])
        taken = imported.access()
        assert taken is not None
        item = world.add_item(taken, None, value)
        world.say(f"{item} = from_dlpack(an array of {name}, stream={stream}, producer={theirs})  # {ptr:#x}")


@step
def use_array(world: World, rng: Random) -> None:
    """An array of a library is used here, which the library goes on working with.  From its own allocator it is adopted
    while it lives, from xlogmem it is known; in the end the library may have its bytes for another array at once."""
    name, library, theirs = choose(world, rng)
    if name not in world.enabled and not library.knows_current:
        raise NothingToDo
    untracked = "raise" if name in world.enabled else "adopt"
    with world.on(rng) as ours:
        array = world.empty(name, theirs, NBYTES)
        world.say(f"an array of {name} on {theirs}, used on {ours}; untracked={untracked!r}")
        for _ in range(rng.randint(1, 3)):
            value = written(world, rng, name, array, theirs)
            access = rng.choice([READ, READ_WRITE, WRITE])
            with library.current(theirs.argument), used(world, ours, access, array, untracked):
                value = worked(world, rng, ours, library.address_of(array), access, value)
            if access != READ:
                handed = world.handed(name, array, theirs)
                handed.read(0, NBYTES)
                world.kernels.count_unequal(theirs.handle, world.word_of(theirs), handed.at, value,
                                            NBYTES // 4)
                del handed
        del array
        again = world.empty(name, theirs, NBYTES)
        written(world, rng, name, again, theirs)
    world.happened[f"{name} {'allocated' if name in world.enabled else 'imported'}"] += 1


def used(world: World, stream: ProgramStream, access: str, array: Any, untracked: str
         ) -> contextlib.AbstractContextManager[Any]:
    if not world.protect:
        return contextlib.nullcontext()
    return use(stream.argument, **{access: array}, runtime=world.runtime, untracked=untracked)


def worked(world: World, rng: Random, stream: ProgramStream, at: int, access: str, value: int) -> int:
    """Kernels of the program on an array that has this value; returns the one that it has then."""
    world.delay_at_times(rng, stream)
    if access != WRITE:
        world.kernels.count_unequal(stream.handle, world.word_of(stream), at, value, NBYTES // 4)
    if access == READ:
        return value
    other = world.other_value()
    if access == WRITE:
        world.kernels.fill(stream.handle, at, other, NBYTES // 4)
    else:
        world.kernels.add(stream.handle, at, (other - value) & 0xFFFFFFFF, NBYTES // 4)
    return other


def written(world: World, rng: Random, name: str, array: Any, stream: ProgramStream) -> int:
    """The library fills its array on a stream; returns the value of each word."""
    value = world.other_value()
    handed = world.handed(name, array, stream)
    world.delay_at_times(rng, stream)
    world.kernels.fill(stream.handle, handed.at, value, NBYTES // 4)
    handed.write(0, NBYTES)
    return value
