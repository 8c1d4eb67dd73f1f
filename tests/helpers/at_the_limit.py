"""Threads at the limit of a budget: never above it, and at rest what is held, to the byte.

``python tests/helpers/at_the_limit.py --seconds 10`` does that on each resource for so long and prints a row of JSON
for each; the exit code is 1 if anything was wrong.  The suite runs a few rounds.

A round is a fixed number of steps of each thread; after it nothing moves, and all figures have to agree.  That the
limit holds between two looks, too, is what `StatisticsResourceAdaptor` says below the budget: its peak is exact.
"""
from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections import Counter
from typing import Any

from stress import together

from xlogmem import (
    AsyncMemoryResource,
    DeviceBlock,
    DeviceMemoryResource,
    DeviceRuntime,
    DirectMemoryResource,
    LimitingResourceAdaptor,
    OutOfBudgetError,
    PoolMemoryResource,
    StatisticsResourceAdaptor,
    sim,
)

__all__ = ["LIMIT", "RESOURCES", "AtTheLimit"]

RESOURCES = {"async": AsyncMemoryResource, "direct": DirectMemoryResource, "pool": PoolMemoryResource}
LIMIT = 256 << 10                           # bytes
LARGEST = 32 << 10                          # of an allocation: a few of each thread fill the budget
STEPS = 100                                 # of each thread in a round


class AtTheLimit:
    """Threads that allocate and free under one budget, their own blocks and each other's.

    `counted` says how often what happened, `wrong` what must not happen, as text.
    """

    def __init__(self, upstream: DeviceMemoryResource, threads: int = 8, seed: int = 0) -> None:
        self.below = StatisticsResourceAdaptor(upstream)
        self.budget = LimitingResourceAdaptor(self.below, LIMIT)
        self.runtime = DeviceRuntime(resource=self.budget)
        self.streams = [self.runtime.acquire_stream() for _ in range(threads)]
        self.draws = [random.Random(f"{seed} {number}") for number in range(threads)]
        self.held: list[list[DeviceBlock]] = [[] for _ in range(threads)]
        self.handed_over: list[DeviceBlock] = []        # any thread frees them
        self.counted: Counter[str] = Counter()
        self.wrong: list[str] = []

    def run(self, rounds: int = 1, seconds: float = 0) -> None:
        """So many rounds, and more until the seconds are over; then everything is freed."""
        end = time.monotonic() + seconds
        while self.counted["rounds"] < rounds or time.monotonic() < end:
            for counted in together(self.work, len(self.streams)):
                self.counted += counted
            self.counted["rounds"] += 1
            self.compare_at_rest()
        for held in self.held:
            held.clear()
        self.handed_over.clear()
        self.compare_at_rest()
        peak = self.below.allocation_counts.peak_bytes
        if peak > LIMIT:
            self.wrong.append(f"{peak} bytes were allocated at a time, of {LIMIT}")

    # ------------------------------------------------------------------------------------------ one thread
    def work(self, number: int) -> Counter[str]:
        draw, held = self.draws[number], self.held[number]
        counted: Counter[str] = Counter()
        for _ in range(STEPS):
            try:
                held.append(self.runtime.allocate(draw.randint(1, LARGEST), self.streams[number], tag=f"{number}"))
                counted["allocations"] += 1
            except OutOfBudgetError as error:
                counted["refusals"] += 1
                self.judge(error)
                del held[:draw.randint(1, len(held) or 1)]
            if held and draw.random() < .3:
                self.handed_over.append(held.pop(draw.randrange(len(held))))
            if draw.random() < .3:
                self.free_any(number)
            current = self.budget.current_bytes
            if current > LIMIT:
                self.wrong.append(f"{current} bytes were charged, of {LIMIT}")
        return counted

    def free_any(self, number: int) -> None:
        try:
            block = self.handed_over.pop()
        except IndexError:                              # none, or another thread was quicker
            return
        block.free(self.streams[number])

    def judge(self, error: OutOfBudgetError) -> None:
        """A refusal has to be one, by its own figures."""
        if not (error.current <= LIMIT < error.current + error.requested) or error.remaining != LIMIT - error.current:
            self.wrong.append(f"refused: {error}")

    # ------------------------------------------------------------------------------------------ all at rest
    def compare_at_rest(self) -> None:
        self.runtime.reap_pending()
        by_tag: Counter[str] = Counter()
        for block in [block for held in self.held for block in held] + self.handed_over:
            by_tag[block.tag] += block.nbytes
        figures = {"held": by_tag.total(), "charged": self.budget.current_bytes,
                   "outstanding": self.runtime.bytes_outstanding,
                   "allocated below": self.below.allocation_counts.current_bytes,
                   "of holders": sum(self.budget.holders().values())}
        if len(set(figures.values())) != 1 or self.budget.holders() != by_tag:
            self.wrong.append(f"at rest: {figures}, {self.budget.holders()} and not {dict(by_tag)}")


def measured(name: str, threads: int, seconds: float) -> dict[str, Any]:
    program = AtTheLimit(RESOURCES[name](), threads)
    program.run(seconds=seconds)
    return {"resource": name, "threads": threads, "limit": LIMIT,
            "peak": program.below.allocation_counts.peak_bytes, **program.counted, "wrong": program.wrong[:10]}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=10, help="for each resource")
    parser.add_argument("--threads", type=int, default=8)
    options = parser.parse_args()
    from xlogmem.commands.start import start_driver

    start_driver()
    failed = False
    for name in RESOURCES:
        if sim.installed():
            sim.simulator().reset("min")                # frees are pending until a thread waits for them
        row = measured(name, options.threads, options.seconds)
        print(json.dumps(row), flush=True)
        failed = failed or bool(row["wrong"]) or not row.get("refusals")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
