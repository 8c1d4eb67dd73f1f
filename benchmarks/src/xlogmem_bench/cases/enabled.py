"""A pair as a program of CuPy, Numba, cuda.core or PyTorch makes it, by the library's own call: from the library's own
allocator, from RMM's, and from xlogmem's after `xlogmem.enable`."""
from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial

from xlogmem_bench.allocators import OURS, PEER, PYTHON
from xlogmem_bench.cases.model import GIB, Build, Candidate
from xlogmem_bench.neighbours import ALLOCATORS, NEIGHBOURS, NO_BYTES, OWN
from xlogmem_bench.workers import Worker, Workers
from xlogmem_bench.world import Failed, World

__all__ = ["through_enabled"]

NOTE_OF_NONE = "allocates nothing: what the library's own call takes"


def through_enabled(name: str, nbytes: int, streams: int = 1) -> Build:
    """Each candidate is a process of its own, and takes its turns there; the first is the library's own allocator."""
    neighbour = NEIGHBOURS[name]

    def build(world: World, stack: ExitStack, failed: Failed) -> Iterator[Candidate]:
        if name not in world.modules:
            return
        with_rmm = neighbour.known_to_rmm and "RMM" in world.modules
        chosen = [one for one in ALLOCATORS if with_rmm or not one.startswith("rmm")]
        workers = world.lasts(Workers).of(name, chosen, world.share(GIB))
        for allocator, worker in workers.items():
            try:
                worker.started()
            except RuntimeError as error:               # the other allocators go on
                failed(allocator, error)
            else:
                yield candidate(allocator, worker, (nbytes, streams), neighbour.note if allocator == OWN else "")
        if workers[OWN].is_started:
            yield candidate(NO_BYTES, workers[OWN], (0, streams), NOTE_OF_NONE)

    return build


def candidate(name: str, worker: Worker, shape: tuple[int, int], note: str) -> Candidate:
    role = OURS if name.startswith("xlogmem") else PEER
    return Candidate(name, PYTHON, role, partial(worker.run, shape), note)
