"""How the cost of finding a block grows with the number of live blocks.

    python benchmarks/lookup.py [--json FILE]

Blocks are adopted ranges of 512 bytes, so that no driver is measured.  Each row is the best of several passes over
20,000 random blocks, in ns per call from Python, less the cost of the loop itself.
"""
from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Callable, Iterable

import xlogmem

COUNTS = (1_000, 10_000, 100_000, 1_000_000)
LOOKUPS, PASSES, SIZE = 20_000, 31, 512


def best(function: Callable[[object], object], arguments: Iterable[object]) -> float:
    arguments = list(arguments)
    times = []
    for _ in range(PASSES):
        started = time.perf_counter_ns()
        for argument in arguments:
            function(argument)
        times.append((time.perf_counter_ns() - started) / len(arguments))
    return min(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args()
    rng = random.Random(1)
    rows = {}
    for count in COUNTS:
        runtime = xlogmem.DeviceRuntime()
        stream = runtime.acquire_stream()
        started = time.perf_counter()
        blocks = [runtime.adopt((1 << 44) + SIZE * number, SIZE, stream) for number in range(count)]
        built = (time.perf_counter() - started) / count * 1e9
        chosen = [rng.choice(blocks) for _ in range(LOOKUPS)]
        idle = best(lambda block: None, chosen)
        use = xlogmem.use

        def used(block: object, use: Callable[..., object] = use, stream: xlogmem.Stream = stream) -> None:
            with use(stream, read=block):
                pass

        rows[count] = {
            "track": built,
            "by handle": best(lambda block: block.state, chosen) - idle,
            "by address": best(runtime.find_block, [block.ptr for block in chosen]) - idle,
            "by interior address": best(runtime.find_block, [block.ptr + 300 for block in chosen]) - idle,
            "use": best(used, chosen) - idle,
        }
        print(f"{count:9,d} live: " + ", ".join(f"{name} {ns:.0f} ns" for name, ns in rows[count].items()))
        blocks.clear()
        chosen.clear()
    ratios = {name: rows[COUNTS[-1]][name] / rows[COUNTS[0]][name] for name in rows[COUNTS[0]]}
    print("a million / a thousand: " + ", ".join(f"{name} {ratio:.2f}" for name, ratio in ratios.items()))
    if options.json:
        with open(options.json, "w") as file:
            json.dump({"rows": rows, "ratios": ratios}, file, indent=1)


if __name__ == "__main__":
    main()
