"""The end of a world: everything is closed and freed, and leftovers are violations."""
from __future__ import annotations

import gc
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from cuda.bindings import driver as cuda

from xlogmem import _driver
from xlogmem.blocks import unfinished_runtimes
from xlogmem.errors import XlogmemError
from xlogmem.runtime import DeviceRuntime
from xlogmem.sim.kernels import check
from xlogmem_selftest.world.adaptors import miscounted
from xlogmem_selftest.world.calls import Injected
from xlogmem_selftest.world.models import ProgramGraph, Window

if TYPE_CHECKING:
    from xlogmem_selftest.world import World

__all__ = ["alive", "end"]


def alive(simulator: Any, devices: int = 1) -> dict[str, int]:
    """The present amounts of all that could leak: events, device memory and streams."""
    gc.collect()
    counts = {f"events of device {device}": _driver.live_events(device)[0] for device in range(devices)}
    if simulator:
        counts |= {"bytes of device memory": simulator.live_bytes(), "streams": simulator.live_streams()}
    return counts


def end(world: World, finish: Callable[[World, Window, str], None]) -> None:
    """Close and free everything, and look for what is left; `finish` commits a window."""
    with world.context():
        with world.surprises_reported():
            races = stop(world)
            release_everything(world, finish)
            check_counters(world)
            unregister_foreign(world)
            check_contents(world, races)
        with world.surprises_reported():
            look_for_leaks(world)


def stop(world: World) -> list[str]:
    """No failures and no gaps any more; returns the races so far."""
    world.over = True
    world.armed.clear()
    world.resource_fails = 0
    world.depth = 0
    world.end_captures()
    if not world.simulator:
        return []
    races: list[str] = world.simulator.races()
    world.simulator.reset("seeded", 1)
    # The call that restores the thread's capture mode may have been made to fail.
    check(cuda.cuThreadExchangeStreamCaptureMode(cuda.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL))
    return races


def release_everything(world: World, finish: Callable[[World, Window, str], None]) -> None:
    while world.windows:
        finish(world, world.windows.pop(), "commit")
    while world.to_destroy:
        world.destroy(world.to_destroy.pop())
    while world.graphs:
        close_graph(world.graphs.pop())
    for item in world.items:
        item.block = None
    for item in world.exported:
        item.exports.clear()
    world.exported.clear()
    world.release_libraries()
    world.items.clear()
    world.stale.clear()
    world.holds.clear()
    world.host_pools.clear()


def close_graph(graph: ProgramGraph) -> None:
    """Close a graph of the program's, and destroy the driver's."""
    assert graph.graph is not None
    graph.graph.close()
    if graph.executable:
        check(cuda.cuGraphExecDestroy(graph.executable))


def count_adaptors(world: World) -> None:
    for runtime in world.runtimes:
        outstanding = runtime.bytes_outstanding
        elsewhere = sum(record.nbytes for record in runtime.snapshot().resources[1:])   # memory for the host
        for text in miscounted(runtime.resource, runtime.live_bytes - elsewhere, outstanding - elsewhere):
            world.violation(text)


def check_counters(world: World) -> None:
    gc.collect()
    count_adaptors(world)
    for runtime in world.runtimes:
        reap(world, runtime)
    for runtime in world.runtimes:
        if runtime.lost:
            world.violation("the device was given up")
        counters = runtime.counters()
        world.happened.update(deferred_frees=counters["deferred_frees"], waits=counters["waits"],
                              elided_waits=counters["known"] + counters["covered"], records=counters["records"],
                              conflict_waits=counters["conflict_waits"], cached=counters["cached"])
        if (runtime.bytes_outstanding or counters["live_blocks"] or world.owners
                or counters["allocations"] != counters["frees"]):
            world.violation(f"left at the end: {runtime.live_bytes} bytes live, {runtime.pending_bytes} "
                            f"pending, {counters['live_blocks']} blocks, {world.owners} owners; "
                            f"{counters['allocations']} allocations, {counters['frees']} frees")
    count_adaptors(world)


def reap(world: World, runtime: DeviceRuntime) -> None:
    """Frees that failed are tried again; then nothing may be in the way."""
    for attempt in range(6):
        try:
            runtime.reap_pending()
            break
        except (XlogmemError, Injected) as error:
            if attempt == 5 or not world.excuses(error):
                raise
    runtime.reap_pending()


def unregister_foreign(world: World) -> None:
    for stream in [stream for stream in world.streams if stream.kind in ("raw", "object")]:
        runtime = world.runtime_of(stream)
        runtime.register_stream(stream.argument)        # the program may have unregistered it, and used it no more
        runtime.unregister_stream(stream.argument)
        world.destroy(stream)
        stream.library_stream = None
    world.streams.clear()


def check_contents(world: World, races: list[str]) -> None:
    world.synchronize()
    if world.guard is not None:
        world.guard.check()
        for found in world.found_by_guard:
            world.violation(f"the guard found: {found}")
    if wrong := world.surprises():
        world.violation(f"{wrong} words were not what was written there last")
    if world.simulator:
        races += world.simulator.races()
        world.simulator.clear_races()
    for race in races[:20]:
        world.violation(race)


def look_for_leaks(world: World) -> None:
    world.close_libraries()
    world.free_areas()
    world.leave_process()
    for name in ("states", "neighbour_state", "runtime", "runtimes", "guard", "neighbour", "neighbour_stream",
                 "defaults", "all_items", "armed"):
        delattr(world, name)
    gc.collect()
    if unfinished_runtimes():                           # of this program: a finalizer puts off what would end captures
        for device in world.devices:
            DeviceRuntime(device).reap_pending()
        gc.collect()
    world.synchronize()
    for _ in range(20):                                 # threads that just ended release their parts late
        after = alive(world.simulator, len(world.devices))
        if after == world.before:
            break
        time.sleep(.01)
    for name, count in after.items():
        if count != world.before[name]:
            world.violation(f"{count - world.before[name]} {name} leaked")
