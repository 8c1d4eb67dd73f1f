from xlogmem.resources.base import DeviceMemoryResource

__all__ = ["AsyncMemoryResource"]

class AsyncMemoryResource(DeviceMemoryResource):
    def __init__(self, ordinal: int = 0, *, release_threshold: int | None = None) -> None: ...
