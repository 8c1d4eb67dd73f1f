"""What the lock of a runtime does under contention, beside pthread_mutex: throughput, and how long threads wait.

    python benchmarks/locks.py [--threads 1 2 4 8 16] [--milliseconds 300] [--repeats 5]

Each thread holds one lock for about as long as the bookkeeping of an allocation takes, and works three times as long
without it.  The locks take turns; the figures are medians of the repeats.  No GPU is needed.  With more threads than
cores the longest waits are those of threads that the system has taken off their core.
"""
from __future__ import annotations

import argparse
import os
import statistics
import sys

from xlogmem_bench._loops import LOCKS, contended


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2, 4, 8, 16])
    parser.add_argument("--milliseconds", type=int, default=300, help="of one turn")
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    print(f"{len(os.sched_getaffinity(0))} cores; waits in ns, clock included")
    print(f"{'lock':20}{'threads':>8}{'million/s':>11}{'median':>9}{'p99':>11}{'longest':>13}{'fewest/mean':>13}")
    for threads in options.threads:
        turns = [{lock: contended(lock, threads, options.milliseconds) for lock in LOCKS}
                 for _ in range(options.repeats)]
        for lock in LOCKS:
            taken = [turn[lock] for turn in turns]
            if any(one["counted"] != one["sections"] for one in taken):
                print(f"{lock}: two threads were inside at once")
                return 1
            speed, fair = (statistics.median(values) for values in zip(*(
                (1e3 * one["sections"] / one["took"], one["fewest"] * threads / one["sections"]) for one in taken),
                strict=True))
            waits = [statistics.median(one[name] for one in taken) for name in ("median", "p99", "longest")]
            print(f"{lock:20}{threads:8}{speed:11.2f}{waits[0]:9,.0f}{waits[1]:11,.0f}{waits[2]:13,.0f}{fair:13.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
