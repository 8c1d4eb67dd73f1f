"""Adaptors around the resource of a world, and what each has to say at the end."""
from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random

from xlogmem.resources import DeviceMemoryResource, LimitingResourceAdaptor, PoolMemoryResource

__all__ = ["adapted", "layers", "miscounted"]


def budget(resource: DeviceMemoryResource, rng: Random, room: int) -> DeviceMemoryResource:
    return LimitingResourceAdaptor(resource, rng.choice([room, 1 << 40]))


ADAPTORS: tuple[Callable[[DeviceMemoryResource, Random, int], DeviceMemoryResource], ...] = (budget,)


def adapted(resource: DeviceMemoryResource, rng: Random, room: int) -> DeviceMemoryResource:
    """None to three adaptors in some order; `room` is a budget that is too small for some programs, in bytes."""
    for _ in range(rng.choice([0, 0, 1, 1, 2, 3])):
        resource = rng.choice(ADAPTORS)(resource, rng, room)
    return resource


def layers(resource: DeviceMemoryResource | None) -> Iterator[DeviceMemoryResource]:
    """A resource and all below it."""
    while resource is not None:
        yield resource
        resource = getattr(resource, "upstream", None)


def miscounted(resource: DeviceMemoryResource, live: int, outstanding: int) -> Iterator[str]:
    """What adaptors count, and should not.  The figures are the runtime's, in bytes; below a pool chunks count."""
    for layer in layers(resource):
        if isinstance(layer, PoolMemoryResource):
            live = outstanding = layer.pool_size()
        if isinstance(layer, LimitingResourceAdaptor):
            counted = layer.current_bytes, sum(layer.holders().values())
            if counted != (outstanding, live):
                yield f"{layer!r} counts {counted} bytes, not {(outstanding, live)}"
