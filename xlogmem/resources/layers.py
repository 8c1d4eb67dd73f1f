"""The layers of a stack of resources."""
from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeVar

from xlogmem.resources.base import DeviceMemoryResource

__all__ = ["described", "find_layer", "find_layers", "layers_of"]

Layer = TypeVar("Layer", bound=DeviceMemoryResource)

MAX_LAYERS = 64                             # of a stack of resources


def layers_of(resource: DeviceMemoryResource) -> Iterator[Any]:
    """A resource and the layers below, from the top."""
    layer: Any = resource
    for _ in range(MAX_LAYERS):                         # a class in Python may have any `upstream`
        if not isinstance(layer, DeviceMemoryResource):
            return
        yield layer
        layer = getattr(layer, "upstream", None)


def described(resource: DeviceMemoryResource) -> str:
    """The repr of a stack: the names of its layers, from the top."""
    names = [type(layer).__name__ for layer in layers_of(resource)]
    return f"<{names[0]} device={resource.device_id}{''.join(f' over {name}' for name in names[1:])}>"


def find_layer(resource: DeviceMemoryResource, kind: type[Layer]) -> Layer | None:
    """The topmost resource of a class in a stack; None if there is none."""
    return next(find_layers(resource, kind), None)


def find_layers(resource: DeviceMemoryResource, kind: type[Layer]) -> Iterator[Layer]:
    """The resources of a class in a stack, from the top."""
    return (layer for layer in layers_of(resource) if isinstance(layer, kind))
