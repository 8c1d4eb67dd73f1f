"""CuPy: an allocator whose memory is a block, in order of CuPy's current stream; another for page-locked memory."""
from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from typing import Any

import cupy
from cupy.cuda import memory

from xlogmem._base.units import bytes_in_words
from xlogmem._driver import active_devices
from xlogmem.allocators._captures import Captures, Dropped
from xlogmem.allocators._opaque import OpaqueStreams
from xlogmem.allocators._simulated import find_simulated_driver
from xlogmem.blocks import DeviceBlock
from xlogmem.launch import captures_are_open
from xlogmem.runtime import DeviceRuntime, get_runtime
from xlogmem.streams import host

__all__ = ["allocate", "allocate_pinned", "disable", "enable", "enable_pinned", "has_pinned", "is_on_rmm", "refuse"]

LEGACY = getattr(cupy.cuda.Stream, "null", None)         # the stream of programs that name none
OUT_OF_MEMORY = 2                                       # the status: cudaErrorMemoryAllocation

_streams = OpaqueStreams()
_former: Callable[[int], Any] | None = None             # what `enable` has replaced
_pinned = False                                         # whether `enable_pinned` has set an allocator


class BlockMemory(memory.BaseMemory):
    """The memory of arrays: a block, which is freed in order when it is dropped with this."""

    __slots__ = ("block",)

    block: DeviceBlock


_dropped: list[int] = []                                # bytes of each array that is dropped during a capture


def _begin_counting() -> None:
    def count(array_memory: BlockMemory) -> None:
        if not captures_are_open():                     # else the graph holds it
            _dropped.append(array_memory.size)

    BlockMemory.__del__ = count


def _end_counting() -> Dropped:
    del BlockMemory.__del__
    dropped = Dropped(len(_dropped), sum(_dropped))
    _dropped.clear()
    return dropped


_captures = Captures("CuPy array", _begin_counting, _end_counting)


def allocate(nbytes: int) -> memory.MemoryPointer:
    """CuPy's allocator: a block of the current device, for work on the current stream.

    Raises
    ------
    cupy.cuda.memory.OutOfMemoryError
        There is no memory, or the budget admits no more, also after a garbage collection.  The cause says more.
    StreamMisuseError
        The current stream captures a graph that xlogmem does not know (see `capture` and `capturing`): allocate before.
    """
    # Each temporary of a program comes here: what need not be called is not.
    made = BlockMemory()
    made.device_id = device = cupy.cuda.device.get_device_id()
    made.size = nbytes
    if nbytes:
        runtime = get_runtime(device)
        current = cupy.cuda.get_current_stream()
        stream = _streams.find(runtime, current, current is LEGACY)
        try:
            block = runtime.allocate(nbytes, stream, tag=runtime._tag_here("CuPy"))
        except MemoryError:
            block = _allocate_after_collection(runtime, nbytes, stream)
        made.block = block
        made.ptr = block.ptr
    return memory.MemoryPointer(made, 0)


def _allocate_after_collection(runtime: DeviceRuntime, nbytes: int, stream: object) -> DeviceBlock:
    return _after_collection(
        lambda: runtime.allocate(nbytes, stream, tag=runtime._tag_here("CuPy")),
        lambda error: memory.OutOfMemoryError(nbytes, runtime.live_bytes, getattr(error, "limit", 0)))


class HostMemory:
    """Page-locked memory: a block for the host, which is freed when it is dropped with this.

    It is not a `PinnedMemory` of CuPy's, whose finalizer calls the driver.
    """

    def __init__(self, block: DeviceBlock | None, nbytes: int) -> None:
        self.block = block
        self.ptr = block.ptr if block is not None else 0
        self.size = nbytes

    def __int__(self) -> int:
        return self.ptr


def allocate_pinned(nbytes: int) -> cupy.cuda.PinnedMemoryPointer:
    """CuPy's allocator of page-locked memory: a block of the current device's runtime, which the host may use at once.

    Raises
    ------
    cupy.cuda.runtime.CUDARuntimeError
        There is no memory, also after a garbage collection.  The cause says more.
    """
    block = None
    if nbytes:
        runtime = get_runtime(cupy.cuda.device.get_device_id())
        try:
            block = _allocate_for_host(runtime, nbytes)
        except MemoryError:
            block = _after_collection(lambda: _allocate_for_host(runtime, nbytes),
                                      lambda _: cupy.cuda.runtime.CUDARuntimeError(OUT_OF_MEMORY))
    return cupy.cuda.PinnedMemoryPointer(HostMemory(block, nbytes), 0)


def _allocate_for_host(runtime: DeviceRuntime, nbytes: int) -> DeviceBlock:
    return runtime.allocate(nbytes, host, tag=runtime._tag_here("CuPy"), resource=runtime._page_locked_pool())


def _after_collection(allocate: Callable[[], DeviceBlock],
                      refusal: Callable[[MemoryError], Exception]) -> DeviceBlock:
    """As CuPy's own pool does: arrays may be in cycles of objects."""
    gc.collect()
    try:
        return allocate()
    except MemoryError as error:
        raise refusal(error) from error


# ---------------------------------------------------------------------------------------------- see Neighbour
def is_on_rmm() -> bool:
    rmm = sys.modules.get("rmm.allocators.cupy")
    return rmm is not None and cupy.cuda.get_allocator() is rmm.rmm_cupy_allocator


def refuse() -> None:
    find_simulated_driver("CuPy", cupy.cuda.runtime.getDeviceCount)
    _refuse_inside_context()
    pool = getattr(cupy.cuda.get_allocator(), "__self__", None)
    if isinstance(pool, memory.MemoryPool) and (nbytes := _used_bytes(pool)):
        raise RuntimeError(f"CuPy has {bytes_in_words(nbytes)} in use from its own pool, which xlogmem does not "
                           "track: call xlogmem.enable('cupy') before anything is allocated, or delete these arrays")


def _used_bytes(pool: memory.MemoryPool) -> int:
    nbytes = 0
    for device in active_devices():                     # a look at another one would make a context there
        with cupy.cuda.Device(device):
            nbytes += pool.used_bytes()
    return nbytes


def _refuse_inside_context() -> None:
    if memory._get_thread_local_allocator() is not None:
        raise RuntimeError("inside of cupy.cuda.using_allocator() CuPy does not change its allocator: call this "
                           "outside of it")


def enable() -> None:
    global _former
    current = cupy.cuda.get_allocator()
    if current is not allocate:
        _former = current                               # first: after an interrupt the next call goes on from there
        cupy.cuda.set_allocator(allocate)
    for name in ("Stream", "ExternalStream"):
        _captures.watch(getattr(cupy.cuda, name, object), "begin_capture", "end_capture")


def enable_pinned() -> None:
    """Replace the allocator of page-locked memory.  CuPy does not say which one it had."""
    global _pinned
    _pinned = True                                      # first, as above
    cupy.cuda.set_pinned_memory_allocator(allocate_pinned)


def disable() -> None:
    global _pinned
    _refuse_inside_context()
    if cupy.cuda.get_allocator() is allocate:
        cupy.cuda.set_allocator(_former)
    if _pinned and _is_pinned_ours():
        cupy.cuda.set_pinned_memory_allocator(cupy.get_default_pinned_memory_pool().malloc)
    _pinned = False
    _captures.unwatch()


def has_pinned() -> bool:
    """True between `enable_pinned` and `disable`."""
    return _pinned


def _is_pinned_ours() -> bool:
    """CuPy does not say which allocator it has, but each allocator marks its memory, also where it has no bytes."""
    try:
        return isinstance(cupy.cuda.alloc_pinned_memory(0).mem, HostMemory)
    except Exception:
        return False                                    # ours raises nothing without bytes
