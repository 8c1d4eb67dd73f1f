"""How small a pool may be for a program: the smallest `maximum_pool_size` with which its allocations succeed.

    python benchmarks/pool_fragmentation.py [--log FILE]... [--json FILE]

Logs of allocations are replayed on xlogmem's pool and, if RMM is installed, on RMM's: random sizes, the pattern of
reading ORC (bursts of 10,000 small allocations among large ones), the intermediates of queries, and files of RMM's
`LoggingResourceAdaptor` (``Thread,Time,Action,Pointer,Size,Stream``).  Each pool either takes all of its maximum at
once or grows on demand.  No memory is touched: the addresses are made up, so this runs on any machine, without a GPU on
the simulated driver.  Figures are bytes beyond the most that the log has in use at any time.
"""
from __future__ import annotations

import argparse
import gc
import itertools
import json
import random
import sys
from collections.abc import Iterable
from typing import Any

from xlogmem_bench.logs import Event, orc_bursts, peak, queries, random_sizes, rounded
from xlogmem_bench.programs import Fits, Programs, fits_ours, fits_rmms
from xlogmem_bench.recorded import recorded

from xlogmem.commands.start import start_driver

try:
    import rmm
except ImportError:
    rmm = None

FINE = 200                                  # sizes between the least that can suffice and its double


def smallest(fits: Fits, log: list[Event], at_once: bool) -> int:
    """Sizes are tried in turn, the same for each pool: a larger pool may fail where a smaller one suffices."""
    programs, most = Programs(log), peak(log)
    for steps in itertools.count():
        size = rounded(most + steps * most // FINE)
        gc.collect(0)
        if fits(programs, size, at_once):
            return size
    raise AssertionError


def all_logs(seed: int, files: list[str]) -> dict[str, Iterable[Event]]:
    return {"random sizes": random_sizes(random.Random(seed)),
            "random sizes, 8 streams": random_sizes(random.Random(seed), 8),
            "ORC-like bursts": orc_bursts(random.Random(seed)),
            "queries": queries(random.Random(seed)),
            "queries, 4 streams": queries(random.Random(seed), 4)} | {path: recorded(path) for path in files}


def measured(logs: dict[str, Iterable[Event]]) -> list[dict[str, Any]]:
    """The rows, which are printed as they come."""
    pools = {"xlogmem": fits_ours} | ({"RMM": fits_rmms} if rmm else {})
    rows = []
    print(f"{'bytes beyond the most in use':32}{'in use':>12}" + "".join(
        f"{name + how:>20}" for how in (", at once", ", growing") for name in pools))
    for name, events in logs.items():
        log = list(events)
        least = peak(log)
        row = {"log": name, "events": len(log), "peak": least, "smallest": {}}
        print(f"{name:32}{least:12,}", end="", flush=True)
        for at_once in (True, False):
            for pool, fits in pools.items():
                found = smallest(fits, log, at_once)
                row["smallest"][f"{pool}, {'at once' if at_once else 'growing'}"] = found
                print(f"{100 * (found / least - 1):19.2f}%", end="", flush=True)
        print()
        rows.append(row)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--log", action="append", default=[], metavar="FILE", help="of RMM's LoggingResourceAdaptor")
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    start_driver()
    rows = measured(all_logs(options.seed, options.log))
    if options.json:
        with open(options.json, "w") as file:
            json.dump({"python": sys.version, "rmm": getattr(rmm, "__version__", None), "rows": rows}, file, indent=1)


if __name__ == "__main__":
    main()
