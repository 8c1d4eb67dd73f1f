from typing import Self

from typing_extensions import disjoint_base

from xlogmem._driver import Context
from xlogmem.streams import Stream

__all__ = ["DeviceMemoryResource"]

@disjoint_base
class DeviceMemoryResource:
    def __new__(cls, *args: object, **kwargs: object) -> Self: ...  # the subclasses look at them
    @property
    def context(self) -> Context | None: ...
    @property
    def device_ordinal(self) -> int | None: ...
    def allocate(self, nbytes: int, stream: Stream) -> int: ...
    def deallocate(self, ptr: int, nbytes: int, stream: Stream) -> None: ...
