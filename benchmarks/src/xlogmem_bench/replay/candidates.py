"""The resources that a log can be replayed on, as C++ code calls them."""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import xlogmem
from xlogmem._driver import is_simulated
from xlogmem_bench import _loops
from xlogmem_bench.programs import Addresses, Fits, fits_ours, fits_rmms, rmm_pool, runtime_over

__all__ = ["RESOURCES", "Candidate", "NotHere"]


class NotHere(RuntimeError):
    """A resource cannot be used on this machine."""


@dataclass(frozen=True)
class Candidate:
    """An allocator, the handles of its streams, and what its memory looks like.

    `look` gives the bytes that it holds and the share of its free bytes outside of the largest place, each None where
    it does not say; `held` keeps alive what the handles belong to.
    """

    allocator: _loops.Allocator
    handles: list[int]
    look: Callable[[], tuple[int | None, float | None]]
    held: object


@dataclass(frozen=True)
class Resource:
    """Factory of a candidate, for so many streams and a peak of so many bytes in use; `fits`: it has a maximum."""

    make: Callable[[int, int], Candidate]
    fits: Fits | None = None


def nothing() -> tuple[None, None]:
    return None, None


def over_runtime(resource: xlogmem.DeviceMemoryResource, streams: int) -> Candidate:
    allocator, acquired = runtime_over(resource, streams)

    def look() -> tuple[int | None, float | None]:
        if not isinstance(resource, xlogmem.PoolMemoryResource):
            return nothing()
        figures = resource.statistics()
        return figures["pool_size"], figures["fragmentation"]

    return Candidate(allocator, [stream.handle for stream in acquired], look, acquired)


def our_pool(streams: int, peak: int) -> Candidate:
    """On the simulated driver without memory behind it: a log may need more than the machine has."""
    return over_runtime(xlogmem.PoolMemoryResource(Addresses() if is_simulated() else None), streams)


def of_rmm(make: Callable[[Any, int], Any], simulated: Callable[[], Any] | None = None
           ) -> Callable[[int, int], Candidate]:
    def candidate(streams: int, peak: int) -> Candidate:
        try:
            import rmm.mr

            from xlogmem.rmm._binding import upstream_of
        except ImportError as error:
            raise NotHere(f'this needs RMM, which cannot be imported ({error}): pip install "rmm-cu12==26.10.*"') \
                from error
        if is_simulated() and simulated is None:
            raise NotHere("this needs a GPU: RMM's CUDA runtime does not start on the simulated driver")
        mr = simulated() if simulated is not None and is_simulated() else make(rmm.mr, peak)
        pool = xlogmem.StreamPool(max_streams=streams + 1)
        acquired = [pool.acquire() for _ in range(streams)]
        held = getattr(mr, "pool_size", None)
        return Candidate(_loops.Allocator.of(upstream_of(mr)), [stream.handle for stream in acquired],
                         lambda: (held() if held else None, None), (mr, acquired))

    return candidate


RESOURCES: dict[str, Resource] = {
    "pool": Resource(our_pool, fits_ours),
    "async": Resource(lambda streams, peak: over_runtime(xlogmem.AsyncMemoryResource(), streams)),
    "direct": Resource(lambda streams, peak: over_runtime(xlogmem.DirectMemoryResource(), streams)),
    "rmm-pool": Resource(of_rmm(lambda mr, peak: mr.PoolMemoryResource(mr.CudaMemoryResource(), 0),
                                lambda: rmm_pool(None, False)), fits_rmms),
    "rmm-arena": Resource(of_rmm(lambda mr, peak: mr.ArenaMemoryResource(mr.CudaMemoryResource()))),
    "rmm-async": Resource(of_rmm(lambda mr, peak: mr.CudaAsyncMemoryResource())),
}
