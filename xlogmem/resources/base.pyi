from typing import Self

from xlogmem._driver import Context
from xlogmem.streams import Stream

__all__ = ["DeviceMemoryResource"]

class DeviceMemoryResource:
    def __new__(cls, *args: object, **kwargs: object) -> Self: ...  # as built: what to check is the subclasses' business
    @property
    def context(self) -> Context | None: ...
    @property
    def device_ordinal(self) -> int | None: ...
    def allocate(self, nbytes: int, stream: Stream) -> int: ...
    def deallocate(self, ptr: int, nbytes: int, stream: Stream) -> None: ...
