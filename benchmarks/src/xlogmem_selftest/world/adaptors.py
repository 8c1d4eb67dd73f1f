"""Adaptors around the resource of a world, and the expected reports at the end."""
from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from random import Random

from xlogmem.resources import (
    AllocationRecord,
    DeviceMemoryResource,
    GuardResourceAdaptor,
    LimitingResourceAdaptor,
    LoggingResourceAdaptor,
    PoolMemoryResource,
    StatisticsResourceAdaptor,
    TrackingResourceAdaptor,
)
from xlogmem.resources.layers import layers_of

__all__ = ["adapted", "miscounted"]


def budget(resource: DeviceMemoryResource, rng: Random, room: int) -> DeviceMemoryResource:
    return LimitingResourceAdaptor(resource, rng.choice([room, 1 << 40]))


def statistics(resource: DeviceMemoryResource, rng: Random, room: int) -> DeviceMemoryResource:
    return StatisticsResourceAdaptor(resource)


def tracking(resource: DeviceMemoryResource, rng: Random, room: int) -> DeviceMemoryResource:
    return TrackingResourceAdaptor(resource, depth=rng.choice([0, 0, 3]))


def log(resource: DeviceMemoryResource, rng: Random, room: int) -> DeviceMemoryResource:
    """To a sink that keeps nothing, and is slow at times."""
    return LoggingResourceAdaptor(resource, _forget, capacity=rng.choice([16, 65_536]))


def _forget(record: AllocationRecord) -> None:
    if record.order % 64 == 0:
        time.sleep(1e-4)


ADAPTORS: tuple[Callable[[DeviceMemoryResource, Random, int], DeviceMemoryResource], ...] = (
    budget, statistics, tracking, log)


def adapted(resource: DeviceMemoryResource, rng: Random, room: int) -> DeviceMemoryResource:
    """None to three adaptors in some order; `room` is a budget that is too small for some programs, in bytes."""
    for _ in range(rng.choice([0, 0, 1, 1, 2, 3])):
        resource = rng.choice(ADAPTORS)(resource, rng, room)
    return resource


def miscounted(resource: DeviceMemoryResource, live: int, outstanding: int) -> Iterator[str]:
    """Wrong counts of adaptors, as texts.  The figures are the runtime's, in bytes; below a pool chunks count."""
    for layer in layers_of(resource):
        if isinstance(layer, PoolMemoryResource):
            live = outstanding = layer.pool_size()
        if isinstance(layer, GuardResourceAdaptor):     # below it canaries count, and what is in quarantine
            return
        counted: tuple[int, int] | None = None
        if isinstance(layer, LimitingResourceAdaptor):
            counted = layer.current_bytes, sum(layer.holders().values())
        elif isinstance(layer, StatisticsResourceAdaptor):
            counted = layer.allocation_counts.current_bytes + layer.pending_bytes, layer.allocation_counts.current_bytes
        elif isinstance(layer, TrackingResourceAdaptor):
            counted = outstanding, layer.outstanding_bytes
        if counted is not None and counted != (outstanding, live):
            yield f"{layer!r} counts {counted} bytes, not {(outstanding, live)}"
