"""Steps that disturb the other steps: captures, injected failures, and the `situations`."""
from __future__ import annotations

import os
import signal
import sysconfig
import warnings
from collections.abc import Callable
from random import Random
from typing import NoReturn

from xlogmem.errors import DriverError
from xlogmem.launch import LaunchRecorder
from xlogmem_selftest.registry import step
from xlogmem_selftest.situations import SITUATIONS
from xlogmem_selftest.world import CODES, SCRATCH, NothingToDo, World

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
def fork(world: World, rng: Random) -> None:
    """A forked child is refused, and hangs nowhere: whatever the other threads are in the middle of."""
    if world.simulator is None:             # hooks of libraries beside a real driver may raise there
        raise NothingToDo
    if sysconfig.get_config_var("Py_GIL_DISABLED"):     # CPython 3.14.0 itself hangs there at times, in stop_the_world
        raise NothingToDo
    with world.lock:
        item = rng.choice(world.items) if world.items else None
    block = item.block if item is not None else None
    calls: list[Callable[[], object]] = [
        lambda: world.runtime.allocate(64), world.runtime.reap_pending, world.runtime.acquire_stream,
        lambda: world.runtime.live_bytes, lambda: world.runtime.find_block(4096), world.runtime.memory_summary,
        world.runtime.counters, lambda: repr(block), lambda: block.state if block else None,
        lambda: LaunchRecorder(world.runtime.default_stream).read(block or ()).preflight()]
    rng.shuffle(calls)
    world.say("fork, and try everything in the child")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)         # fork in a process with threads: that is the point
        child = os.fork()
    if child == 0:
        try_in_child(calls)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status:
        world.violation(f"a forked child ended with {status}")


def try_in_child(calls: list[Callable[[], object]]) -> NoReturn:
    """Exit with 0 if each call answers or is refused, within seconds."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(10)
    for number, call in enumerate(calls, 1):
        try:
            call()
        except DriverError:
            continue
        except BaseException:
            os._exit(number)
    os._exit(0)


@step
def capture(world: World, rng: Random) -> None:
    if world.depth or sum(stream.capture is None for stream in world.capturing) > 1:
        raise NothingToDo
    choice = [stream for stream in world.streams
              if stream.kind not in ("legacy", "raw") and stream not in world.capturing]
    with world.on(rng, choice) as stream:
        world.say(f"begin a capture on {stream}")
        world.begin_capture(stream)


@step
def end_capture(world: World, rng: Random) -> None:
    choice = [stream for stream in world.capturing if stream.capture is None]
    if not choice:
        raise NothingToDo
    stream = rng.choice(choice)
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
