"""Build the operator on libcudf, and run it: wrong where it does not declare what it reads, right where it does.

Needs a GPU, pybind11, a compiler for C++20, and libcudf with its headers and those of CUDA, as pip installs them
(libcudf, librmm, rapids-logger); other folders with headers go on the command line.
"""
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

runtime = xlogmem.get_runtime()
for declared in (False, True):
    wrong = cudf_operator.wrong_results(runtime, 40, 1 << 22, declared)
    print("declared:" if declared else "not declared:", "wrong" if wrong else "right")
