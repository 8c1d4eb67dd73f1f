"""Options of the process's own runtimes: layers between a resource and the runtime.  `xlogmem.enable`,
`xlogmem.rmm.enable`, Dask's plugin and the environment share these options."""
from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, TypedDict

from xlogmem._base.signatures import nearest
from xlogmem._base.units import parse_bytes, parse_size
from xlogmem._driver import describe_device
from xlogmem.blocks import POLICIES
from xlogmem.resources.base import DeviceMemoryResource
from xlogmem.resources.guard import GuardResourceAdaptor
from xlogmem.resources.limiting import LimitingResourceAdaptor
from xlogmem.resources.logging import LoggingResourceAdaptor
from xlogmem.resources.pool import PoolMemoryResource
from xlogmem.resources.sinks import check_sink
from xlogmem.resources.statistics import StatisticsResourceAdaptor

__all__ = ["HasRuntime", "Options", "RuntimeOptions", "options_in"]

VARIABLE = "XLOGMEM_OPTIONS"
SHARE = re.compile(r"\d*\.\d+|\d+\.")
SWITCHES = ("pool_allocator", "statistics", "guard")


class Options(TypedDict, total=False):
    """Keywords of `RuntimeOptions.given`."""

    policy: str | None
    pool_allocator: bool
    initial_pool_size: int | str | float | None
    maximum_pool_size: int | str | float | None
    limit: int | str | float | None
    statistics: bool
    log: Any | None
    guard: bool


class HasRuntime(RuntimeError):
    """A device has a runtime already, other than the one wanted.  The arguments are its description, and advice for a
    program that calls `enable` itself."""

    def __str__(self) -> str:
        return ". ".join(self.args)


def is_wanted(value: Any) -> bool:
    """True if an option is given: None and False want nothing, and 0 is a number of bytes."""
    return value is not None and value is not False


@dataclass(frozen=True)
class RuntimeOptions:
    """Options that make a runtime.  None and False want nothing."""

    pool_sizes: tuple[int | str | float | None, int | str | float | None] | None = None
    limit: int | str | float | None = None
    statistics: bool = False
    log: Any | None = None
    guard: bool = False
    policy: str | None = None
    several: bool = field(default=False, compare=False)         # devices: each has a file of its own

    @classmethod
    def given(cls, *, pool_allocator: bool = False, initial_pool_size: int | str | float | None = None,
              maximum_pool_size: int | str | float | None = None, limit: int | str | float | None = None,
              statistics: bool = False, log: Any | None = None, guard: bool = False,
              policy: str | None = None) -> RuntimeOptions:
        """The options with these keywords; see `xlogmem.enable`."""
        for name, value in zip(SWITCHES, (pool_allocator, statistics, guard), strict=True):
            if value not in (True, False, None):        # a text such as "no" would count as True
                raise TypeError(f"{name} must be True or False, got {value!r}")
        sizes = initial_pool_size, maximum_pool_size
        if not pool_allocator and sizes != (None, None):
            raise ValueError("initial_pool_size and maximum_pool_size are for pool_allocator=True")
        return cls(sizes if pool_allocator else None, limit, statistics, log, guard, policy)

    def check(self, device: int = 0) -> None:
        """Raise if an option is none; `device` is for the name of its log.  Calls no driver."""
        if self.policy is not None and self.policy not in POLICIES:
            raise ValueError(f"policy {self.policy!r} is unknown; choose one of {', '.join(POLICIES)}")
        self.parsed_limit(None)
        for name, size in zip(("initial_pool_size", "maximum_pool_size"), self.pool_sizes or (), strict=False):
            if size is not None:
                parse_size(name, size)
        if self.log is not None:
            check_sink(self.sink(device))

    def joined(self, wanted: RuntimeOptions) -> RuntimeOptions:
        """These options, and further ones that are wanted."""
        more = {one.name: value for one in fields(self) if is_wanted(value := getattr(wanted, one.name))}
        return replace(self, **more)

    def for_devices(self, count: int) -> RuntimeOptions:
        """The same, for one of so many devices."""
        return replace(self, several=count > 1)

    # ------------------------------------------------------------------------------------------ of a runtime
    def below(self, resource: DeviceMemoryResource) -> DeviceMemoryResource:
        """The resource with all layers but those of `above`."""
        if self.pool_sizes is not None:
            resource = PoolMemoryResource(resource, *self.pool_sizes)
        if self.guard:
            resource = GuardResourceAdaptor(resource)
        if self.statistics:
            resource = StatisticsResourceAdaptor(resource)
        return resource

    def above(self, resource: DeviceMemoryResource, device: int) -> DeviceMemoryResource:
        """The resource with its log, which empties a file, and its budget.

        The budget is the outermost: requests that it refuses are neither counted nor logged below.
        """
        if self.log is not None:
            resource = LoggingResourceAdaptor(resource, self.sink(device))
        if self.limit is not None:
            resource = LimitingResourceAdaptor(resource, self.limit)
        return resource

    def sink(self, device: int) -> Any:
        if not self.several or not isinstance(self.log, str | os.PathLike):
            return self.log
        path = Path(self.log)
        return path.with_name(f"{path.stem}.dev{device}{path.suffix}")

    # ------------------------------------------------------------------------------------------ of one that exists
    def refuse_others(self, device: int, wanted: RuntimeOptions, whose: str, call: str) -> None:
        """Refuse options that differ from these, which an existing runtime keeps.  The message names `whose` runtime it
        is, and the `call` that sets options."""
        for what in self._differences(device, wanted):
            raise HasRuntime(f"{whose} has a runtime of xlogmem's already, which keeps what it was made with: it "
                             f"cannot get another {what}", f"Pass it to the first call of {call}")

    def refuse_others_than(self, wanted: RuntimeOptions) -> None:
        """Refuse options that differ from these, of runtimes not made yet: options left open may be chosen."""
        closed: dict[str, Any] = {one.name: one.default for one in fields(self)
                                  if not is_wanted(getattr(self, one.name))}
        for what in self._differences(None, replace(wanted, **closed)):
            raise HasRuntime(f"xlogmem.enable() was called with another {what} before, for all libraries",
                             "Leave it out, or call xlogmem.disable() first")

    def _differences(self, device: int | None, wanted: RuntimeOptions) -> Iterator[str]:
        """The names of options that differ; None and False want nothing."""
        own_sizes, sizes = (self.pool_sizes or (None, None)), (wanted.pool_sizes or (None, None))
        if wanted.pool_sizes is not None and (self.pool_sizes is None or any(
                size is not None and _parsed_size(size) != _parsed_size(own)
                for own, size in zip(own_sizes, sizes, strict=True))):
            yield "pool_allocator and its sizes"
        if wanted.limit is not None and wanted.parsed_limit(device) != self.parsed_limit(device):
            yield "limit"
        if wanted.log is not None and _parsed_log(wanted.log) != _parsed_log(self.log):
            yield "log"
        if wanted.policy is not None and wanted.policy != self.policy:
            yield "policy"
        yield from (name for name in ("statistics", "guard") if getattr(wanted, name) and not getattr(self, name))

    def parsed_limit(self, device: int | None) -> int | None:
        """In bytes; without a device only comparable."""
        if self.limit is None:
            return None
        return parse_bytes("limit", self.limit, lambda: 1 << 62 if device is None else describe_device(device)[2])


def options_in(text: str) -> RuntimeOptions:
    """The options of the environment: ``"limit=8GiB,statistics"``.

    Raises
    ------
    ValueError
        An option is unknown, or its value is none.
    """
    names = list(Options.__annotations__)
    given: dict[str, Any] = {}
    for part in filter(None, map(str.strip, text.split(","))):
        name, _, value = map(str.strip, part.partition("="))
        if name not in names:
            near = nearest(name, names)
            raise ValueError(f"{VARIABLE}: there is no option {name!r}; "
                             + (f"did you mean {near}?" if near else f"they are {', '.join(names)}"))
        if name in SWITCHES:
            if value.lower() not in ("", "0", "1", "true", "false"):
                raise ValueError(f"{VARIABLE}: {name} is a switch: write {name}, or {name}=0, and not {part!r}")
            given[name] = value.lower() not in ("0", "false")
        elif not value:
            raise ValueError(f"{VARIABLE}: {name} needs a value: {name}=…")
        else:
            given[name] = int(value) if value.isdecimal() else float(value) if SHARE.fullmatch(value) else value
    try:
        options = RuntimeOptions.given(**given)
        options.check()
    except ValueError as error:
        raise ValueError(f"{VARIABLE}: {error}") from None
    return options


def _parsed_size(size: Any) -> int | None:
    return None if size is None else parse_size("the size of a pool", size)


def _parsed_log(log: Any) -> Any:
    """Two names of a file are one."""
    return os.path.abspath(log) if isinstance(log, str | os.PathLike) else log
