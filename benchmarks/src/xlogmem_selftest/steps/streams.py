"""Steps that register, unregister and drop streams."""
from __future__ import annotations

from random import Random

from cuda.bindings import driver as cuda

from xlogmem_selftest.registry import step
from xlogmem_selftest.world import ForeignStream, NothingToDo, ProgramStream, World, sure

FOREIGN = ("object", "raw", "legacy", "thread")


@step
def add_stream(world: World, rng: Random) -> None:
    """An own stream returns to the pool, and another one is acquired."""
    with world.lock:
        choice = [stream for stream in world.streams
                  if stream.kind == "own" and not stream.busy and stream not in world.capturing]
        if world.depth or len(choice) < 2:
            raise NothingToDo
        stream = rng.choice(choice)
        world.forget(stream)
    world.say(f"del {stream}")
    drop_last_reference(world, stream)
    world.add_own(rng, stream.device)


def drop_last_reference(world: World, stream: ProgramStream) -> None:
    """Drop the program's last reference: what is freed there later is freed on a stream that the library chooses."""
    world.end_registration(stream, None)
    with world.lock:
        for item in list(world.all_items):
            if item.home is stream:
                item.unsure = True
    stream.gone = True
    stream.argument = None


@step
def new_stream(world: World, rng: Random) -> None:
    if sum(stream.kind != "own" for stream in world.streams) > 6 * world.threads:
        raise NothingToDo
    world.add_foreign(rng)


@step
def unregister(world: World, rng: Random) -> None:
    stream = world.reserve_stream(rng, *FOREIGN)
    with world.lock:
        successors = [other for other in world.streams if world.usable(other) and other.thread is None
                      and other.device == stream.device]
        successor = rng.choice([None, *successors])
        if successor:
            successor.busy += 1
    world.say(f"{world.name_of(stream.device)}.unregister_stream({stream}, successor={successor})")
    try:
        world.runtime_of(stream).unregister_stream(stream.argument,
                                                   successor=successor.argument if successor else None)
    except BaseException:                               # then nothing has changed, on any device
        stream.closing = False
        raise
    finally:
        if successor:
            world.leave_stream(successor)
    world.end_registration(stream, successor or world.defaults[stream.device])
    stream.library_stream = None
    if stream.kind in ("legacy", "thread"):             # registered again at the next use
        stream.discipline = "opaque"
        stream.closing = False
    elif rng.random() < .3:
        stream.discipline = "ordinary"
        stream.closing = False
    else:
        world.forget(stream)
        if world.depth:                                 # the call around this gap may be about to use the handle
            world.to_destroy.append(stream)
        else:
            world.destroy(stream)


@step
def discipline(world: World, rng: Random) -> None:
    """Other rules for the same stream: unrecorded work that the old ones allowed stays possible."""
    stream = world.reserve_stream(rng, *FOREIGN)
    chosen = rng.choice(["ordinary", "opaque", "sealed"])
    world.say(f"{world.name_of(stream.device)}.register_stream({stream}, discipline={chosen!r})")
    try:
        registered = world.runtime_of(stream).register_stream(world.argument(stream, rng), discipline=chosen)
        if registered.discipline != chosen:
            world.violation(f"{stream} was registered as {chosen}, and is {registered.discipline}")
        with world.lock:
            if chosen == "opaque" and stream.discipline != "opaque":
                for item in list(world.all_items):
                    if item.stream is stream and item.elsewhere:
                        item.awaits_handback = True     # the stream is not ordered after those uses
            stream.discipline = chosen
        if stream.kind == "raw":
            stream.library_stream = registered
    finally:
        stream.closing = False


@step
def drop_stream(world: World, rng: Random) -> None:
    """The last reference to a foreign stream object is dropped: the library keeps it until nothing needs it."""
    if world.depth:
        raise NothingToDo
    stream = world.reserve_stream(rng, "object")
    world.forget(stream)
    world.say(f"del {stream}")
    drop_last_reference(world, stream)


@step
def many_streams(world: World, rng: Random) -> None:
    """Enough registrations for a sweep."""
    if world.depth:
        raise NothingToDo
    device = world.draw_device(rng)
    world.say("register 36 streams and drop them")
    made = []
    with world.context(device):
        for _ in range(36):
            made.append(ForeignStream(int(sure(cuda.cuStreamCreate, 1))))
            world.runtimes[device].register_stream(made[-1])
