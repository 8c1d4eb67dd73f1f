"""The programs of `fault_programs` about resources, and the list of all programs."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fault_world import NBYTES, World

from xlogmem import (
    AsyncMemoryResource,
    DeviceMemoryResource,
    DeviceRuntime,
    DeviceState,
    DirectMemoryResource,
    GuardResourceAdaptor,
    LoggingResourceAdaptor,
    ManagedMemoryResource,
    PinnedMemoryResource,
    PoolMemoryResource,
    StatisticsResourceAdaptor,
    Stream,
    SystemMemoryResource,
    TrackingResourceAdaptor,
    sim,
)

__all__ = ["PROGRAMS", "program"]

PROGRAMS: dict[str, Callable[[World], None]] = {}


def program(function: Callable[[World], None]) -> Callable[[World], None]:
    PROGRAMS[function.__name__] = function
    return function


def churn(w: World, runtime: DeviceRuntime, s: Stream, t: Stream, **options: Any) -> None:
    """Memory that changes hands between streams."""
    for stream, other in ((s, t), (t, s)):
        some = [w.do(runtime.allocate, nbytes, stream, **options) for nbytes in (300, 5000, 70000)]
        w.launch(stream, write=some)
        w.launch(other, read=some)
        for block in some:
            w.do(block.free)
    w.do(runtime.reap_pending)


@program
def pool(w: World) -> None:
    resource = w.do(PoolMemoryResource, w.do(AsyncMemoryResource), 1 << 16, chunk_size=1 << 17)
    churn(w, *w.two(resource=resource))
    w.do(resource.trim)
    resource.pool_size(), resource.statistics(), resource.memory_summary()


@program
def pool_on_direct(w: World) -> None:
    resource = w.do(PoolMemoryResource, w.do(DirectMemoryResource), maximum_pool_size=1 << 18, chunk_size=1 << 16)
    runtime, s, t = w.two(resource=resource)
    churn(w, runtime, s, t)
    w.do(resource.trim, 1 << 16)
    w.do(resource.trim)


@program
def logged(w: World) -> None:
    """A log above a pool and one below it: neither changes what happens, whatever fails."""
    records: list[Any] = []
    below = w.do(LoggingResourceAdaptor, w.do(AsyncMemoryResource), records.append)
    above = w.do(LoggingResourceAdaptor, w.do(PoolMemoryResource, below, chunk_size=1 << 17), records.append)
    churn(w, *w.two(resource=above))
    for log in (above, below):
        w.do(log.flush)
        assert log.dropped_records == 0
        log.close()


@program
def direct(w: World) -> None:
    churn(w, *w.two(resource=w.do(DirectMemoryResource)))


@program
def second_resources(w: World) -> None:
    """Beside the runtime's own."""
    runtime, s, t = w.two()
    for resource in (w.do(PinnedMemoryResource), w.do(ManagedMemoryResource), w.do(AsyncMemoryResource)):
        churn(w, runtime, s, t, resource=resource)


@program
def system_memory(w: World) -> None:
    """Ordinary memory of the host, as a block, as buffers, and as an array that is copied."""
    runtime, s, t = w.two()
    sim.simulator().set_pageable(True)
    try:
        resource = w.do(SystemMemoryResource)
        churn(w, runtime, s, t, resource=resource)
        state = DeviceState(runtime)
        buffer = w.do(state.empty, 64, "uint8", s, resource=resource)
        other = w.do(state.empty, 64, "uint8", s)
        w.do(buffer.fill, 1, s)
        w.do(other.copy_from, buffer, t)
        w.do(buffer.copy_from, other, s)
        w.do(buffer.to_numpy, t)
        del buffer, other
        w.do(runtime.reap_pending)
    finally:
        sim.simulator().set_pageable(False)


@program
def pool_of_pinned(w: World) -> None:
    resource = w.do(PoolMemoryResource, w.do(PinnedMemoryResource), 1 << 16, chunk_size=1 << 17)
    churn(w, *w.two(), resource=resource)
    w.do(resource.trim)


@program
def async_resource(w: World) -> None:
    resource = w.do(AsyncMemoryResource, 0, release_threshold=1 << 20)
    churn(w, *w.two(resource=resource))


@program
def guard(w: World) -> None:
    resource = w.do(GuardResourceAdaptor, w.do(AsyncMemoryResource), quarantine_bytes=1 << 15)
    churn(w, *w.two(resource=resource))
    w.do(resource.check, blocking=False)
    w.do(resource.check)
    w.do(resource.trim)
    assert not resource.violations()


@program
def guard_on_direct(w: World) -> None:
    resource = w.do(GuardResourceAdaptor, w.do(DirectMemoryResource), quarantine_bytes=1 << 15)
    churn(w, *w.two(resource=resource))
    w.do(resource.check)
    w.do(resource.trim)


@program
def guard_on_pool(w: World) -> None:
    resource = w.do(GuardResourceAdaptor, w.do(PoolMemoryResource), quarantine_age=1)
    churn(w, *w.two(resource=resource))
    w.do(resource.check)


@program
def bare_resources(w: World) -> None:
    """Without a runtime."""
    stream = w.foreign_stream()
    for kind in (AsyncMemoryResource, DirectMemoryResource):
        resource = w.do(kind)
        ptr = w.do(resource.allocate, NBYTES, stream)
        w.write(stream, ptr)
        w.must(resource.deallocate, ptr, NBYTES, stream)


class Written(DeviceMemoryResource):
    """A resource in Python, over another."""

    order = "stream"

    def __init__(self, below: DeviceMemoryResource) -> None:
        super().__init__()
        self.below = below

    def allocate(self, nbytes: int, stream: Any) -> int:
        return self.below.allocate(nbytes, stream)

    def deallocate(self, ptr: int, nbytes: int, stream: Any) -> None:
        self.below.deallocate(ptr, nbytes, stream)


@program
def adaptors(w: World) -> None:
    """Below and above a pool, and over the driver: after any failure the figures are those of what is there."""
    for pooled in (False, True):
        below = w.do(StatisticsResourceAdaptor, w.do(AsyncMemoryResource))
        upstream = w.do(PoolMemoryResource, below, chunk_size=1 << 17) if pooled else below
        statistics = w.do(StatisticsResourceAdaptor, w.do(TrackingResourceAdaptor, upstream, depth=2))
        runtime, s, t = w.two(resource=statistics)
        statistics.push_counters()
        churn(w, runtime, s, t)
        seen = statistics.pop_counters()
        left = statistics.upstream.outstanding_bytes
        assert seen.current_bytes == left == sum(x.nbytes for x in statistics.upstream.outstanding_allocations())
        assert left == sum(row.current_bytes for row in statistics.counters(by="tag").values()) == runtime.live_bytes
        assert pooled or below.allocation_counts.current_bytes == left


@program
def written_resource(w: World) -> None:
    churn(w, *w.two(resource=w.do(Written, w.do(AsyncMemoryResource))))
