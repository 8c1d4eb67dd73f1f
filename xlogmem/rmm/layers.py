"""Layers that `enable` puts between RMM's resource and the runtime; the check that an existing runtime has them."""
from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from xlogmem._base.units import parse_bytes, parse_size
from xlogmem._driver import describe_device
from xlogmem.blocks import POLICIES
from xlogmem.resources import (
    DeviceMemoryResource,
    GuardResourceAdaptor,
    LimitingResourceAdaptor,
    LoggingResourceAdaptor,
    PoolMemoryResource,
    StatisticsResourceAdaptor,
)
from xlogmem.resources.sinks import check_sink
from xlogmem.runtime import DeviceRuntime
from xlogmem.streams import StreamPool

__all__ = ["HasRuntime", "Layers", "Parts"]


class HasRuntime(RuntimeError):
    """A device has a runtime already, which is not what is wanted.  The arguments are what was found, and the advice to
    a program that calls `enable` itself."""

    def __str__(self) -> str:
        return ". ".join(self.args)


@dataclass(frozen=True)
class Layers:
    """Layers that `enable` puts between RMM's resource and the runtime, as its arguments choose them."""

    pool_sizes: tuple[int | None, int | None] | None = None
    limit: int | str | float | None = None
    statistics: bool = False
    log: Any | None = None
    guard: bool = False
    policy: str | None = None
    several: bool = field(default=False, compare=False)         # devices: each has a file of its own

    def parts(self, resource: DeviceMemoryResource, device: int) -> Parts:
        """All but the log, which empties a file: that is only checked."""
        if self.policy is not None and self.policy not in POLICIES:
            raise ValueError(f"policy {self.policy!r} is unknown; choose one of {', '.join(POLICIES)}")
        self._parsed_limit(device)
        if self.log is not None:
            check_sink(self.sink(device))
        streams = StreamPool(device)
        if self.pool_sizes is not None:
            resource = PoolMemoryResource(resource, *self.pool_sizes)
        if self.guard:
            resource = GuardResourceAdaptor(resource)
        if self.statistics:
            resource = StatisticsResourceAdaptor(resource)
        return Parts(self, device, resource, streams)

    def sink(self, device: int) -> Any:
        if not self.several or not isinstance(self.log, str | os.PathLike):
            return self.log
        path = Path(self.log)
        return path.with_name(f"{path.stem}.dev{device}{path.suffix}")

    def refuse_others(self, device: int, wanted: Layers) -> None:
        """A runtime that goes on has these: an argument that wants something else would not be heard."""
        for what in self._differences(device, wanted):
            raise HasRuntime(f"RMM's resource of device {device} has a runtime of xlogmem's already, which keeps what "
                             f"it was made with: it cannot get another {what}",
                             "Pass it to the first call of xlogmem.rmm.enable()")

    def _differences(self, device: int, wanted: Layers) -> Iterator[str]:
        """The names of arguments that want something else; None and False want nothing."""
        own_sizes, sizes = (self.pool_sizes or (None, None)), (wanted.pool_sizes or (None, None))
        if wanted.pool_sizes is not None and (self.pool_sizes is None or any(
                size is not None and _parsed_size(size) != _parsed_size(own)
                for own, size in zip(own_sizes, sizes, strict=True))):
            yield "pool_allocator and its sizes"
        if wanted.limit is not None and wanted._parsed_limit(device) != self._parsed_limit(device):
            yield "limit"
        if wanted.log is not None and _parsed_log(wanted.sink(device)) != _parsed_log(self.sink(device)):
            yield "log"
        if wanted.policy is not None and wanted.policy != self.policy:
            yield "policy"
        yield from (name for name in ("statistics", "guard") if getattr(wanted, name) and not getattr(self, name))

    def _parsed_limit(self, device: int) -> int | None:
        if self.limit is None:
            return None
        return parse_bytes("limit", self.limit, lambda: describe_device(device)[2])


@dataclass(frozen=True)
class Parts:
    """Parts of a runtime, which is made of them when nothing can be wrong with any device's parts any more."""

    layers: Layers
    device: int
    resource: DeviceMemoryResource
    streams: StreamPool

    def runtime(self) -> DeviceRuntime:
        """The budget is the outermost, so that what it refuses is neither counted nor logged as requested below."""
        resource, layers = self.resource, self.layers
        if layers.log is not None:
            resource = LoggingResourceAdaptor(resource, layers.sink(self.device))
        if layers.limit is not None:
            resource = LimitingResourceAdaptor(resource, layers.limit)
        return DeviceRuntime(self.device, resource=resource, stream_pool=self.streams, policy=layers.policy)


def _parsed_size(size: Any) -> int | None:
    return None if size is None else parse_size("the size of a pool", size)


def _parsed_log(log: Any) -> Any:
    """Two names of a file are one."""
    return os.path.abspath(log) if isinstance(log, str | os.PathLike) else log
