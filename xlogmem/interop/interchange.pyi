from typing import Any, SupportsIndex

from xlogmem.interop.buffers import Buffer
from xlogmem.interop.devices import DeviceState
from xlogmem.streams import _StreamLike

__all__ = ["from_arrow", "from_cuda_array", "from_dlpack"]

def from_dlpack(
    array: Any,
    /,
    *,
    device: SupportsIndex | tuple[int, int] | None = None,
    copy: bool | None = None,
    stream: _StreamLike | None = None,
    producer: _StreamLike | None = None,
    state: DeviceState | None = None,
) -> Buffer: ...
def from_cuda_array(
    array: Any,
    /,
    *,
    stream: _StreamLike | None = None,
    producer: _StreamLike | None = None,
    state: DeviceState | None = None,
) -> Buffer: ...
def from_arrow(array: Any, /, *, stream: _StreamLike | None = None, state: DeviceState | None = None) -> Buffer: ...
