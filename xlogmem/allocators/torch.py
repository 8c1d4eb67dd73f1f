"""PyTorch: its allocations and `record_stream` are calls of the C table, made by compiled functions without the GIL."""
from __future__ import annotations

import sys
from functools import cache
from typing import Any

import torch
from torch.cuda.memory import CUDAPluggableAllocator, change_current_allocator

from xlogmem.allocators import _pluggable  # after PyTorch
from xlogmem.allocators._captures import Captures, Dropped

__all__ = ["allocator", "disable", "enable", "is_on_rmm", "mem_pool", "refuse", "segment_allocator"]


def allocator() -> CUDAPluggableAllocator:
    """The allocator that `enable` sets in PyTorch: each tensor is a block of its device's own runtime.

    For `torch.cuda.memory.change_current_allocator`, in programs that call that themselves.

    Raises
    ------
    RuntimeError
        PyTorch was built without CUDA.
    """
    return _made("xlogmem_torch_allocate")


def segment_allocator() -> CUDAPluggableAllocator:
    """The same for the segments of a `torch.cuda.MemPool`.  Where an allocation fails PyTorch drops its cache,
    and requests the segment again before it raises.

    Raises
    ------
    RuntimeError
        As `allocator`.
    """
    return _made("xlogmem_torch_allocate_segment")


def mem_pool(**options: bool) -> torch.cuda.MemPool:
    """A pool of PyTorch's own allocator whose segments are blocks, for ``with torch.cuda.use_mem_pool(pool):``.

    PyTorch cuts tensors out of a segment, and caches freed ones, so `use` orders whole segments: never too little,
    at times too much.  `record_stream` is PyTorch's own.  The segments return to the runtime when the pool is dropped
    after its tensors; those of tensors that outlive the pool return in `torch.cuda.empty_cache`, once they are dropped.

    Parameters
    ----------
    **options
        What `torch.cuda.MemPool` takes besides the allocator, such as ``no_split=True``: a segment for each tensor.

    Raises
    ------
    RuntimeError
        As `allocator`; or PyTorch allocates from xlogmem anyway, after `xlogmem.enable`.

    Notes
    -----
    `torch.cuda.use_mem_pool` applies to the calling thread, and PyTorch refuses a pool that another thread uses just
    then.  Works with PyTorch's CUDA initialised or not: this initialises it.
    """
    if _is_enabled():
        raise RuntimeError("PyTorch has no pools with another allocator than its own, and needs none for xlogmem: "
                           "since xlogmem.enable('torch') every tensor is a block. Leave out use_mem_pool")
    return torch.cuda.MemPool(segment_allocator().allocator(), **options)


@cache
def _made(allocate: str) -> CUDAPluggableAllocator:
    if not hasattr(torch._C, "_cuda_customAllocator"):
        raise RuntimeError(f"PyTorch {torch.__version__} was built without CUDA")
    made = CUDAPluggableAllocator(_pluggable.__file__, allocate, "xlogmem_torch_free")
    made.allocator().set_record_stream_fn(_pluggable.RECORD_STREAM)
    return made


# ---------------------------------------------------------------------------------------------- see Neighbour
def is_on_rmm() -> bool:
    rmm = sys.modules.get("rmm.allocators.torch")
    mine = getattr(rmm, "rmm_torch_allocator", None)
    return mine is not None and _current() is mine.allocator()


def refuse() -> None:
    if _is_enabled():
        return
    if torch.cuda.is_initialized():
        raise RuntimeError("PyTorch has initialised CUDA, and does not change its allocator after that: call "
                           "xlogmem.enable('torch') before, or use a pool for a part of the program, "
                           "torch.cuda.use_mem_pool(xlogmem.allocators.torch.mem_pool())")
    allocator()


_captures = Captures("tensor", _pluggable.begin_counting, lambda: Dropped(*_pluggable.end_counting()))


def enable() -> None:
    if not _is_enabled():
        change_current_allocator(allocator())
    _captures.watch(torch.cuda.CUDAGraph, "capture_begin", "capture_end")


def disable() -> None:
    raise RuntimeError("PyTorch does not take its own allocator back. For a part of a program there is "
                       "torch.cuda.use_mem_pool(xlogmem.allocators.torch.mem_pool()) instead of enable('torch')")


def _current() -> Any:
    return torch._C._cuda_getAllocator()


def _is_enabled() -> bool:
    return _made.cache_info().currsize > 0 and _current() is allocator().allocator()
