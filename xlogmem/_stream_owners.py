"""Streams of other libraries: on which one a library works, and which object keeps one alive.  Imports none of them.

Arrays come without the stream that the work on them was enqueued on, and streams are named by bare handles.  As long as
the object behind a handle is held, its stream is not destroyed.
"""
from __future__ import annotations

import sys
from typing import Any

__all__ = ["find_owner", "find_producer_stream", "owns_stream"]

LEGACY = 1                                  # CU_STREAM_LEGACY


def find_producer_stream(array: Any) -> Any:
    """The stream, as its library's object, on which the library goes on working with an array; None if not known."""
    library = str(type(array).__module__).partition(".")[0]
    if library == "torch":
        return sys.modules["torch"].cuda.current_stream(array.device)
    if library == "cupy":
        return sys.modules["cupy"].cuda.get_current_stream()
    if library == "numba":
        return getattr(array, "stream", 0) or LEGACY    # its interface says None there, as if nothing were enqueued
    return None


def owns_stream(stream: Any) -> bool:
    """Whether the object keeps its stream alive.  CuPy's and PyTorch's ``ExternalStream`` and what Numba's
    ``external_stream`` gives only name one, as an int does."""
    return (getattr(stream, "external", None) is not True
            and all(kind.__name__ != "ExternalStream" for kind in type(stream).__mro__))


def find_owner(handle: int, ordinal: int) -> Any:
    """The object that keeps a stream alive, if the stream is the current one of a library that is in use; else None."""
    cupy = sys.modules.get("cupy")
    if cupy is not None and hasattr(cupy, "cuda"):
        stream = cupy.cuda.get_current_stream()
        if stream.ptr == handle and owns_stream(stream):
            return stream
    torch = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "cuda") and torch.cuda.is_initialized():
        stream = torch.cuda.current_stream(ordinal)
        if stream.cuda_stream == handle and owns_stream(stream):
            return stream
    bridge = sys.modules.get("jax._src.xla_bridge")     # querying JAX for its devices would start it
    if bridge is not None and bridge.backends_are_initialized():
        for device in sys.modules["jax"].local_devices():
            if (device.platform == "gpu" and device.local_hardware_id == ordinal
                    and device.get_stream_for_external_ready_events() == handle):
                return _OwnedStream(handle, device)
    return None


class _OwnedStream:
    """A stream that lives as long as the object beside it."""

    def __init__(self, handle: int, owner: Any) -> None:
        self.handle = handle
        self.owner = owner

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.handle
