from typing import Any

from typing_extensions import disjoint_base

from xlogmem._driver import Context

__all__ = ["DeviceMemoryResource"]

@disjoint_base
class DeviceMemoryResource:
    order: str | None  # "stream" or "host"; a subclass in Python declares it

    def __init__(self, device_id: int = 0) -> None: ...
    @property
    def context(self) -> Context | None: ...
    @property
    def device_id(self) -> int | None: ...
    @property
    def is_host_accessible(self) -> bool: ...  # a subclass in Python declares it
    @property
    def is_device_accessible(self) -> bool: ...
    @property
    def is_managed(self) -> bool: ...
    # The stream: any stream object (see `streams._StreamLike`); methods of subclasses get an int from the runtime.
    def allocate(self, nbytes: Any, stream: Any) -> int: ...
    def deallocate(self, ptr: int, nbytes: Any, stream: Any) -> None: ...
