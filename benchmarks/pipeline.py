"""A pipeline over four streams: upload, work on two streams, download; a chunk of memory at a time.

The host queues everything at once and runs far ahead of the device.  Each chunk has three blocks: one is uploaded, the
first stream works it into the second and third, the second stream works the third into the second, and that one is
downloaded.  The ways differ in the source of the blocks and in what orders the streams:

    one stream               everything on one stream, in blocks that are kept
    events by hand           a ring of kept blocks, and an event for each hand-over: what can be reached
    driver's pool by hand    cuMemAllocAsync, an event for each hand-over, cuMemFreeAsync on the last user's stream
    xlogmem, async           allocate, use, free; the free names no stream
    xlogmem, async, named    the same, but each free names the last user's stream
    xlogmem, pool            as the first of the two, on a PoolMemoryResource
    xlogmem, pool of 2 GiB   the same, with that initial_pool_size
    xlogmem, kept            the ring of kept blocks, and `use` for each launch
    xlogmem, ranges          the same ring in the ranges of two buffers, each of which is one block

All in one process and in turn.  Times are medians of the rounds, ratios medians of each round's ratio to events by
hand.  Memory is what the device has less once everything of the first round was queued, before anything was waited
for.  What comes down is compared with what went up in each round.

    python benchmarks/pipeline.py --json pipeline.json
"""
from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

from cuda.bindings import driver as cuda
from prefetcher import facts
from xlogmem_bench.pipelines import BY_HAND, Pipeline, ways_of

from xlogmem.sim.kernels import check

CHUNKS = {64 << 10: 400, 1 << 20: 300, 16 << 20: 48}    # bytes of a chunk, and how many


def measure(nbytes: int, chunks: int, rounds: int) -> list[dict[str, Any]]:
    pipeline = Pipeline(nbytes, chunks)
    ways, runtimes = ways_of(pipeline)
    total: dict[str, list[float]] = {way: [] for way in ways}
    host: dict[str, list[float]] = {way: [] for way in ways}
    memory: dict[str, int] = {}
    wrong = dict.fromkeys(ways, 0)
    for turn in range(rounds + 1):                      # the first warms up
        for way in list(ways)[::1 if turn % 2 else -1]:
            pipeline.forget()
            check(cuda.cuCtxSynchronize())
            before, began = check(cuda.cuMemGetInfo())[0], time.perf_counter()
            ways[way]()
            queued = time.perf_counter()
            if not turn:
                memory[way] = before - check(cuda.cuMemGetInfo())[0]
            check(cuda.cuCtxSynchronize())
            done = time.perf_counter()
            wrong[way] += not pipeline.is_right()
            if turn:
                total[way].append(1e6 * (done - began) / chunks)
                host[way].append(1e6 * (queued - began) / chunks)
    rows = [{"chunk_bytes": nbytes, "way": way, "microseconds_per_chunk": round(statistics.median(total[way]), 1),
             "host_microseconds_per_chunk": round(statistics.median(host[way]), 1),
             "to_events_by_hand": round(statistics.median(
                 one / other for one, other in zip(total[way], total[BY_HAND], strict=True)), 3),
             "device_bytes": memory[way], "wrong": wrong[way]} for way in ways]
    for runtime in runtimes:
        runtime.reap_pending()
    pipeline.close()
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    check(cuda.cuInit(0))
    check(cuda.cuCtxSetCurrent(check(cuda.cuDevicePrimaryCtxRetain(0))))
    rows = []
    for nbytes, chunks in CHUNKS.items():
        rows += measure(nbytes, chunks, options.rounds)
        for row in rows[-9:]:
            print(f"{row['chunk_bytes'] >> 10:6,} KiB  {row['way']:24}{row['microseconds_per_chunk']:9,.1f} us, host "
                  f"{row['host_microseconds_per_chunk']:7,.1f}  {row['to_events_by_hand']:6.3f}x"
                  f"{row['device_bytes'] / 2**20:9,.0f} MiB{row['wrong']:4} wrong", flush=True)
    if options.json:
        options.json.write_text(json.dumps(facts() | {"rounds": options.rounds, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
