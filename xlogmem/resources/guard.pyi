from collections.abc import Callable
from typing import Any, Literal

from typing_extensions import disjoint_base

from xlogmem.resources.adaptor import ResourceAdaptor
from xlogmem.resources.base import DeviceMemoryResource
from xlogmem.resources.violations import GuardViolation

__all__ = ["GuardResourceAdaptor"]

@disjoint_base
class GuardResourceAdaptor(ResourceAdaptor):
    def __init__(self, upstream: DeviceMemoryResource, *, canary: int = 256,
                 quarantine_bytes: int | str | float = "64MiB", quarantine_age: int | None = None, poison: bool = True,
                 depth: int = 16,
                 on_violation: Literal["raise", "warn"] | Callable[[GuardViolation], Any] = "raise") -> None: ...
    @property
    def canary(self) -> int: ...
    @property
    def quarantined_bytes(self) -> int: ...
    @property
    def quarantined_blocks(self) -> int: ...
    def check(self, *, blocking: bool = True) -> list[GuardViolation]: ...
    def trim(self) -> int: ...
    def violations(self) -> list[GuardViolation]: ...
