"""CuSan's programs with races (https://github.com/tudasc/cusan, test/runtime) under `xlogmem check`, without a GPU.

    python tests/helpers/cusan_suite.py CHECKOUT

compiles each by nvcc, as it is and repaired (CUSAN_SYNC), without CuSan, and prints what was found.  Those that need
MPI are left out.
"""
from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from os import sched_getaffinity
from pathlib import Path

HEADERS = ("cstdio", "cstring", "cstdlib", "cassert")
OPTIONS = ("-x", "cu", "-g", "--extended-lambda", "-gencode", "arch=compute_90,code=compute_90", "-w",
           "-cudart", "shared", *(word for header in HEADERS for word in ("-include", header)))
RIGHT = {"09_cudamemcpy_default", "10_cudahostalloc"}   # without CUSAN_SYNC, too
UNREPAIRED = {"16_cuda_hostalloc_implicit_sync", "16_cuda_malloc_implicit_sync"}    # the suite expects these to fail


def sources(checkout: Path) -> list[Path]:
    return [file for file in sorted(checkout.glob("test/runtime/*.c"))
            if not re.search(r"^(?!//).*MPI_", file.read_text(), re.MULTILINE)]


def found_in(source: Path, folder: Path, repaired: bool) -> tuple[int, int]:
    """How many certain and possible findings."""
    program = folder / f"{source.stem}-{repaired}"
    repair = ["-DCUSAN_SYNC"] if repaired else []
    subprocess.run(["nvcc", *OPTIONS, *repair, str(source), "-o", str(program)], check=True)
    out = program.with_suffix(".json")
    subprocess.run([sys.executable, "-m", "xlogmem", "check", "--no-gpu", "--json", str(out), "--", str(program)],
                   capture_output=True, timeout=100)
    certain = [one["certain"] for one in json.loads(out.read_text())["findings"]]
    return sum(certain), len(certain) - sum(certain)


def main(checkout: Path) -> int:
    wrong = races = 0
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(len(sched_getaffinity(0))) as pool:
        cases = [(source, repaired) for source in sources(checkout) for repaired in (False, True)]
        results = pool.map(lambda case: found_in(case[0], Path(folder), case[1]), cases)
        for (source, repaired), (certain, possible) in zip(cases, results, strict=True):
            expected = source.stem in UNREPAIRED or not (repaired or source.stem in RIGHT)
            differs = expected != bool(certain)
            wrong += differs
            races += expected
            print(f"{source.stem:52} {'repaired' if repaired else 'as it is':9} {'race' if expected else 'none':5}"
                  f"{certain} certain, {possible} possible{'  DIFFERS' if differs else ''}")
    print(f"{len(cases)} programs, {races} with a race; {wrong} differ")
    return min(wrong, 1)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
