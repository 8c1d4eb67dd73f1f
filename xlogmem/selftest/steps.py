"""What the programs do: one function for each step, drawing what it works on from its own random numbers.

A step that finds nothing to work on raises `NothingToDo`.  What the library raises is judged by whoever runs the step
(`World.excuses`); here errors are caught only where the program has to put its own side in order, or where it wants
them: calls that have to be refused are made on purpose, and one that is not refused is a violation.
"""
from __future__ import annotations

import functools
import gc
from collections.abc import Callable
from random import Random
from typing import Any, ClassVar, TypeVar

from cuda.bindings import driver as cuda

from xlogmem.blocks import Access
from xlogmem.errors import DriverError, StreamMisuseError, UseAfterFreeError
from xlogmem.launch import LaunchRecorder
from xlogmem.resources import PoolMemoryResource
from xlogmem.selftest.exchange import EXCHANGES
from xlogmem.selftest.situations import SITUATIONS
from xlogmem.selftest.world import (
    CODES,
    PARTS,
    READ,
    READ_WRITE,
    ROOM,
    SCRATCH,
    WRITE,
    Claim,
    ForeignStream,
    Item,
    NothingToDo,
    Open,
    Owner,
    Place,
    World,
    refused,
    sure,
)

__all__ = ["STEPS", "leave"]

FOREIGN = ("object", "raw", "legacy", "thread")
ACCESS = {READ: Access.READ, WRITE: Access.WRITE, READ_WRITE: Access.READ_WRITE}
FAILABLE = ("cuEventRecord", "cuStreamWaitEvent", "cuEventSynchronize", "cuEventCreate", "cuMemAllocFromPoolAsync",
            "cuMemFreeAsync", "cuStreamIsCapturing", "cuCtxGetCurrent", "cuEventQuery", "cuMemAlloc", "cuMemFree",
            "cuCtxPushCurrent", "cuMemPoolTrimTo", "cuStreamGetId", "cuStreamGetCtx", "cuStreamGetFlags",
            "cuCtxSynchronize", "cuThreadExchangeStreamCaptureMode", "cuStreamCreateWithPriority")

STEPS: dict[str, Callable[[World, Random], None]] = dict(EXCHANGES)
Step = TypeVar("Step", bound=Callable[[World, Random], None])


def step(function: Step) -> Step:
    STEPS[function.__name__] = function
    return function


# ---------------------------------------------------------------------------------------------- blocks
@step
def allocate(world: World, rng: Random) -> None:
    if len(world.items) > ROOM * max(1, world.threads // 2):
        STEPS["drop"](world, rng)
        return
    nbytes = rng.choice(world.sizes)
    with world.on(rng) as place:
        block = world.runtime.allocate(nbytes, world.name(place, rng))
        item = world.add_item(block, place)
        world.say(f"{item} = runtime.allocate({nbytes}, {place})  # {item.ptr:#x}")


@step
def free(world: World, rng: Random) -> None:
    """At any time, by any thread, on any stream."""
    item = world.take_item(rng)
    block, before = item.block, item.home
    elsewhere = not item.lent and (item.home is not None or item.adopted) and rng.random() < .5
    place = None
    try:
        if elsewhere:
            place = world.enter_place(rng)
            item.home = place
        world.say(f"{item}.free({place or ''})")
        assert block is not None
        block.free(world.name(place, rng) if place else None)
        item.block = None
        world.stale.append((item.id, block))
        world.freed(item)
    except BaseException:
        item.home = before
        world.put_back(item)
        raise
    finally:
        if place:
            world.leave_place(place)


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
    world.say(f"runtime.reap_pending(blocking={blocking})")
    world.runtime.reap_pending(blocking=blocking)


@step
def trim(world: World, rng: Random) -> None:
    """Idle chunks of a pool go back while others allocate and free."""
    pool = world.runtime.resource
    if not isinstance(pool, PoolMemoryResource):
        raise NothingToDo
    keep = rng.choice([0, 0, 2 * max(world.sizes)])
    world.say(f"runtime.resource.trim({keep})")
    pool.trim(keep)


@step
def account(world: World, rng: Random) -> None:
    """The figures agree with what the program knows, to the byte."""
    kind = world.kind
    if world.depth or kind.failures or kind.captures or kind.gaps or kind.foreign or not world.protect:
        raise NothingToDo
    gc.collect()
    world.runtime.reap_pending()
    live = sum(item.nbytes for item in world.all_items
               if not item.adopted and (not item.gone or item.open or item.loans))
    seen = world.runtime.live_bytes, world.runtime.pending_bytes, world.runtime.bytes_outstanding
    if seen != (live, 0, live):
        world.violation(f"live, pending and outstanding bytes are {seen}, not {(live, 0, live)}")


# ---------------------------------------------------------------------------------------------- launches
def enter(world: World, rng: Random) -> Open:
    """Claim, record, prepare."""
    place = world.enter_place(rng)
    try:
        claims = world.claim(rng, place, rng.randint(1, 4))
    except NothingToDo:
        world.leave_place(place)
        raise
    handback = "writes" if rng.random() < .1 else "all"
    recorder = None
    try:
        if world.protect:
            recorder = LaunchRecorder(world.name(place, rng), runtime=world.runtime, handback=handback,
                                      mode=rng.choice(["strict", "permissive"]),
                                      on_conflict=rng.choice(["count", "count", "count", "raise"]))
            register(world, recorder, claims, rng)
            preflight(world, recorder, rng)
    except BaseException:
        world.release(place, claims, launched=False)
        raise
    with world.lock:
        for claim in claims:
            claim.item.last_opaque = None
            world.happened["overlapping_windows"] += claim.item.open > 1
    return Open(recorder, place, claims, handback)


def register(world: World, recorder: LaunchRecorder, claims: list[Claim], rng: Random) -> None:
    """By block, identity or address; a few twice, which merges."""
    for claim in claims:
        for access in ((READ, WRITE) if claim.access == READ_WRITE and rng.random() < .3 else (claim.access,)):
            add = getattr(recorder, access)
            by_address = claim.item.ptr + rng.randrange(claim.item.nbytes) if rng.random() < .3 else None
            if by_address is None:
                block = claim.item.block
                add(claim.item.id if block is None or rng.random() < .5 else block)
                continue
            with world.lock:                            # an address means whoever lives there: nobody may free it now
                gone = claim.item.gone
                claim.item.held += 1
            try:
                add(claim.item.id if gone else by_address)
            finally:
                with world.lock:
                    claim.item.held -= 1


def preflight(world: World, recorder: LaunchRecorder, rng: Random) -> None:
    for attempt in range(3):                            # a failed one may be repeated
        try:
            recorder.preflight()
            return
        except DriverError as error:
            if attempt == 2 or not world.excuses(error) or rng.random() < .3:
                raise


def leave(world: World, window: Open, how: str) -> None:
    """Commit, an exception on the way out, or the recorder is dropped; `cancel` says that nothing was launched."""
    place = window.place
    launched = how != "cancel"
    with world.lock:
        for claim in window.claims if launched else ():
            item = claim.item
            if place is not item.place and window.handback == "writes":
                item.quiet = True
            if (place.discipline == "opaque" and claim.access != READ
                    and claim.alone and claim.use == item.uses):
                item.last_opaque = place, place.registration
        heard = [claim.item for claim in window.claims if claim.access != READ and claim.alone
                 and claim.use == claim.item.uses and is_heard(claim.item, window)]
    trouble = True
    try:
        recorder = window.recorder
        if recorder is not None:
            if how == "commit":
                recorder.commit()
            elif how == "cancel":
                recorder.cancel()
            elif how == "exception":
                recorder.__exit__(ValueError, ValueError(), None)
            else:
                del recorder
                drop_recorder(window, how)
        trouble = how in ("drop", "cycle")
    finally:
        if trouble:                                     # the hand-back failed, or comes later
            for claim in window.claims:
                claim.item.quiet = True
        elif launched:
            for item in heard:
                item.unheard = False
        world.release(place, window.claims, launched)


def is_heard(item: Item, window: Open) -> bool:
    """Will the block's home be made to wait for this use?"""
    return (item.place is not None and item.place is not window.place and item.home is item.place
            and item.place.discipline == "opaque" and window.handback == "all")


def drop_recorder(window: Open, how: str) -> None:
    if how == "cycle":
        cycle: list[Any] = [window.recorder]
        cycle.append(cycle)
        window.recorder = None
        del cycle
        gc.collect()
    else:
        window.recorder = None


def describe(claims: list[Claim]) -> str:
    return ", ".join(f"{claim.access}={claim.item}{claim.parts}" for claim in claims)


@step
def use(world: World, rng: Random) -> None:
    window = enter(world, rng)
    world.say(f"with use({window.place}, {describe(window.claims)}): launch")
    world.launch(rng, window.place, window.claims)
    leave(world, window, rng.choice(["commit", "commit", "commit", "exception"]))


@step
def open_window(world: World, rng: Random) -> None:
    if len(world.windows) > 6:
        raise NothingToDo
    window = enter(world, rng)
    number = world.next_number("window")
    if rng.random() < .2:
        world.say(f"W{number} = use({window.place}, {describe(window.claims)}); W{number}.cancel()")
        leave(world, window, "cancel")
        return
    world.say(f"W{number} = use({window.place}, {describe(window.claims)}); W{number}.preflight(); launch")
    world.launch(rng, window.place, window.claims)
    with world.lock:
        world.windows.append(window)


def take_window(world: World, rng: Random) -> Open:
    with world.lock:
        if not world.windows:
            raise NothingToDo
        return world.windows.pop(rng.randrange(len(world.windows)))


@step
def close_window(world: World, rng: Random) -> None:
    window = take_window(world, rng)
    how = rng.choice(["commit", "commit", "exception"])
    world.say(f"{how} of the window on {window.place} ({describe(window.claims)})")
    leave(world, window, how)


@step
def abandon(world: World, rng: Random) -> None:
    """The recorder is dropped between prepare and finish."""
    window = take_window(world, rng)
    world.say(f"drop the window on {window.place} ({describe(window.claims)})")
    leave(world, window, "cycle" if rng.random() < .3 else "drop")


@step
def late(world: World, rng: Random) -> None:
    """A use is registered after preflight: refused, and the others are filed all the same (W7)."""
    window = enter(world, rng)
    world.say(f"with use({window.place}, {describe(window.claims)}) as r: launch; r.read(too late)")
    world.launch(rng, window.place, window.claims)
    if window.recorder is not None:
        refused(world, StreamMisuseError, functools.partial(window.recorder.read, window.claims[0].item.id),
                "a late registration")
    leave(world, window, "commit")


@step
def single(world: World, rng: Random) -> None:
    """prepare_block_use, launch, finish_block_use."""
    place = world.enter_place(rng)
    try:
        claims = world.claim(rng, place, 1)
    except NothingToDo:
        world.leave_place(place)
        raise
    item, access = claims[0].item, ACCESS[claims[0].access]
    launched = False
    try:
        if world.protect:
            world.runtime.prepare_block_use(item.id, world.name(place, rng), access)
        item.last_opaque = None
        launched = True
        world.say(f"prepare_block_use({item}, {place}, {claims[0].access}); launch; finish_block_use")
        world.launch(rng, place, claims)
        if world.protect:
            finish_single(world, rng, item, place, access)
    finally:
        world.release(place, claims, launched)


def finish_single(world: World, rng: Random, item: Item, place: Place, access: Access) -> None:
    """A finish is refused by nobody, but naming a foreign stream asks the driver, which may fail: then once more."""
    for attempt in range(8):
        try:
            world.runtime.finish_block_use(item.id, world.name(place, rng), access)
            return
        except UseAfterFreeError:
            item.quiet = True
            if attempt:                                 # the try before closed the window, and its hand-back failed
                return
            raise
        except (DriverError, StreamMisuseError) as error:
            item.quiet = True
            if attempt == 7 or not world.excuses(error):
                raise


@step
def hidden(world: World, rng: Random) -> None:
    """Work that nobody records, where the rules allow it: on fresh blocks at home, and on opaque streams."""
    with world.lock:
        choice = [(item, place) for item in world.items if not item.held and item.idle
                  for place in (item.last_opaque and item.last_opaque[0], item.place)
                  if place is not None and may_hide(world, item, place)]
        if not choice:
            raise NothingToDo
        item, place = rng.choice(choice)
        claim = world.claim_idle(rng, item)
        place.busy += 1
        if place is not item.place:
            item.quiet = True
        elif item.last_opaque and item.last_opaque[0] is not place:
            item.last_opaque = None
    try:
        world.say(f"launch on {place} without a word: {describe([claim])}")
        world.launch(rng, place, [claim])
    finally:
        with world.lock:
            world.unclaim_idle(claim)
            place.busy -= 1


def may_hide(world: World, item: Item, place: Place) -> bool:
    if place.gone or not world.usable(place):
        return False
    if item.last_opaque and item.last_opaque == (place, place.registration) and place.discipline == "opaque":
        return True
    if (place is not item.place or item.quiet or item.unheard or place.registration != item.registration
            or item.home is not place):
        return False
    return place.discipline == "opaque" or (place.discipline == "ordinary" and not item.elsewhere)


@step
def record(world: World, rng: Random) -> None:
    """Work that the program ordered by itself, filed afterwards."""
    if world.depth or world.capturing or not world.protect:
        raise NothingToDo
    place = world.enter_place(rng)
    try:
        with world.lock:
            choice = [item for item in world.items if not item.held and item.idle]
            if not choice:
                raise NothingToDo
            item = rng.choice(choice)
            claim = world.claim_idle(rng, item)
            item.quiet = True
            item.last_opaque = None
            item.elsewhere += place is not item.place
        try:
            record_after(world, rng, place, claim)
        finally:
            with world.lock:
                world.unclaim_idle(claim)
    finally:
        world.leave_place(place)


def record_after(world: World, rng: Random, place: Place, claim: Claim) -> None:
    item = claim.item
    world.synchronize()
    world.say(f"synchronize; launch on {place}: {describe([claim])}; record")
    world.launch(rng, place, [claim])
    try:
        if rng.random() < .5:
            world.runtime.record_block_use(item.id, world.name(place, rng))
        else:
            world.runtime.finish_block_use(item.id, world.name(place, rng), ACCESS[claim.access])
    except BaseException:                               # not filed, perhaps: then the program orders it
        world.synchronize()
        raise


class Empty:
    """An array without elements."""

    __cuda_array_interface__: ClassVar = {"shape": (0,), "typestr": "<u4", "data": (0, False), "version": 3}


@step
def empty(world: World, rng: Random) -> None:
    """A buffer of no bytes is nobody's, and safe (W24)."""
    with world.on(rng) as place:
        if place in world.capturing or not world.protect:
            raise NothingToDo
        world.say(f"with use({place}, write=<no bytes>): pass")
        with LaunchRecorder(world.name(place, rng), runtime=world.runtime).write(Empty()):
            pass


# ---------------------------------------------------------------------------------------------- identity
@step
def look_up(world: World, rng: Random) -> None:
    """An address inside a block is that block's; live blocks are found, freed ones are not."""
    with world.holding(rng) as item:
        world.say(f"runtime.find_block({item})")
        found = world.runtime.find_block(item.ptr + rng.randrange(item.nbytes))
        if found != item.id:
            world.violation(f"the address of {item} (generation {item.id.generation}) is {found}'s")


@step
def stale(world: World, rng: Random) -> None:
    """Handles of freed blocks stay dead, whoever lives at their address now (W18, W20)."""
    with world.lock:
        if not world.stale:
            raise NothingToDo
        identity, block = rng.choice(list(world.stale))
    with world.on(rng) as place:
        if place in world.capturing or not world.protect:
            raise NothingToDo
        if world.kind.foreign and place.kind != "own":  # its name asks the driver, and may be refused for other reasons
            raise NothingToDo
        world.say(f"use and free of generation {identity.generation}, which is freed")
        recorder = LaunchRecorder(place.what, runtime=world.runtime)

        def again() -> None:
            recorder.read(identity if rng.random() < .5 else block)
            recorder.preflight()

        refused(world, UseAfterFreeError, again, "the use of a freed block")
        refused(world, UseAfterFreeError, block.free, "the second free of a block")


@step
def wrong_runtime(world: World, rng: Random) -> None:
    """A stream of one runtime is no stream of another, whatever its number (W12)."""
    if world.neighbour is None:
        raise NothingToDo
    world.say("runtime.allocate(256, a stream of another runtime)")
    stream = world.neighbour.default_stream
    refused(world, StreamMisuseError, lambda: world.runtime.allocate(256, stream), "a stream of another runtime")


# ---------------------------------------------------------------------------------------------- adopted memory
@step
def adopt(world: World, rng: Random) -> None:
    """Memory of somebody else: his work on it is queued on a stream, or it is ready for everybody."""
    if len(world.items) > ROOM * max(1, world.threads // 2):
        raise NothingToDo
    with world.on(rng) as place:
        ptr = int(sure(cuda.cuMemAllocAsync, 1024, world.aside))
        sure(cuda.cuStreamSynchronize, world.aside)
        owner = Owner(world, ptr)
        world.end_captures()
        world.kernels.fill(place.handle, ptr, 0, 256)
        home = place if rng.random() < .75 else None
        if home is None:
            sure(cuda.cuStreamSynchronize, place.handle)
        try:
            block = world.runtime.adopt(ptr, 1024, world.name(place, rng) if home else None, owner=owner)
        except BaseException:
            world.synchronize()                         # the owner goes now, and frees elsewhere
            raise
        item = world.add_item(block, home, 0, owner)
        world.say(f"{item} = runtime.adopt(memory, 1024, {home})  # {ptr:#x}")


@step
def lend(world: World, rng: Random) -> None:
    """Memory of another runtime: produced there, adopted here, freed there once it is let go here."""
    if world.neighbour is None or world.depth or len(world.items) > ROOM * max(1, world.threads // 2):
        raise NothingToDo
    place = world.lending_place()
    world.end_captures()
    block = world.neighbour.allocate(1024, place.keep)
    world.kernels.fill(place.handle, block.ptr, 7, 256)
    adopted = world.runtime.adopt(block.ptr, 1024, place.what, owner=block)
    item = world.add_item(adopted, place, 7)
    world.say(f"{item} = runtime.adopt(a block of another runtime, 1024, {place})  # {block.ptr:#x}")


@step
def alias(world: World, rng: Random) -> None:
    """Adopting a part of a block gives that block."""
    with world.holding(rng) as item:
        world.say(f"runtime.adopt(inside {item}) is {item}")
        block = world.runtime.adopt(item.ptr + 64, 64, owner=object())
        if block.id != item.id:
            world.violation(f"a part of {item} was adopted as generation {block.generation}")


@step
def overlap(world: World, rng: Random) -> None:
    """Adopting what overlaps a block in part is refused."""
    with world.holding(rng) as item:
        world.say(f"runtime.adopt(the end of {item} and more)")
        refused(world, StreamMisuseError,
                lambda: world.runtime.adopt(item.ptr + item.nbytes // PARTS, item.nbytes, owner=object()),
                f"memory that overlaps {item} in part")


# ---------------------------------------------------------------------------------------------- streams
@step
def add_stream(world: World, rng: Random) -> None:
    """An own stream goes back to the pool, and another one is acquired."""
    with world.lock:
        choice = [place for place in world.places
                  if place.kind == "own" and not place.busy and place not in world.capturing]
        if world.depth or len(choice) < 2:
            raise NothingToDo
        place = rng.choice(choice)
        world.forget(place)
    world.say(f"del {place}")
    let_go(world, place)
    world.add_own(rng)


def let_go(world: World, place: Place) -> None:
    """The program's last reference to a stream goes; what is freed there later is freed where the library chooses."""
    world.new_registration(place, None)
    with world.lock:
        for item in list(world.all_items):
            if item.home is place:
                item.unsure = True
    place.gone = True
    place.what = None


@step
def new_stream(world: World, rng: Random) -> None:
    if sum(place.kind != "own" for place in world.places) > 6 * world.threads:
        raise NothingToDo
    world.add_foreign(rng)


@step
def unregister(world: World, rng: Random) -> None:
    place = world.close_place(rng, *FOREIGN)
    with world.lock:
        heirs = [heir for heir in world.places if world.usable(heir) and heir.thread is None]
        heir = rng.choice([None, *heirs])
        if heir:
            heir.busy += 1
    world.say(f"runtime.unregister_stream({place}, heir={heir})")
    try:
        world.runtime.unregister_stream(place.what, heir=heir.what if heir else None)
    except BaseException:
        place.closing = False
        raise
    finally:
        if heir:
            world.leave_place(heir)
    world.new_registration(place, heir or world.default)
    place.keep = None
    if place.kind in ("legacy", "thread"):              # registered again at the next use
        place.discipline = "opaque"
        place.closing = False
    elif rng.random() < .3:
        place.discipline = "ordinary"
        place.closing = False
    else:
        world.forget(place)
        if world.depth:                                 # somebody's call may be about to use the handle
            world.to_destroy.append(place)
        else:
            world.destroy(place)


@step
def discipline(world: World, rng: Random) -> None:
    """Other rules for the same stream: what was hidden under the old ones stays hidden."""
    place = world.close_place(rng, *FOREIGN)
    chosen = rng.choice(["ordinary", "opaque", "sealed"])
    world.say(f"runtime.register_stream({place}, discipline={chosen!r})")
    try:
        stream = world.runtime.register_stream(world.name(place, rng), discipline=chosen)
        if stream.discipline != chosen:
            world.violation(f"{place} was registered as {chosen}, and is {stream.discipline}")
        with world.lock:
            if chosen == "opaque" and place.discipline != "opaque":
                for item in list(world.all_items):
                    if item.place is place and item.elsewhere:
                        item.unheard = True             # nobody made it wait for those
            place.discipline = chosen
        if place.kind == "raw":
            place.keep = stream
    finally:
        place.closing = False


@step
def drop_stream(world: World, rng: Random) -> None:
    """The last reference to somebody's stream object goes: the library has to keep it until nothing needs it."""
    if world.depth:
        raise NothingToDo
    place = world.close_place(rng, "object")
    world.forget(place)
    world.say(f"del {place}")
    let_go(world, place)


@step
def many_streams(world: World, rng: Random) -> None:
    """Enough registrations for a sweep."""
    if world.depth:
        raise NothingToDo
    world.say("register 36 streams and drop them")
    made = []
    for _ in range(36):
        made.append(ForeignStream(int(sure(cuda.cuStreamCreate, 1))))
        world.runtime.register_stream(made[-1])


# ---------------------------------------------------------------------------------------------- situations
@step
def situation(world: World, rng: Random) -> None:
    if world.simulator is None or world.scratched + 64 * 1024 > SCRATCH:
        raise NothingToDo
    chosen = rng.choice(SITUATIONS)
    world.say(f"{chosen.__name__.replace('_', ' ')}: {(chosen.__doc__ or '').splitlines()[0]}")
    chosen(world, rng)


# ---------------------------------------------------------------------------------------------- captures, failures
@step
def capture(world: World, rng: Random) -> None:
    if world.depth or len(world.capturing) > 1:
        raise NothingToDo
    choice = [place for place in world.places if place.kind not in ("legacy", "raw") and place not in world.capturing]
    with world.on(rng, choice) as place:
        world.say(f"begin a capture on {place}")
        world.begin_capture(place)


@step
def end_capture(world: World, rng: Random) -> None:
    if not world.capturing:
        raise NothingToDo
    place = rng.choice(world.capturing)
    world.say(f"end the capture on {place}")
    world.end_capture(place)


@step
def fail(world: World, rng: Random) -> None:
    """One of the next driver calls fails, or a resource written in Python."""
    if world.simulator is None:
        raise NothingToDo
    if rng.random() < .2:
        world.say("the next call of a resource written in Python fails")
        world.resource_fails += 1
        return
    call, occasion, code = rng.choice(FAILABLE), rng.randint(1, 2), rng.choice(CODES)
    world.say(f"{call} number {occasion} from now fails with {code}")
    world.simulator.fail(call, occasion, code)
