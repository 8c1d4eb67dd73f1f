"""PyTorch's own pool: reports each allocation and free, piece by piece (torch_pool/pieces.hpp)."""
from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

from xlogmem._base.units import counted
from xlogmem.check.neighbours import _torch_pool, pieces
from xlogmem.check.neighbours.noted import note, note_at_end

__all__ = ["prepare"]

PRIVATE_POOLS = {"_cuda_beginAllocateToPool": 1, "_cuda_beginAllocateCurrentThreadToPool": 1,
                 "_cuda_beginAllocateCurrentStreamToPool": 1, "_cuda_endAllocateToPool": -1}


def prepare(torch: ModuleType) -> None:
    """Report the pieces of PyTorch's own pool.  Another backend has none: the driver shows each allocation."""
    backend = getattr(torch._C, "_cuda_getAllocatorBackend", None)
    if backend is None or backend() != "native":        # built without CUDA, or cudaMallocAsync
        return
    if not _torch_pool.watch_pieces(pieces.address()):
        note(f"of PyTorch's own pool the pieces are not known: its release {torch.__version__} does not show them")
        return
    note_at_end(unknown_pieces)
    core, memory, graph = torch._C, torch.cuda.memory, torch.cuda.graphs.CUDAGraph
    core._cuda_cudaCachingAllocator_raw_alloc = on_its_stream(core._cuda_cudaCachingAllocator_raw_alloc)
    # The calls of a MemPool come by way of the one module, those of torch.compile's graphs by way of the other.
    for module, of_graph in ((core, True), (memory, False)):
        for name, change in PRIVATE_POOLS.items():
            if hasattr(module, name):
                setattr(module, name, deferring(getattr(module, name), change, of_graph))
    graph.capture_begin = deferring(graph.capture_begin, 1, of_graph=True)
    graph.capture_end = deferring(graph.capture_end, -1, of_graph=True)


def unknown_pieces() -> str:
    count = _torch_pool.unknown()
    followed = counted(count, "piece of PyTorch's own pool was", "pieces of PyTorch's own pool were")
    return f"host memory was short: {followed} not followed" if count else ""


def on_its_stream(allocate: Callable[[int, int], Any]) -> Callable[[int, int], Any]:
    """Wrap an allocation that names its stream."""
    @functools.wraps(allocate)
    def call(size: int, stream: int) -> Any:
        _torch_pool.expect_stream(stream)
        return allocate(size, stream)

    return call


def deferring(function: Callable[..., Any], change: int, of_graph: bool) -> Callable[..., Any]:
    """Wrap a function that begins or ends the use of a private pool."""
    @functools.wraps(function)
    def call(*arguments: Any, **keywords: Any) -> Any:
        if change > 0:
            _torch_pool.defer(change, of_graph)
        try:
            return function(*arguments, **keywords)
        except BaseException:
            if change > 0:                              # it did not begin
                _torch_pool.defer(-change, of_graph)
            raise
        finally:
            if change < 0:                              # a capture that failed has ended, too
                _torch_pool.defer(change, of_graph)

    return call
