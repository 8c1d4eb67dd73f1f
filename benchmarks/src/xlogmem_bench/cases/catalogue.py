"""The list of cases, family by family."""
from __future__ import annotations

import random
from collections.abc import Iterator
from functools import partial

from xlogmem_bench import logs
from xlogmem_bench.cases.adaptors import ADAPTORS, through_adaptor
from xlogmem_bench.cases.allocate import allocate_and_free, in_threads
from xlogmem_bench.cases.awaiting import awaited
from xlogmem_bench.cases.columns import in_columns
from xlogmem_bench.cases.enabled import through_enabled
from xlogmem_bench.cases.exchange import called_for, exported, imported
from xlogmem_bench.cases.frees import freed_after_reads
from xlogmem_bench.cases.graphs import handed_over_inside, launched, launched_natively
from xlogmem_bench.cases.host import accessed_by_host, pinned_pairs
from xlogmem_bench.cases.lookup import looked_up
from xlogmem_bench.cases.model import GIB, KERNEL_NS, KIB, MIB, Case
from xlogmem_bench.cases.patterns import FAN_OUT, HAND_OVER, PING_PONG, same_stream
from xlogmem_bench.cases.pipelines import piped
from xlogmem_bench.cases.replay import replayed
from xlogmem_bench.cases.through_rmm import beside_python, in_pylibcudf, through_rmm
from xlogmem_bench.cases.uploads import freed_at_once, through_buffers
from xlogmem_bench.cases.uses import used
from xlogmem_bench.neighbours import NEIGHBOURS
from xlogmem_bench.recorded import recorded
from xlogmem_bench.workers import STREAMS_IN_TURN

__all__ = ["FAMILIES", "all_cases"]

# The libraries that take part in each family.  No other is imported: that takes seconds, and some bring CUDA libraries
# with which others do not work.
ALLOCATING = ("RMM", "CuPy", "PyTorch", "cuda.core")
FAMILIES: dict[str, tuple[str, ...]] = {
    "allocate": ALLOCATING, "use": ("CuPy", "PyTorch", "cuda.core", "CUDASTF"), "free": ("PyTorch",), "lookup": (),
    "graph": (), "pipeline": (), "exchange": ("CuPy", "PyTorch", "cuda.core"), "host": ALLOCATING, "replay": ALLOCATING,
    "shapes": ALLOCATING, "rmm": ("RMM",), "adaptors": ("RMM",), "enabled": (*ALLOCATING, "Numba"),
    "pylibcudf": ("RMM", "pylibcudf")}
SIZES = {256: "256 B", 4 * KIB: "4 KiB", 64 * KIB: "64 KiB", MIB: "1 MiB", 16 * MIB: "16 MiB", 64 * MIB: "64 MiB"}


_listed: dict[tuple[int, tuple[str, ...]], tuple[Case, ...]] = {}       # the logs take a second to make


def all_cases(scale: int = 1, log_files: tuple[str, ...] = ()) -> tuple[Case, ...]:
    """Every case.  `scale` divides the count of everything, for tests; the ids stay."""
    if (scale, log_files) not in _listed:
        _listed[scale, log_files] = (
            *allocate_cases(scale), *fragmented_cases(scale), *use_cases(), *free_cases(), *lookup_cases(scale),
            *graph_cases(), *pipeline_cases(scale), *exchange_cases(), *host_cases(scale),
            *replay_cases(scale, log_files),
            *random_allocation_cases(scale), *multi_stream_cases(), *rmm_cases(scale), *adaptor_cases(),
            *enabled_cases(scale), *pylibcudf_cases())
    return _listed[scale, log_files]


def scaled(count: int, scale: int, least: int = 8) -> int:
    return max(min(count, least), count // scale)


def allocate_cases(scale: int) -> Iterator[Case]:
    for nbytes, name in SIZES.items():
        yield Case(f"allocate/{name}", "allocate", "pair", allocate_and_free(nbytes), {"nbytes": nbytes},
                   quick=nbytes in (256, MIB), needs=9 * GIB // scale)
    for nbytes in (256, MIB):
        yield Case(f"allocate/{SIZES[nbytes]}, 8 streams in turn", "allocate", "pair", allocate_and_free(nbytes, 8),
                   {"nbytes": nbytes, "streams": 8}, quick=nbytes == MIB)
    for threads in (2, 4, 8, 16):
        yield Case(f"allocate/1 MiB, {threads} threads", "allocate", "pair in each", in_threads(MIB, threads),
                   {"nbytes": MIB, "threads": threads, "streams": threads}, quick=threads == 4)


def fragmented_cases(scale: int) -> Iterator[Case]:
    held = scaled(512, scale)
    yield Case("allocate/1 MiB, 512 held", "allocate", "pair", replayed(partial(logs.held, held, MIB), GIB),
               {"nbytes": MIB, "held": held}, per=held, quick=True)
    columns = scaled(1000, scale)
    yield Case("allocate/1,000 columns of 4 KiB", "allocate", "pair", in_columns(columns, 4 * KIB),
               {"nbytes": 4 * KIB, "columns": columns}, per=columns, quick=True)
    for largest in (64 * KIB, MIB):
        blocks, pairs = scaled(1000, scale), scaled(1000, scale)
        yield Case(f"allocate/to {SIZES[largest]}, fragmented", "allocate", "pair",
                   replayed(partial(logs.pairs, largest, pairs, 2 * blocks), 2 * GIB,
                            logs.fragments(random.Random(1), blocks, largest)),
                   {"largest": largest, "holes": blocks, "seed": 1}, per=pairs, quick=largest == MIB)


def use_cases() -> Iterator[Case]:
    for blocks in (1, 4, 16, 64):
        yield Case(f"use/{blocks} blocks, same stream" if blocks > 1 else "use/1 block, same stream", "use", "use",
                   used(same_stream(blocks)), {"blocks": blocks}, quick=blocks in (1, 16))
    yield Case("use/hand-over", "use", "hand-over of two uses", used(HAND_OVER), {"blocks": HAND_OVER.blocks},
               quick=True)
    yield Case("use/ping-pong", "use", "round of two uses", used(PING_PONG), quick=True)
    yield Case("use/fan-out to 8 readers and back", "use", "round of nine uses", used(FAN_OUT), quick=True)


def free_cases() -> Iterator[Case]:
    for readers in (1, 4, 8):
        yield Case(f"free/after {readers} foreign reads" if readers > 1 else "free/after 1 foreign read", "free",
                   "allocation, reads and free", freed_after_reads(readers), {"readers": readers, "nbytes": MIB},
                   quick=readers == 4)


def lookup_cases(scale: int) -> Iterator[Case]:
    for live in (1_000, 10_000, 100_000, 1_000_000):
        for interior in (False, True):
            count = scaled(live, scale)
            yield Case(f"lookup/{live:,} live" + (", interior" if interior else ""), "lookup", "lookup",
                       looked_up(count, interior), {"live": count, "interior": interior},
                       quick=live in (1_000, 100_000) and not interior)


def pipeline_cases(scale: int) -> Iterator[Case]:
    for nbytes, count in ((64 * KIB, 200), (MIB, 150), (16 * MIB, 24)):
        size, chunks = nbytes if scale == 1 else min(nbytes, 64 * KIB), scaled(count, scale)
        yield Case(f"pipeline/chunks of {SIZES[nbytes]}", "pipeline", "chunk", piped(size, chunks),
                   {"nbytes": size, "chunks": chunks}, per=chunks, quick=nbytes == 64 * KIB, needs=6 * GIB // scale)


def graph_cases() -> Iterator[Case]:
    for blocks in (1, 16):
        name = f"{blocks} blocks" if blocks > 1 else "1 block"
        yield Case(f"graph/launch, {name}", "graph", "launch", launched(blocks), {"blocks": blocks}, quick=blocks == 16)
        yield Case(f"graph/launch from C++, {name}", "graph", "native launch", launched_natively(blocks),
                   {"blocks": blocks}, quick=blocks == 16)
    yield Case("graph/hand-over in a capture", "graph", "round of two nodes", handed_over_inside(), quick=True)


def exchange_cases() -> Iterator[Case]:
    yield Case("exchange/export", "exchange", "tensor made and deleted", exported(), quick=True)
    yield Case("exchange/description", "exchange", "tensor described", called_for("described"))
    yield Case("exchange/stream", "exchange", "stream queried", called_for("streams"))
    yield Case("exchange/import", "exchange", "array imported and dropped", imported(), quick=True)


def host_cases(scale: int) -> Iterator[Case]:
    for nbytes in (4 * KIB, MIB):
        yield Case(f"host/pinned pair, {SIZES[nbytes]}", "host", "pair", pinned_pairs(nbytes), {"nbytes": nbytes},
                   quick=nbytes == 4 * KIB)
    for nbytes, copies in ((64 * KIB, scaled(1_000, scale)), (MIB, scaled(256, scale))):
        yield Case(f"host/upload, {SIZES[nbytes]}, freed at once", "host", "upload", freed_at_once(nbytes, copies),
                   {"nbytes": nbytes, "copies": copies}, per=copies, quick=nbytes == MIB)
    for nbytes, copies in ((64 * KIB, scaled(512, scale)), (MIB, scaled(256, scale)), (16 * MIB, scaled(32, scale))):
        yield Case(f"host/upload, {SIZES[nbytes]}, two buffers in turn", "host", "upload",
                   through_buffers(nbytes, copies, 2), {"nbytes": nbytes, "copies": copies, "buffers": 2}, per=copies)
    yield Case("host/access, nothing to wait for", "host", "access", accessed_by_host(4 * KIB))
    for pending in (1, 1_000):
        count = scaled(pending, scale)
        yield Case(f"host/await, {pending:,} pending", "host", "await", awaited(count), {"pending": count},
                   quick=pending == 1)


def replay_cases(scale: int, log_files: tuple[str, ...]) -> Iterator[Case]:
    made = {"random sizes": logs.random_sizes(random.Random(0), events=scaled(5_000, scale)),
            "random sizes, 8 streams": logs.random_sizes(random.Random(0), 8, events=scaled(5_000, scale)),
            "ORC-like bursts": logs.orc_bursts(random.Random(0), bursts=2, small=scaled(2_500, scale)),
            "queries": logs.queries(random.Random(0), count=scaled(50, scale, 2)),
            "queries, 4 streams": logs.queries(random.Random(0), 4, count=scaled(50, scale, 2))}
    for name, log in (made | {path: recorded(path) for path in log_files}).items():
        events = list(log)
        steps = logs.steps_of(events)
        room = max(2 * logs.peak(events), GIB // scale)
        yield Case(f"replay/{name}", "replay", "pair", replayed(partial(list, steps), room),
                   {"events": len(events), "peak": logs.peak(events)}, per=len(steps) // 2, quick=name == "queries",
                   needs=9 * room)


def random_allocation_cases(scale: int) -> Iterator[Case]:
    """RMM's benchmark of that name.  Its max_usage is 16,000 MiB, and its pools have half of the GPU and all of it:
    here each allocator has room for that, at once.  What finds no memory in a fragmented pool is left out, as there."""
    most = 16_000 * MIB // scale
    for allocations, largest in ((1_000, 1), (1_000, 4), (1_000, 64), (1_000, 256), (1_000, 1_024), (1_000, 4_096),
                                 (10_000, 64), (100_000, 4)):
        count, max_size = scaled(allocations, scale), largest * MIB // scale
        program = partial(logs.random_allocations, allocations + largest, count, max_size, most)
        yield Case(f"shapes/random_allocations, {allocations:,} to {largest:,} MiB", "shapes", "allocation and free",
                   replayed(program, 20 * GIB // scale, from_python=allocations == 1_000 and largest <= 4),
                   {"num_allocations": count, "max_size": max_size, "max_usage": most, "allocation_probability": 73},
                   per=count, quick=(allocations, largest) == (1_000, 64),
                   needs=130 * GIB // scale if largest > 4 else 0)


def multi_stream_cases() -> Iterator[Case]:
    """RMM's benchmark multi_stream_allocations."""
    for streams in (1, 2, 4):
        for warm in (False, True):
            prewarm = [(logs.ALLOCATE, 4 + i, 8, i) for i in range(streams)]
            cool = [(logs.FREE, 4 + i, 8, i) for i in range(streams)]
            yield Case(f"shapes/multi_stream_allocations, {streams} streams" + (", prewarmed" if warm else ""),
                       "shapes", "round of 4 kernels",
                       replayed(partial(logs.multi_stream, streams, 4), GIB, (prewarm + cool, []) if warm else None),
                       {"streams": streams, "kernels": 4, "prewarm": warm, "kernel_ns": KERNEL_NS})


def rmm_cases(scale: int) -> Iterator[Case]:
    yield Case("rmm/pair of 1 MiB, legacy stream", "rmm", "pair", through_rmm(MIB, False), {"nbytes": MIB}, quick=True)
    yield Case("rmm/pair of 1 MiB, another stream", "rmm", "pair", through_rmm(MIB, True), {"nbytes": MIB})
    pairs = scaled(10_000, scale)
    yield Case("rmm/99th percentile beside a busy Python thread", "rmm", "pair", beside_python(MIB, pairs),
               {"nbytes": MIB, "pairs": pairs})


def adaptor_cases() -> Iterator[Case]:
    for name in ADAPTORS:
        yield Case(f"adaptors/{name}, 256 B", "adaptors", "pair", through_adaptor(name, 256), {"nbytes": 256},
                   quick=name == "statistics")


def enabled_cases(scale: int) -> Iterator[Case]:
    """Those of a library follow each other: its processes stay."""
    for name, neighbour in NEIGHBOURS.items():
        for nbytes in (256, MIB):
            yield Case(f"enabled/{name}, {SIZES[nbytes]}", "enabled", "pair", through_enabled(name, nbytes),
                       {"nbytes": nbytes}, quick=name == "CuPy" and nbytes == MIB, needs=9 * GIB // scale)
        if neighbour.several_streams:
            yield Case(f"enabled/{name}, {SIZES[MIB]}, {STREAMS_IN_TURN} streams in turn", "enabled", "pair",
                       through_enabled(name, MIB, STREAMS_IN_TURN), {"nbytes": MIB, "streams": STREAMS_IN_TURN},
                       needs=9 * GIB // scale)


def pylibcudf_cases() -> Iterator[Case]:
    for operation in ("allocate_like", "binary_operation"):
        yield Case(f"pylibcudf/{operation}, 1,000 rows", "pylibcudf", "column", in_pylibcudf(operation, 1_000, 400),
                   {"rows": 1_000}, quick=operation == "allocate_like")
