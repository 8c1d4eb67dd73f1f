"""Build the operator on libcudf, and run it: wrong where it does not say what it reads, right with events or a `use`.

Prints in how many runs a result was wrong, and what an operator takes beside events by hand: the median of the rounds'
ratios.  Needs a GPU, pybind11, a compiler for C++20, and libcudf with its headers and those of CUDA, as pip installs
them (libcudf, librmm, rapids-logger); other folders with headers go on the command line.
"""
import statistics
import subprocess
import sys
import sysconfig
from importlib.util import find_spec
from pathlib import Path

import libcudf
import pybind11

import xlogmem

HERE = Path(__file__).parent
libcudf.load_library()


def folder_of(package):
    return Path(find_spec(package).submodule_search_locations[0])


target = Path("cudf_operator.so").absolute()
headers = [xlogmem.get_include(), pybind11.get_include(), sysconfig.get_path("include"),
           *(folder_of(name) / place for name in ("libcudf", "librmm", "rapids_logger")
             for place in ("include", "include/rapids")), *sys.argv[1:]]
libraries = [next(folder_of(name).glob(f"lib*/{name}.so")) for name in ("libcudf", "librmm")]
subprocess.run(["g++", "-std=c++20", "-O2", "-shared", "-fPIC", "-fvisibility=hidden", "-w",
                *(f"-isystem{folder}" for folder in headers), HERE / "cudf_operator.cpp", *libraries, "-lcudart",
                "-o", target], check=True)
sys.path.insert(0, str(target.parent))
import cudf_operator

ROWS, BATCHES, ROUNDS = 1 << 20, 50, 20
runtime = xlogmem.get_runtime()
ways = cudf_operator.Repair.__members__
runs = {name: [] for name in ways}
for number in range(1 + ROUNDS):                        # of the first, memory is new
    for name, way in ways.items():
        wrong, seconds = cudf_operator.results(runtime, BATCHES, ROWS, way)
        if number:
            runs[name].append((wrong, seconds / BATCHES))
for name, found in runs.items():
    took = statistics.median(seconds for _, seconds in found)
    ratio = statistics.median(own / other for (_, own), (_, other) in zip(found, runs["events"], strict=True))
    print(f"{name:8} wrong in {sum(wrong > 0 for wrong, _ in found):2} of {ROUNDS} runs, "
          f"{sum(wrong for wrong, _ in found):4} of {ROUNDS * BATCHES} results; {1e6 * took:6.1f} µs an operator, "
          f"{ratio:.3f} of events by hand")
