"""Streams of other libraries: the object that keeps a stream alive.  Imports none of these libraries.

Arrays do not say on which stream the work on them was enqueued, and streams are named by bare handles.  As long as the
object behind a handle is held, its stream is not destroyed.
"""
from __future__ import annotations

import sys
from typing import Any

__all__ = ["LIBRARIES", "find_owner", "library_of", "owns_stream"]

LIBRARIES = ("cupy", "torch", "numba")     # whose current stream is known


def library_of(what: Any) -> str:
    """The name of the library that an object belongs to."""
    return str(type(what).__module__).partition(".")[0]


def owns_stream(stream: Any) -> bool:
    """True if the object keeps its stream alive.  CuPy's and PyTorch's ``ExternalStream`` and the stream that Numba's
    ``external_stream`` gives only name a stream, as an int does."""
    return (getattr(stream, "external", None) is not True
            and all(kind.__name__ != "ExternalStream" for kind in type(stream).__mro__))


def find_owner(handle: int, device_id: int) -> Any:
    """The object that keeps a stream alive, if the stream is the current stream of a library in use; else None."""
    cupy = sys.modules.get("cupy")
    if cupy is not None and hasattr(cupy, "cuda"):
        stream = cupy.cuda.get_current_stream()
        if stream.ptr == handle and owns_stream(stream):
            return stream
    torch = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "cuda") and torch.cuda.is_initialized():
        stream = torch.cuda.current_stream(device_id)
        if stream.cuda_stream == handle and owns_stream(stream):
            return stream
    bridge = sys.modules.get("jax._src.xla_bridge")     # querying JAX for its devices would start it
    if bridge is not None and bridge.backends_are_initialized():
        for device in sys.modules["jax"].local_devices():
            if (device.platform == "gpu" and device.local_hardware_id == device_id
                    and device.get_stream_for_external_ready_events() == handle):
                return _OwnedStream(handle, device)
    return None


class _OwnedStream:
    """A stream that lives as long as its owner."""

    def __init__(self, handle: int, owner: Any) -> None:
        self.handle = handle
        self.owner = owner

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.handle
