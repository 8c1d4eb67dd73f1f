"""Names and texts of error codes: each code of cuda.h has both; the simulated runtime writes NVIDIA's."""

from __future__ import annotations

import ctypes
from importlib.metadata import PackageNotFoundError, distribution, version
from pathlib import Path

import pytest
from cuda.bindings import driver
from sim_support import python

import xlogmem.check.cudart

pytestmark = pytest.mark.simulator
CUDA = tuple(map(int, version("cuda-bindings").split(".")[:2]))
NEWEST_TABLE = (13, 5)                                          # cuda.h's that the simulator's table was made from
NAMES = """
import ctypes, sys
library = ctypes.CDLL(sys.argv[1])
for call in (library.cudaGetErrorName, library.cudaGetErrorString):
    call.restype = ctypes.c_char_p
    print([call(code) for code in range(-1, 10_001)])
"""


def test_every_code_of_the_driver_has_a_name_and_a_text(simulator):
    known = 0
    for code in driver.CUresult:
        result, name = driver.cuGetErrorName(code)
        if result != driver.CUresult.CUDA_SUCCESS and CUDA > NEWEST_TABLE:
            continue                                            # a code that the table is too old for
        assert (result, name) == (driver.CUresult.CUDA_SUCCESS, code.name.encode())
        result, text = driver.cuGetErrorString(code)
        assert result == driver.CUresult.CUDA_SUCCESS
        assert text
        known += 1
    assert known > 95


def test_a_code_that_cuda_does_not_have_has_neither(simulator):
    library = ctypes.CDLL("libcuda.so.1")
    for call in (library.cuGetErrorName, library.cuGetErrorString):
        text = ctypes.c_char_p(b"before")
        assert call(12345, ctypes.byref(text)) == 1
        assert text.value is None


def test_the_texts_are_those_of_the_newest_runtime(simulator):
    """NVIDIA's runtime has the driver's texts, of the codes that it knows."""
    try:
        wheel = distribution("nvidia-cuda-runtime")
    except PackageNotFoundError:
        pytest.skip("NVIDIA's runtime of CUDA 13 is not installed")
    if tuple(map(int, wheel.version.split(".")[:2])) != NEWEST_TABLE:
        pytest.skip(f"NVIDIA's runtime is {wheel.version}")
    runtime = next(Path(wheel.locate_file(file)) for file in wheel.files or () if file.name == "libcudart.so.13")
    library, text = ctypes.CDLL("libcuda.so.1"), ctypes.c_char_p()
    theirs = eval(python("-c", NAMES, str(runtime)).stdout.splitlines()[1])         # of -1, 0, 1 ...
    known = [code for code in range(1000) if not library.cuGetErrorString(code, ctypes.byref(text))]
    compared = {code: theirs[code + 1] for code in known if theirs[code + 1] != b"unrecognized error code"}
    for code, wanted in compared.items():
        library.cuGetErrorString(code, ctypes.byref(text))
        assert (code, text.value) == (code, wanted)
    assert len(compared) > 95


def test_the_simulated_runtime_writes_what_nvidias_runtime_writes():
    try:
        wheel = distribution("nvidia-cuda-runtime-cu12")
    except PackageNotFoundError:
        pytest.skip("NVIDIA's runtime is not installed")
    theirs = next(Path(wheel.locate_file(file)) for file in wheel.files or () if file.name == "libcudart.so.12")
    ours = xlogmem.check.cudart.loaded(12)._name
    simulated = f"from xlogmem import sim; sim.install()\n{NAMES}"
    assert python("-c", simulated, ours).stdout == python("-c", NAMES, str(theirs)).stdout
