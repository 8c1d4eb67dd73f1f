import logging
import os
from collections.abc import Callable
from types import TracebackType
from typing import Any, Literal, Protocol, Self

from typing_extensions import disjoint_base

from xlogmem.resources.adaptor import ResourceAdaptor
from xlogmem.resources.base import DeviceMemoryResource

__all__ = ["LoggingResourceAdaptor"]

class _TextFile(Protocol):
    def write(self, text: str, /) -> object: ...

@disjoint_base
class LoggingResourceAdaptor(ResourceAdaptor):
    def __init__(self, upstream: DeviceMemoryResource,
                 sink: str | os.PathLike[str] | _TextFile | Callable[[Any], object] | logging.Logger, *,
                 format: Literal["rmm", "json"] | None = None, capacity: int = 65_536) -> None: ...
    @property
    def dropped_records(self) -> int: ...
    def flush(self, timeout: float | None = None) -> int: ...
    def close(self, timeout: float | None = None) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, exception: BaseException | None, traceback: TracebackType | None
    ) -> None: ...
