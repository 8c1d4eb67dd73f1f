"""Streams of other libraries: the current stream of a library, and the object that keeps a stream alive.  Imports none
of these libraries.

Arrays do not say on which stream the work on them was enqueued, and streams are named by bare handles.  As long as the
object behind a handle is held, its stream is not destroyed.
"""
from __future__ import annotations

import sys
from typing import Any

__all__ = ["find_current_streams", "find_owner", "find_producer_stream", "library_of", "owns_stream"]

LIBRARIES = ("cupy", "torch", "numba")     # whose current stream is known
LEGACY, PER_THREAD = 1, 2                   # CU_STREAM_LEGACY, CU_STREAM_PER_THREAD


def library_of(what: Any) -> str:
    """The name of the library that an object belongs to."""
    return str(type(what).__module__).partition(".")[0]


def find_current_streams(things: list[Any], device_id: int) -> dict[str, Any]:
    """The current stream of each library that one of these things belongs to, by the library's name.  If none belongs
    to a known library, the current streams of CuPy and PyTorch, as far as these are in use.  A library that was not
    imported is not in use."""
    named = {library_of(thing): thing for thing in things if library_of(thing) in LIBRARIES}
    streams = {library: _current_stream(library, named.get(library), device_id)
               for library in (named or ("cupy", "torch")) if library in sys.modules}
    return {library: stream for library, stream in streams.items() if stream is not None}


def _current_stream(library: str, thing: Any, device_id: int) -> Any:
    """The current stream of a library, by its rules; `thing` is an object of the library, or None."""
    module = sys.modules[library]
    if library == "numba":
        return _default_stream_of_numba()
    if not hasattr(module, "cuda"):                     # its import is not complete
        return None
    if library == "cupy":
        return module.cuda.get_current_stream()
    if thing is not None:
        return module.cuda.current_stream(thing.device)
    return module.cuda.current_stream(device_id) if module.cuda.is_initialized() else None    # else the query starts it


def _default_stream_of_numba() -> int:
    """The default stream of Numba.  Numba has no current stream: work without a named stream goes to the default
    stream."""
    config = getattr(sys.modules.get("numba"), "config", None)
    return PER_THREAD if getattr(config, "CUDA_PER_THREAD_DEFAULT_STREAM", 0) else LEGACY


def find_producer_stream(array: Any) -> Any:
    """The stream on which a library goes on working with an array, as the library's object; None if it is not known."""
    library = library_of(array)
    if library not in LIBRARIES:
        return None
    own = getattr(array, "stream", 0) if library == "numba" else 0      # its interface says None there
    return own or _current_stream(library, array, 0)


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
