"""NVIDIA's libraries that are not simulated, in programs without a GPU: the report names them and their place."""
from __future__ import annotations

import subprocess

import pytest
from checked_libraries import line_with
from engine_traces import compiler

pytestmark = pytest.mark.simulator
BEGIN = """
import ctypes, sys
from cuda.bindings import driver
driver.cuInit(0)
driver.cuCtxSetCurrent(driver.cuDevicePrimaryCtxRetain(0)[1])
driver.cuMemsetD8(driver.cuMemAlloc(64)[1], 1, 64)
"""
ON_A_GPU = "Check this part of the program on a GPU: `xlogmem check`, without --no-gpu"
ENDED = "{} is not simulated: the program ended at {} for that.  " + ON_A_GPU
LOADED = "{} is not simulated: what {} loads it for is not checked.  " + ON_A_GPU


def place(program: str, text: str) -> str:
    return f"program.py:{line_with(program, text)}"


@pytest.fixture
def library(tmp_path):
    """Make libraries of these names, without any function in them."""
    def made(*names: str) -> None:
        for name in names:
            subprocess.run([found, "-shared", "-x", "c++", "/dev/null", "-o", tmp_path / name], check=True)
    found = compiler()
    if found is None:
        pytest.skip("no C++ compiler here")
    return made


def test_a_library_that_was_loaded_is_named_once(checked, library):
    """By its first place, also if it has parts or is loaded again; not if it was only looked for."""
    library("libcutensor.so.2", "libcudnn.so.9", "libcudnn_ops.so.9", "libmine.so")
    program = BEGIN + """
for name in ("libcutensor.so.2", "libcutensor.so.2"):
    ctypes.CDLL(f"./{name}")                                    # one
ctypes.CDLL("./libcudnn.so.9")                                  # another
ctypes.CDLL("./libcudnn_ops.so.9")
ctypes.CDLL("./libmine.so")
try:
    ctypes.CDLL("libnccl.so.2")
except OSError:
    pass
"""
    run = checked(program)
    assert run.notes["notes"] == {LOADED.format("cuTENSOR", place(program, "# one")): 1,
                                  LOADED.format("cuDNN", place(program, "# another")): 1}
    assert run.stderr.count("cuTENSOR is not simulated") == 1
    assert run.returncode == 0


def test_several_of_one_place_are_one_note(checked, library):
    library("libcusolverMg.so.11", "libcusparseLt.so.0")
    program = BEGIN + """
for name in ("libcusparseLt.so.0", "libcusolverMg.so.11"):
    ctypes.CDLL(f"./{name}")                                    # both
"""
    text = LOADED.format("cuSPARSELt and cuSOLVERMg", place(program, "# both"))
    assert checked(program).notes["notes"] == {text.replace("Mg is", "Mg are").replace(" it ", " them "): 1}


def test_what_pytorch_loads_in_case_is_not_named(checked, library):
    library("libcusparseLt.so.0")
    source = "ctypes.CDLL('./libcusparseLt.so.0')"
    run = checked(f"{BEGIN}\nexec(compile({source!r}, '/env/torch/__init__.py', 'exec'))\n")
    assert (run.returncode, run.notes["notes"]) == (0, {}), run.stderr


@pytest.mark.parametrize(("error", "name"), [
    ("RuntimeError('cuDNN error: CUDNN_STATUS_NOT_INITIALIZED')", "cuDNN"),
    ("RuntimeError('NCCL Error 1: unhandled cuda error')", "NCCL"),
    ("ImportError('Failure finding \"libcutensor.so.2\"')", "cuTENSOR"),
    ("AttributeError(\"module 'cupy.cuda.nccl' has no attribute 'NcclCommunicator'\")", "NCCL"),
    ("type('CuTensorError', (Exception,), {})('7')", "cuTENSOR"),
])
def test_an_error_names_the_library(checked, error, name):
    program = f"{BEGIN}\nraise {error}\n"
    assert checked(program).notes["notes"] == {ENDED.format(name, place(program, "raise")): 1}
    behind = f"{BEGIN}\ntry:\n    raise {error}\nexcept Exception as error:\n    raise KeyError(1) from error"
    assert checked(behind).notes["notes"] == {ENDED.format(name, place(behind, "KeyError")): 1}


@pytest.mark.parametrize("error", ["RuntimeError('no error of a library')", "OSError('libcudart.so.12')",
                                   "ValueError('nccl or gloo')", "RuntimeError('libcurand.so.10')",
                                   "RuntimeError('cuFFT error: CUFFT_INTERNAL_ERROR')",
                                   "RuntimeError('CUSOLVER_STATUS_INTERNAL_ERROR')",
                                   "RuntimeError('cuSPARSE error: CUSPARSE_STATUS_INTERNAL_ERROR')"])
def test_other_errors_name_none(checked, error):
    assert checked(f"{BEGIN}\nraise {error}\n").notes["notes"] == {}


def test_the_binding_of_a_library_names_it(checked):
    """... which the error need not do; a file of the program's own does not."""
    source = "raise RuntimeError('initialization error')"
    for file, name in (("cupy_backends/cuda/libs/cutensor.pyx", "cuTENSOR"),
                       ("/env/site-packages/cupyx/cutensor.py", "cuTENSOR")):
        program = f"{BEGIN}\nexec(compile({source!r}, {file!r}, 'exec'))\n"
        assert checked(program).notes["notes"] == {ENDED.format(name, place(program, "exec")): 1}
    assert checked(f"{BEGIN}\nexec(compile({source!r}, '/mine/nccl.py', 'exec'))\n").notes["notes"] == {}


def test_a_library_that_another_one_loads_is_not_named_beside_it(checked, library):
    library("libcusparseLt.so.0", "libcutensor.so.2")
    program = BEGIN + """
ctypes.CDLL("./libcutensor.so.2")                               # before
def use():
    ctypes.CDLL("./libcusparseLt.so.0"); raise RuntimeError("CUDNN_STATUS_NOT_INITIALIZED")      # at once
use()
"""
    assert checked(program).notes["notes"] == {
        ENDED.format("cuDNN", place(program, "# at once")): 1,
        LOADED.format("cuTENSOR", place(program, "# before")): 1}
