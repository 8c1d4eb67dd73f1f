"""Steps that disturb the other steps: captures, injected failures, and the `situations`."""
from __future__ import annotations

from random import Random

from xlogmem.selftest.registry import step
from xlogmem.selftest.situations import SITUATIONS
from xlogmem.selftest.world import CODES, SCRATCH, NothingToDo, World

FAILABLE = ("cuEventRecord", "cuStreamWaitEvent", "cuEventSynchronize", "cuEventCreate", "cuMemAllocFromPoolAsync",
            "cuMemFreeAsync", "cuStreamIsCapturing", "cuCtxGetCurrent", "cuEventQuery", "cuMemAlloc", "cuMemFree",
            "cuCtxPushCurrent", "cuMemPoolTrimTo", "cuStreamGetId", "cuStreamGetCtx", "cuStreamGetFlags",
            "cuCtxSynchronize", "cuThreadExchangeStreamCaptureMode", "cuStreamCreateWithPriority")


@step
def situation(world: World, rng: Random) -> None:
    if world.simulator is None or world.scratched + 64 * 1024 > SCRATCH:
        raise NothingToDo
    chosen = rng.choice(SITUATIONS)
    world.say(f"{chosen.__name__.replace('_', ' ')}: {(chosen.__doc__ or '').splitlines()[0]}")
    chosen(world, rng)


@step
def capture(world: World, rng: Random) -> None:
    if world.depth or len(world.capturing) > 1:
        raise NothingToDo
    choice = [stream for stream in world.streams
              if stream.kind not in ("legacy", "raw") and stream not in world.capturing]
    with world.on(rng, choice) as stream:
        world.say(f"begin a capture on {stream}")
        world.begin_capture(stream)


@step
def end_capture(world: World, rng: Random) -> None:
    if not world.capturing:
        raise NothingToDo
    stream = rng.choice(world.capturing)
    world.say(f"end the capture on {stream}")
    world.end_capture(stream)


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
