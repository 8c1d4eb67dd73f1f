from typing import Any

from typing_extensions import disjoint_base

from xlogmem._driver import Context

__all__ = ["DeviceMemoryResource"]

@disjoint_base
class DeviceMemoryResource:
    order: str | None  # "stream" or "host": a subclass in Python says what it promises

    def __init__(self, ordinal: int = 0) -> None: ...
    @property
    def context(self) -> Context | None: ...
    @property
    def device_ordinal(self) -> int | None: ...
    # The stream: whatever people call one (see `streams._StreamLike`); the runtime gives methods of subclasses an int.
    def allocate(self, nbytes: int, stream: Any) -> int: ...
    def deallocate(self, ptr: int, nbytes: int, stream: Any) -> None: ...
