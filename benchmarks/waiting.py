"""Threads that wait for one block, each on a stream of its own: how long until all of them have had their turns.

One window is open until every thread waits.  Then each thread opens five, one after the other, all of which write, or
half of which read; none may wait for longer than its turn takes, however many there are.

    python benchmarks/waiting.py --threads 400
"""
from __future__ import annotations

import argparse
import json
import random
import threading
import time

from xlogmem import DeviceRuntime, StreamPool, use
from xlogmem.commands.start import start_driver

TURNS = 5                                   # of each thread


def measure(threads: int, reading: float) -> dict[str, object]:
    """`reading`: the share of windows that read."""
    runtime = DeviceRuntime(stream_pool=StreamPool(max_streams=threads + 2))
    home, *streams = [runtime.acquire_stream() for _ in range(threads + 1)]
    block = runtime.allocate(64, home)

    def take_turns(number: int) -> None:
        draw = random.Random(number)
        for _ in range(TURNS):
            with use(streams[number], **{"read" if draw.random() < reading else "write": block}):
                pass

    workers = [threading.Thread(target=take_turns, args=(number,)) for number in range(threads)]
    with use(home, write=block):
        for worker in workers:
            worker.start()
        while runtime.counters()["conflict_waits"] < threads:
            time.sleep(.001)
        began, busy = time.perf_counter(), time.process_time()
    for worker in workers:
        worker.join()
    took, busy = time.perf_counter() - began, time.process_time() - busy
    counted = runtime.counters()
    return {"threads": threads, "reading": reading, "windows": threads * TURNS, "seconds": round(took, 3),
            "processor_us_per_window": round(1e6 * busy / threads / TURNS, 1),
            "conflict_waits": counted["conflict_waits"], "conflicts": counted["conflicts"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, nargs="+", default=[25, 100, 400])
    options = parser.parse_args()
    start_driver()
    for threads in options.threads:
        for reading in (0., .5):
            print(json.dumps(measure(threads, reading)), flush=True)


if __name__ == "__main__":
    main()
