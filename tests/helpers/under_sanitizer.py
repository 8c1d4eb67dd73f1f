"""What Compute Sanitizer is shown on a GPU, beside the suite: `.ci/gpu` runs this under it.

    python tests/helpers/under_sanitizer.py programs [COUNT]        random programs, recorded: nearly silent, see below
    python tests/helpers/under_sanitizer.py unrecorded [COUNT]      the same without a recorder: it has to be loud
    python tests/helpers/under_sanitizer.py out-of-bounds           a kernel writes behind a block: loud
    python tests/helpers/under_sanitizer.py events                  who holds events of runtimes that should be gone

The verdict is the tool's (``--track-stream-ordered-races all`` for the programs, which then know of each allocation and
free of the driver's pools).  So the programs count no events, and those without a recorder go on after a wrong word.

The tool takes waits on streams and of the host for synchronization, but not that `cuEventQuery` has succeeded, after
which xlogmem makes no stream wait either.  A pool's memory is nearly always older than that: no program here has one.
What is left are a few frees; without a recorder there are a hundred times as many.
"""
from __future__ import annotations

import gc
import os
import sys
import weakref
from collections.abc import Callable
from typing import Any

import xlogmem_selftest as selftest
from cuda.bindings import driver as cuda
from xlogmem_selftest import world
from xlogmem_selftest.world import ending

from xlogmem import AsyncMemoryResource, DeviceRuntime, DirectMemoryResource, _driver, use
from xlogmem.commands.start import start_driver
from xlogmem.sim.kernels import Kernels, check

SEED, LENGTH = 20, 60


def programs(count: str = "40") -> int:
    return play(int(count), protect=True)


def unrecorded(count: str = "40") -> int:
    world.World.violation = lambda self, text: None     # type: ignore[method-assign]
    return play(int(count), protect=False)


def play(count: int, protect: bool) -> int:
    world.alive = ending.alive = lambda simulator: {}   # type: ignore[attr-defined]
    selftest.programs.KINDS = tuple(                    # type: ignore[attr-defined]
        kind for kind in selftest.programs.KINDS if not {"pool", "guard"} & {*kind.resources})
    report = selftest.run(selftest.Settings(programs=count, seed=SEED, length=LENGTH, threads=1, protect=protect,
                                            shrink=False))
    print(f"{report.programs} programs, {report.operations} operations, {report.cross_stream_reuses} reuses of memory "
          f"on another stream, {report.failure or 'no failure'}")
    return report.failure is not None


def out_of_bounds() -> int:
    """Past the end of the allocation, within what the driver maps for it: nothing but a memory checker notices."""
    runtime = DeviceRuntime(resource=DirectMemoryResource())
    kernels, block = Kernels(), runtime.allocate(64)
    with use(block.stream, write=block, runtime=runtime):
        kernels.fill(block.stream.handle, block.ptr, 1, 32)
    block.free()
    kernels.close()
    return 0


def events() -> int:
    """One allocation and one free, step by step; then programs of the selftest, and what is left of each."""
    for kind in (AsyncMemoryResource, DirectMemoryResource):
        steps(kind)
    before = _driver.live_events()
    for seed in range(4):
        report = selftest.run(selftest.Settings(programs=1, seed=seed, length=1, threads=1, shrink=False))
        print(f"program {seed}:", report.failure,
              f"events (in use, created) {before} -> {_driver.live_events()}")
        left()
    return 0


def steps(kind: Callable[[], Any]) -> None:
    def say(what: str) -> None:
        print(f"{kind.__name__}: {what}: events (in use, created) {_driver.live_events()}", flush=True)

    say("before")
    runtime = DeviceRuntime(resource=kind())
    gone = weakref.ref(runtime)
    say("runtime")
    stream = runtime.acquire_stream()
    block = runtime.allocate(4096, stream)
    say("allocated")
    check(cuda.cuMemsetD8Async(block.ptr, 1, 4096, stream.handle))
    block.free()
    say("freed")
    runtime.reap_pending()
    say(f"reaped, {runtime.counters()}")
    del block, stream, runtime
    say("dropped")
    gc.collect()
    check(cuda.cuCtxSynchronize())
    say(f"collected; the runtime is {gone()}")
    left()


def left() -> None:
    """The runtimes and streams that the collector knows of, and what refers to them."""
    kinds = ("Runtime", "StreamPool", "Stream", "DeviceBlock", "LaunchRecorder", "DeviceState", "World")
    for item in gc.get_objects():
        if any(name in kinds for name in (base.__name__ for base in type(item).__mro__)):
            print(f"  left: {item!r}, {sys.getrefcount(item) - 3} references:",
                  [type(holder).__name__ for holder in gc.get_referrers(item)][:12])


def main() -> int:
    command, *arguments = sys.argv[1:]
    start_driver()
    check(cuda.cuInit(0))
    check(cuda.cuCtxSetCurrent(check(cuda.cuDevicePrimaryCtxRetain(0))))
    print(f"{command} on {'the simulated driver' if _driver.is_simulated() else _driver.device_name(0)}, "
          f"XLOGMEM_RESOURCE={os.environ.get('XLOGMEM_RESOURCE', '')}", flush=True)
    return {"programs": programs, "unrecorded": unrecorded, "out-of-bounds": out_of_bounds,
            "events": events}[command](*arguments)


if __name__ == "__main__":
    sys.exit(main())
