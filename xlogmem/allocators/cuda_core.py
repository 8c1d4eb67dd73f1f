"""cuda.core: a memory resource whose buffers are blocks, freed on the stream that a buffer has then."""
from __future__ import annotations

import gc
import weakref
from typing import Any

from cuda.core import Buffer, Device, MemoryResource

from xlogmem._base.units import bytes_in_words
from xlogmem.allocators._opaque import OpaqueStreams
from xlogmem.blocks import DeviceBlock
from xlogmem.resources import DeviceMemoryResource
from xlogmem.runtime import get_runtime

__all__ = ["BlockMemoryResource", "disable", "enable", "is_on_rmm", "refuse"]

_streams = OpaqueStreams()
_replaced: list[tuple[weakref.ref[Device], MemoryResource]] = []    # resources that `enable` replaced, in any thread


NOT_SHARED = ("xlogmem's memory is not shared between processes: it is not made for CUDA IPC. Send what is in it "
              "through the host, or allocate from cuda.core's DeviceMemoryResource with IPC enabled, and adopt() that "
              "memory in both processes")


class BlockMemoryResource(MemoryResource):
    """Memory from the process's own runtime.

    Parameters
    ----------
    device_id : int
        The device.
    resource : DeviceMemoryResource of xlogmem, optional
        The source of the memory, page-locked or managed for example: by default the runtime's own resource.

    Notes
    -----
    Thread-safe.  Its buffers are not shared with other processes: cuda.core refuses their `ipc_descriptor`, and to
    pickle them.

    Examples
    --------
    >>> pinned = BlockMemoryResource(0, xlogmem.PoolMemoryResource(xlogmem.PinnedMemoryResource()))  # doctest: +SKIP
    >>> pinned.allocate(4096, stream=stream).is_host_accessible                                     # doctest: +SKIP
    True
    """

    def __init__(self, device_id: int, resource: DeviceMemoryResource | None = None) -> None:
        if resource is not None and not isinstance(resource, DeviceMemoryResource):
            raise TypeError(f"resource must be a DeviceMemoryResource of xlogmem, not {type(resource).__name__}")
        self._device_id = device_id
        self._resource = resource
        self._blocks: dict[int, DeviceBlock] = {}       # by address, which identifies a freed buffer

    def allocate(self, size: int, *, stream: Any = None) -> Buffer:
        """A buffer for work on a stream, uninitialised.

        Raises
        ------
        TypeError
            This is not a stream.
        OutOfDeviceMemoryError, OutOfBudgetError
            There is no memory, or the budget admits no more.
        StreamMisuseError
            The stream is on another device, or is capturing a graph: allocate before.
        """
        if not hasattr(stream, "__cuda_stream__"):
            raise TypeError(f"stream= has to be a stream of cuda.core, got {stream!r}: for the default stream, pass "
                            "device.default_stream")
        if not size:
            return Buffer.from_handle(0, 0, self, stream=stream)
        runtime = get_runtime(self._device_id)
        block = runtime.allocate(size, _streams.find(runtime, stream), tag=runtime._tag_here("cuda.core"),
                                 resource=self._resource)
        buffer = Buffer.from_handle(block.ptr, size, self, stream=stream)
        self._blocks[block.ptr] = block
        return buffer

    def deallocate(self, ptr: int, size: int, *, stream: Any = None) -> None:
        """Free a buffer on a stream, after every `use` of it.

        If the stream cannot be used, the memory is freed on that of the allocation; the error is raised all the same.
        """
        block = self._blocks.pop(int(ptr), None)
        if block is not None:
            block.free(stream)

    @property
    def _memory(self) -> DeviceMemoryResource:
        return get_runtime(self._device_id).resource if self._resource is None else self._resource

    @property
    def is_device_accessible(self) -> bool:
        return self._memory.is_device_accessible

    @property
    def is_host_accessible(self) -> bool:
        return self._memory.is_host_accessible

    @property
    def is_managed(self) -> bool:
        return self._memory.is_managed

    @property
    def device_id(self) -> int:
        return self._device_id

    @property
    def is_ipc_enabled(self) -> bool:
        return False

    @property
    def is_mapped(self) -> bool:
        return False

    @property
    def allocation_handle(self) -> Any:
        """Raises RuntimeError: there is none, as of cuda.core's own resources without IPC."""
        raise RuntimeError(NOT_SHARED)

    def __reduce__(self) -> Any:
        raise TypeError(f"a {type(self).__name__} is not copied or pickled: {NOT_SHARED}")

    def __repr__(self) -> str:
        return f"<{type(self).__name__} device={self._device_id}>"


# ---------------------------------------------------------------------------------------------- see Neighbour
def is_on_rmm() -> bool:
    return False


def refuse() -> None:
    resources = [device.memory_resource for device in Device.get_all_devices()]
    theirs = {id(resource) for resource in resources if not isinstance(resource, BlockMemoryResource)}
    nbytes = sum(thing.size for thing in gc.get_objects() if issubclass(type(thing), Buffer)
                 and id(thing.memory_resource) in theirs) if theirs else 0
    if nbytes:
        raise RuntimeError(f"cuda.core has {bytes_in_words(nbytes)} in use from the resources of its devices, which "
                           "xlogmem does not track: call xlogmem.enable('cuda.core') before anything is allocated, or "
                           "close these buffers")


def enable() -> None:
    _replaced[:] = [entry for entry in _replaced if entry[0]() is not None]         # of threads that have ended
    for device in Device.get_all_devices():
        current = device.memory_resource
        if not isinstance(current, BlockMemoryResource):
            device.memory_resource = BlockMemoryResource(device.device_id)
            _replaced.append((weakref.ref(device), current))


def disable() -> None:
    while _replaced:
        reference, former = _replaced.pop()
        device = reference()
        if device is not None and isinstance(device.memory_resource, BlockMemoryResource):
            device.memory_resource = former
