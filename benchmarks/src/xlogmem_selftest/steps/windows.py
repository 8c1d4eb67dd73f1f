"""Steps that launch with a recorder: prepare, launch, finish, in one step or with other steps in between."""
from __future__ import annotations

import contextlib
import functools
import gc
import sys
import sysconfig
import time
from collections.abc import Iterator
from random import Random

from xlogmem_bench._loops import Held, NativeUse

from xlogmem.blocks import Access
from xlogmem.errors import DriverError, StreamMisuseError, UseAfterFreeError
from xlogmem.launch import LaunchRecorder
from xlogmem.runtime import DeviceRuntime
from xlogmem.streams import Stream
from xlogmem_selftest.registry import step
from xlogmem_selftest.world import (
    PARTS,
    READ,
    READ_WRITE,
    WRITE,
    CapturedItem,
    Claim,
    Item,
    NothingToDo,
    ProgramStream,
    Window,
    World,
    refused,
)

__all__ = ["ACCESS", "describe", "finish_window", "keep_owner", "record_window"]

FREE_THREADED = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
ACCESS = {READ: Access.READ, WRITE: Access.WRITE, READ_WRITE: Access.READ_WRITE}
ALONE = ["count", "count", "raise", "wait"]             # one thread cannot wait for its own windows: that is refused
REFUSE_CONFLICTS, HAND_BACK_WRITES, KEEPS_STREAM = 1, 2, 8         # as in xlogmem.h
IN_A_CROWD = ["wait", "wait", "wait", "wait", "count", "raise"]


def prepare_window(world: World, rng: Random) -> Window:
    """Claim, record, prepare; in a capture, too."""
    stream = world.enter_stream_anywhere(rng) if world.captures else world.enter_stream(rng)
    try:
        claims = world.claim(rng, stream, rng.randint(1, 4))
    except NothingToDo:
        world.leave_stream(stream)
        raise
    return record_window(world, rng, stream, claims)


def record_window(world: World, rng: Random, stream: ProgramStream, claims: list[Claim]) -> Window:
    """Record and prepare what is claimed."""
    handback = "writes" if rng.random() < .1 and not has_consumers(claims) else "all"
    recorder = None
    try:
        if world.protect:
            make = native_use if rng.random() < .3 else python_recorder
            with world.no_refusal_in(stream.capture):
                recorder = make(world, rng, stream, handback)
                with staying(world) as addressed:
                    register(world, recorder, claims, rng, addressed)
                    if isinstance(recorder, NativeUse):     # it looks addresses up when it is prepared
                        preflight(world, recorder, rng)
                if not isinstance(recorder, NativeUse):
                    preflight(world, recorder, rng)
    except BaseException:
        world.end_claims(stream, claims, launched=False)
        raise
    with world.lock:
        if stream.capture is not None and stream in stream.capture.unnamed:
            stream.capture.unnamed.discard(stream)
        for claim in claims:
            claim.item.last_opaque = None
            world.happened["overlapping_windows"] += claim.item.open > 1
    return Window(recorder, stream, claims, handback)


def has_consumers(claims: list[Claim]) -> bool:
    """True if work on some stream besides the home is not recorded, in a capture."""
    return any(isinstance(claim.item, CapturedItem) and claim.item.consumers for claim in claims)


def python_recorder(world: World, rng: Random, stream: ProgramStream, handback: str) -> LaunchRecorder:
    runtime = world.runtime_for(rng, stream) if stream.capture is None else world.runtime_of(stream)
    return LaunchRecorder(world.argument(stream, rng), runtime=runtime, handback=handback,
                          untracked=rng.choice(["raise", "ignore"]),
                          on_conflict=rng.choice(IN_A_CROWD if world.threads > 1 else ALONE))


def native_use(world: World, rng: Random, stream: ProgramStream, handback: str) -> NativeUse:
    """By the C table, on the stream's handle.  A hold of its own may promise to keep the stream, and ends at once."""
    runtime, argument = world.runtime_of(stream), world.argument(stream, rng)
    if stream.capture is None:
        keep_owner(runtime, argument)
    flags = HAND_BACK_WRITES if handback == "writes" else 0
    flags |= REFUSE_CONFLICTS if rng.random() < .3 else 0
    with world.lock:
        if not world.holds:
            world.holds += [Held(runtime) for runtime in world.runtimes]
    if rng.random() < .2:
        return NativeUse(Held(runtime), stream.handle, world.holds, flags | KEEPS_STREAM)
    return NativeUse(world.holds[stream.device], stream.handle, world.holds, flags)


def keep_owner(runtime: DeviceRuntime, argument: object) -> None:
    """The runtime knows the owner of a stream, before its handle is named."""
    if not isinstance(argument, (Stream, int)):
        runtime.register_stream(argument)


@contextlib.contextmanager
def staying(world: World) -> Iterator[list[Item]]:
    """Items in this list, which are named by their addresses, are not freed before the end."""
    items: list[Item] = []
    try:
        yield items
    finally:
        with world.lock:
            for item in items:
                item.held -= 1


def register(world: World, recorder: LaunchRecorder | NativeUse, claims: list[Claim], rng: Random,
             addressed: list[Item]) -> None:
    """By block, identity, address, or the ranges of its parts; a few twice, which merges."""
    for claim in claims:
        if (isinstance(recorder, LaunchRecorder) and claim.parts and rng.random() < .4
                and stays(world, claim.item, addressed)):
            claim.in_ranges = True
            getattr(recorder, claim.access)(ranges_of(claim, rng))
            continue
        for access in ((READ, WRITE) if claim.access == READ_WRITE and rng.random() < .3 else (claim.access,)):
            add = getattr(recorder, access)
            by_address = claim.item.ptr + rng.randrange(claim.item.nbytes) if rng.random() < .3 else None
            if by_address is None:
                block = claim.item.block
                add(claim.item.id if block is None or rng.random() < .5 else block)
                continue
            add(by_address if stays(world, claim.item, addressed) else claim.item.id)


def stays(world: World, item: Item, addressed: list[Item]) -> bool:
    """Keep a block, which is to be named by an address: that means the block there now.  False if it is gone."""
    with world.lock:
        item.held += 1
        addressed.append(item)
        return not item.gone


def ranges_of(claim: Claim, rng: Random) -> list[Range]:
    """Names of the claimed parts: those beside each other by one range, and some by a second one."""
    size, parts = claim.item.nbytes // PARTS, sorted(claim.parts)
    first = [i for i in parts if i - 1 not in parts]
    last = [i for i in parts if i + 1 not in parts]
    ranges = [Range(claim.item.ptr + i * size, (k + 1 - i) * size) for i, k in zip(first, last, strict=True)]
    if rng.random() < .3:
        ranges.append(Range(claim.item.ptr + rng.choice(parts) * size, size))
    rng.shuffle(ranges)
    return ranges


class Range:
    """Names some bytes of a block, as an array of another library does."""

    def __init__(self, ptr: int, nbytes: int) -> None:
        self.__cuda_array_interface__ = {"version": 3, "shape": (nbytes,), "typestr": "|u1", "data": (ptr, False),
                                         "strides": None, "stream": None}


def preflight(world: World, recorder: LaunchRecorder | NativeUse, rng: Random) -> None:
    for attempt in range(3):                            # a failed one may be repeated
        try:
            recorder.preflight()
            return
        except DriverError as error:
            if attempt == 2 or not world.excuses(error) or rng.random() < .3:
                raise


def finish_window(world: World, window: Window, how: str) -> None:
    """Commit, an exception on the way out, or the recorder is dropped; `cancel` says that nothing was launched."""
    stream = window.stream
    launched = how != "cancel"
    with world.lock:
        for claim in window.claims if launched else ():
            item = claim.item
            if stream is not item.stream and window.handback == "writes":
                item.quiet = True
            if claim.access != READ and claim.alone and claim.use == item.uses and not claim.in_ranges:
                item.last_opaque = stream, stream.registration  # it may be opaque now, or become so
        handed_back = [claim.item for claim in window.claims if claim.access != READ and claim.alone
                       and claim.use == claim.item.uses and is_handed_back(claim.item, window)]
    trouble = True
    try:
        finish_recorder(window, how)
        trouble = how in ("drop", "cycle")
    finally:
        if trouble:                                     # the hand-back failed, or comes later
            for claim in window.claims:
                claim.item.quiet = True
        elif launched:
            for item in handed_back:
                item.awaits_handback = False
        world.end_claims(stream, window.claims, launched)


def is_handed_back(item: Item, window: Window) -> bool:
    """True if the hand-back orders the block's home after this use."""
    return (item.stream is not None and item.stream is not window.stream and item.home is item.stream
            and item.stream.discipline == "opaque" and window.handback == "all")


def finish_recorder(window: Window, how: str) -> None:
    if window.recorder is None:
        return
    if how == "commit":
        window.recorder.commit()
    elif how == "cancel":
        window.recorder.cancel()
    elif how == "exception":
        window.recorder.__exit__(ValueError, ValueError(), None)
    elif how == "cycle":
        drop_in_cycle(window)
    else:
        window.recorder = None
        if FREE_THREADED:                               # it ends in the thread that made it, by and by, or now
            drop_in_cycle(window)


class Cycle:
    """Refers to itself, to a recorder, and to what shows that the recorder is gone: the last value to go."""

    def __init__(self, recorder: LaunchRecorder | NativeUse | None, mark: object) -> None:
        self.itself, self.recorder, self.mark = self, recorder, mark


def drop_in_cycle(window: Window) -> None:
    """Drop the recorder in a cycle, and return when it is gone: a collection does nothing while another thread makes
    one, and after the end of this thread there may be none.  A weak reference would be too early: a collector clears
    those of all its garbage first, and other threads may run before it drops the garbage itself."""
    mark = object()
    alone = sys.getrefcount(mark)
    Cycle(window.recorder, mark)
    window.recorder = None
    while sys.getrefcount(mark) > alone:
        gc.collect()
        time.sleep(0)


def describe(claims: list[Claim]) -> str:
    return ", ".join(f"{claim.access}={claim.item}{claim.parts}" for claim in claims)


@step
def use(world: World, rng: Random) -> None:
    window = prepare_window(world, rng)
    world.say(f"with use({window.stream}, {describe(window.claims)}): launch")
    world.launch(rng, window.stream, window.claims)
    finish_window(world, window, rng.choice(["commit", "commit", "commit", "exception"]))


@step
def open_window(world: World, rng: Random) -> None:
    if len(world.windows) > 6:
        raise NothingToDo
    window = prepare_window(world, rng)
    number = world.next_number("window")
    if rng.random() < .2:
        world.say(f"W{number} = use({window.stream}, {describe(window.claims)}); W{number}.cancel()")
        finish_window(world, window, "cancel")
        return
    world.say(f"W{number} = use({window.stream}, {describe(window.claims)}); W{number}.preflight(); launch")
    world.launch(rng, window.stream, window.claims)
    with world.lock:
        world.windows.append(window)


def take_window(world: World, rng: Random) -> Window:
    with world.lock:
        if not world.windows:
            raise NothingToDo
        return world.windows.pop(rng.randrange(len(world.windows)))


@step
def close_window(world: World, rng: Random) -> None:
    window = take_window(world, rng)
    how = rng.choice(["commit", "commit", "exception"])
    world.say(f"{how} of the window on {window.stream} ({describe(window.claims)})")
    finish_window(world, window, how)


@step
def abandon(world: World, rng: Random) -> None:
    """The recorder is dropped between prepare and finish."""
    window = take_window(world, rng)
    world.say(f"drop the window on {window.stream} ({describe(window.claims)})")
    finish_window(world, window, "cycle" if rng.random() < .3 else "drop")


@step
def late(world: World, rng: Random) -> None:
    """A use is registered after preflight: refused, and the others are recorded all the same."""
    window = prepare_window(world, rng)
    world.say(f"with use({window.stream}, {describe(window.claims)}) as r: launch; r.read(too late)")
    world.launch(rng, window.stream, window.claims)
    if window.recorder is not None:
        refused(world, StreamMisuseError, functools.partial(window.recorder.read, window.claims[0].item.id),
                "a late registration")
    finish_window(world, window, "commit")


@step
def single(world: World, rng: Random) -> None:
    """prepare_block_use, launch, finish_block_use."""
    stream = world.enter_stream(rng)
    try:
        claims = world.claim(rng, stream, 1)
    except NothingToDo:
        world.leave_stream(stream)
        raise
    item, access = claims[0].item, ACCESS[claims[0].access]
    launched = False
    try:
        if world.protect:
            world.runtime_of(item).prepare_block_use(item.id, world.argument(stream, rng), access)
        item.last_opaque = None
        launched = True
        world.say(f"prepare_block_use({item}, {stream}, {claims[0].access}); launch; finish_block_use")
        world.launch(rng, stream, claims)
        if world.protect:
            finish_single(world, rng, item, stream, access)
    finally:
        world.end_claims(stream, claims, launched)


def finish_single(world: World, rng: Random, item: Item, stream: ProgramStream, access: Access) -> None:
    """A finish is never refused, but naming a foreign stream queries the driver, which may fail: then once more."""
    for attempt in range(8):
        try:
            world.runtime_of(item).finish_block_use(item.id, world.argument(stream, rng), access)
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
