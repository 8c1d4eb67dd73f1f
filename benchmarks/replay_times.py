"""How long `xlogmem replay` takes for a log of so many events, on each resource: the whole command, in seconds.

The logs are made up: any size from 256 B to 64 MiB on 8 streams, and the intermediates of queries on 8 streams.  Each
is written in the columns of RMM's `LoggingResourceAdaptor` and in JSON lines like those of xlogmem's.

    python benchmarks/replay_times.py --events 1000000 --resource pool --resource async
"""
from __future__ import annotations

import argparse
import itertools
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from xlogmem_bench.logs import Event, queries, random_sizes
from xlogmem_bench.replay import RESOURCES

FIELDS = {"device": 0, "stream": None, "tag": None, "generation": 1, "thread": 1, "order": 1, "nanoseconds": 1,
          "result": "Ok"}
COLUMNS = "Thread,Time,Action,Pointer,Size,Stream"


def calls_of(events: Iterable[Event]) -> Iterator[tuple[str, int, int, int]]:
    """Action, address, bytes and stream.  No address is used twice."""
    sizes: dict[int, int] = {}
    for number, nbytes, stream in events:
        if nbytes:
            sizes[number] = nbytes
        yield "allocate" if nbytes else "free", 256 * (number + 1), nbytes or sizes.pop(number), stream + 16


def write(path: Path, events: Iterable[Event]) -> None:
    """The log of one thread, of the kind that the name ends with."""
    with path.open("w") as file:
        if path.suffix == ".csv":
            file.write(f"{COLUMNS}\n")
        for action, ptr, nbytes, stream in calls_of(events):
            if path.suffix == ".csv":
                file.write(f"1,00:00:00.000000,{action},{ptr:#x},{nbytes},{stream:#x}\n")
            else:
                call = {"action": action, "handle": stream, "ptr": ptr, "bytes": nbytes}
                file.write(f"{json.dumps(call | FIELDS)}\n")


def measure(path: Path, resource: str) -> dict[str, object]:
    figures = path.with_suffix(".figures")
    began = time.perf_counter()
    done = subprocess.run([sys.executable, "-m", "xlogmem", "replay", str(path), "--resource", resource, "--json",
                           str(figures)], capture_output=True, text=True)
    took = time.perf_counter() - began
    if done.returncode:
        return {"log": path.name, "resource": resource, "failed": done.stderr.strip().splitlines()[-1]}
    seen = json.loads(figures.read_text())
    (row,) = seen["rows"]
    return {"log": path.name, "resource": resource, "seconds": round(took, 1), "device": seen["device"],
            **{name: row[name] for name in ("pairs", "refused", "peak_bytes", "least_pool_size", "ns_per_pair")}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--resource", choices=RESOURCES, action="append", help="[default: all]")
    options = parser.parse_args()
    logs = {"random sizes": lambda: random_sizes(random.Random(1), 8, options.events),
            "queries": lambda: itertools.islice(queries(random.Random(1), 8, options.events), options.events)}
    with tempfile.TemporaryDirectory() as folder:
        for (name, events), kind in itertools.product(logs.items(), ("csv", "jsonl")):
            path = Path(folder, f"{name}.{kind}")
            write(path, events())
            for resource in options.resource or RESOURCES:
                print(json.dumps(measure(path, resource)), flush=True)
            path.unlink()


if __name__ == "__main__":
    main()
