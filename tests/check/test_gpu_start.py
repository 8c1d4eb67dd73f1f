"""How the check on a GPU starts: what a program's environment gets, and what is said where something is missing."""
from __future__ import annotations

import json
import subprocess
import sys

import pytest
from cupti_library import BUILT, COMPILER, HERE, library
from engine_traces import compiler

from xlogmem.check import gpu

BUILD = pytest.mark.skipif(not BUILT, reason="built without the check on a GPU: CUPTI's headers were not installed")
MULTIPLE_SUBSCRIBERS = 39
START = """
import ctypes, json, os, sys
library = ctypes.CDLL(sys.argv[1])
library.xcheck_failure.restype = ctypes.c_char_p
before = library.xcheck_is_watching(), library.xcheck_failure().decode(), library.xcheck_is_lost()
assert library.InitializeInjection() == 1
assert library.InitializeInjection() == 1
after = library.xcheck_is_watching(), library.xcheck_failure().decode(), library.xcheck_is_lost()
reader, writer = os.pipe()
if os.fork() == 0:
    os.write(writer, json.dumps([library.xcheck_is_watching(), library.xcheck_is_lost()]).encode())
    os._exit(0)
enabled = 0
if len(sys.argv) > 2:
    enabled = ctypes.c_int.in_dll(ctypes.CDLL(sys.argv[2]), "enabled").value
print(json.dumps({"before": before, "after": after, "child": json.loads(os.read(reader, 100)), "enabled": enabled}))
"""


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    """As in a process whose environment says nothing."""
    for name in (gpu.INJECTION, "XLOGMEM_CHECK_CUPTI", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def no_pathfinder(monkeypatch):
    """CUPTI is installed nowhere."""
    from cuda import pathfinder

    def nothing(name: str) -> None:
        raise pathfinder.DynamicLibNotFoundError(f"no {name} here")

    monkeypatch.setattr(pathfinder, "load_nvidia_dynamic_lib", nothing)


# -- the environment of a program -----------------------------------------------------------------------------

def test_a_library_that_was_not_built(monkeypatch, tmp_path):
    monkeypatch.setattr(gpu, "__file__", str(tmp_path / "gpu.py"))
    with pytest.raises(RuntimeError, match=r"(?s)built without.*nvidia-cuda-cupti-cu12.*--no-gpu"):
        gpu.injection()


@BUILD
def test_cupti_that_is_not_installed(no_pathfinder):
    with pytest.raises(RuntimeError, match=r"(?s)needs CUPTI.*cuda-cupti.*XLOGMEM_CHECK_CUPTI"):
        gpu.injection()


@BUILD
def test_cupti_that_the_environment_names(no_pathfinder, monkeypatch):
    monkeypatch.setenv("XLOGMEM_CHECK_CUPTI", "/somewhere/libcupti.so")
    assert gpu.injection() == {gpu.INJECTION: library(), "XLOGMEM_CHECK_CUPTI": "/somewhere/libcupti.so",
                               "XLOGMEM_CHECK_GPU": "1"}


@BUILD
def test_another_tool_in_the_place(monkeypatch):
    monkeypatch.setenv("XLOGMEM_CHECK_CUPTI", "libcupti.so")
    monkeypatch.setenv(gpu.INJECTION, "/opt/nsight/libToolsInjection64.so")
    with pytest.raises(RuntimeError, match=r"another tool.*libToolsInjection64\.so.*without it"):
        gpu.injection()
    monkeypatch.setenv(gpu.INJECTION, library())            # a process that a checked one starts
    assert gpu.injection()[gpu.INJECTION] == library()


@BUILD
def test_pools_of_libraries_are_the_drivers_unless_the_real_ones_are_wanted(monkeypatch):
    monkeypatch.setenv("XLOGMEM_CHECK_CUPTI", "libcupti.so")
    driver, real = gpu.environment("driver"), gpu.environment("real")
    assert {name: driver[name] for name in set(driver) - set(real)} == {"XLA_PYTHON_CLIENT_ALLOCATOR": "cuda_async"}
    assert (driver["XLOGMEM_CHECK_POOLS"], real["XLOGMEM_CHECK_POOLS"]) == ("driver", "real")


# -- whether there is a GPU -------------------------------------------------------------------------------------

@COMPILER
@pytest.mark.parametrize(("source", "there"), [
    ("int cuInit(int) { return 0; } int cuDeviceGetCount(int* n) { *n = 2; return 0; }", True),
    ("int cuInit(int) { return 0; } int cuDeviceGetCount(int* n) { *n = 0; return 0; }", False),
    ("int cuInit(int) { return 100; } int cuDeviceGetCount(int* n) { *n = 2; return 0; }", False),
    ("int cuInit(int) { return 0; } int cuDeviceGetCount(int* n) { return 3; }", False),
    ('#include <cstdlib>\nint cuInit(int) { abort(); } int cuDeviceGetCount(int*) { return 0; }', False),
    # The probe itself is not watched.
    ('#include <cstdlib>\nint cuInit(int) { return getenv("CUDA_INJECTION64_PATH") != nullptr; } '
     "int cuDeviceGetCount(int* n) { *n = 1; return 0; }", True),
    (None, False),
])
def test_the_probe(monkeypatch, tmp_path, source, there):
    """It calls the driver in a process of its own."""
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    monkeypatch.setenv(gpu.INJECTION, "anything")
    if source is None:
        (tmp_path / "libcuda.so.1").write_text("not a library")
    else:
        file = tmp_path / "driver.cpp"
        includes, _, rest = source.rpartition("\n")
        file.write_text(f'{includes}\nextern "C" {{ {rest} }}\n')
        subprocess.run([compiler() or "g++", "-w", "-shared", "-fPIC", file, "-o", tmp_path / "libcuda.so.1"],
                       check=True)
    assert gpu.is_there() is there


# -- the library in a process -----------------------------------------------------------------------------------

@pytest.fixture
def stand_in(tmp_path):
    built = tmp_path / "libcupti.so"
    subprocess.run([compiler() or "g++", "-shared", "-fPIC", HERE / "cupti_stand_in.cpp", "-o", built], check=True)
    return str(built)


def started(*arguments: str, environment: dict[str, str]) -> dict[str, object]:
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", START, library(), *arguments], capture_output=True,
                          text=True, env=environment, timeout=60)
    assert done.returncode == 0, done.stderr
    found: dict[str, object] = json.loads(done.stdout)
    return found


@BUILD
@COMPILER
def test_the_driver_loads_it_and_it_watches(stand_in, clean_environment):
    found = started(stand_in, environment=clean_environment | {"XLOGMEM_CHECK_CUPTI": stand_in})
    assert (found["before"], found["after"]) == ([0, "", 0], [1, "", 0])
    assert found["child"] == [0, 1]                         # which has no driver
    assert found["enabled"] > 200                           # once


@BUILD
@COMPILER
def test_another_profiler_has_cupti(stand_in, clean_environment):
    found = started(stand_in, environment=clean_environment | {
        "XLOGMEM_CHECK_CUPTI": stand_in, "CUPTI_RESULT": str(MULTIPLE_SUBSCRIBERS)})
    watching, failure, _ = found["after"]
    assert not watching
    assert "another profiler uses CUPTI" in failure
    assert found["enabled"] == 0


@BUILD
@COMPILER
@pytest.mark.parametrize(("version", "shared", "older", "alone", "called", "watching"), [
    (130200, 0, 0, 0, ["older"], True),                     # which does not share
    (130500, 0, 0, 0, ["shared"], True),                    # a profiler may come, or is there
    (130500, MULTIPLE_SUBSCRIBERS, 0, 0, ["shared", "older"], True),            # the driver cannot
    (130500, MULTIPLE_SUBSCRIBERS, MULTIPLE_SUBSCRIBERS, 0, ["shared", "older", "alone"], True),
    (130500, MULTIPLE_SUBSCRIBERS, MULTIPLE_SUBSCRIBERS, MULTIPLE_SUBSCRIBERS, ["shared", "older", "alone"], False),
])
def test_a_profiler_may_share_cupti(stand_in, clean_environment, tmp_path, version, shared, older, alone, called,
                                    watching):
    log = tmp_path / "log"
    found = started(stand_in, environment=clean_environment | {
        "XLOGMEM_CHECK_CUPTI": stand_in, "CUPTI_VERSION": str(version), "CUPTI_SHARED": str(shared),
        "CUPTI_RESULT": str(older), "CUPTI_ALONE": str(alone), "CUPTI_LOG": str(log),
        "CUPTI_OTHER": "CUPTI for Kineto"})
    assert log.read_text().split() == called
    assert (found["after"][0], found["enabled"] > 200) == (watching, watching)
    assert ("another profiler uses CUPTI in this process (CUPTI for Kineto)" in found["after"][1]) == (not watching)


@BUILD
@COMPILER
def test_cupti_refuses(stand_in, clean_environment):
    found = started(stand_in, environment=clean_environment | {"XLOGMEM_CHECK_CUPTI": stand_in, "CUPTI_RESULT": "7"})
    assert found["after"] == [0, "CUPTI refuses a subscriber: its error 7", 0]


@BUILD
def test_a_library_that_is_not_there(clean_environment):
    found = started(environment=clean_environment | {"XLOGMEM_CHECK_CUPTI": "/nowhere/libcupti.so"})
    watching, failure, _ = found["after"]
    assert not watching
    assert failure.startswith("CUPTI cannot be loaded: /nowhere/libcupti.so")


@BUILD
def test_a_library_that_is_not_cupti(clean_environment):
    found = started(environment=clean_environment | {"XLOGMEM_CHECK_CUPTI": "libc.so.6"})
    assert found["after"] == [0, "libc.so.6 is not CUPTI", 0]
