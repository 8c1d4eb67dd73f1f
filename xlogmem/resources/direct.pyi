from xlogmem.resources.base import DeviceMemoryResource

__all__ = ["DirectMemoryResource"]

class DirectMemoryResource(DeviceMemoryResource):
    def __init__(self, ordinal: int = 0, *, device_id: int | None = None) -> None: ...
