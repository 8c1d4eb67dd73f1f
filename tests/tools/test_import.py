"""What importing costs and touches, and what happens without a driver.  Fresh processes."""
from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from ctypes.util import find_library
from pathlib import Path

import pytest
from children import variables
from places import ROOT
from which_driver import SIMULATED

import xlogmem
from xlogmem._base.variables import VARIABLES, warn_of_unknown


def python(program: str, **environment: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, timeout=100,
                          env=variables(**environment))


def test_import_touches_no_driver_and_no_other_library():
    run = python("""
import sys, xlogmem
with open("/proc/self/maps") as maps:
    loaded = maps.read()
assert "libcuda.so" not in loaded and "_simcuda" not in loaded, loaded
for name in ("rmm", "cupy", "torch", "numba", "cuda.core", "numpy", "click", "rich"):
    assert name not in sys.modules, name
from xlogmem import _driver, sim
assert not sim.installed()
""")
    assert run.returncode == 0, run.stderr


def test_import_is_light():
    """It brings cuda.bindings and a little of the standard library, and nothing else."""
    run = python("""
import sys, cuda.bindings.cydriver
before = set(sys.modules)
import xlogmem
came = set(sys.modules) - before
others = {name for name in came if name.partition(".")[0] != "xlogmem" and not name.startswith("_cython_")}
others = {name.partition(".")[0] for name in others}
assert others <= sys.stdlib_module_names, others - sys.stdlib_module_names
assert len(others) < 14, others                         # of 300: what is not needed is imported later
late = {"asyncio", "ctypes", "inspect", "json", "logging", "multiprocessing", "subprocess", "traceback", "uuid"}
assert not late & came, came
parts = {f"xlogmem.{part}" for part in ("_devices", "allocators", "commands", "cudf", "observe.history", "rmm",
                                              "sim")}
assert not parts & came, parts & came
""")
    assert run.returncode == 0, run.stderr


@pytest.mark.simulator
@pytest.mark.skipif(find_library("cuda") is not None, reason="there is a driver here")
def test_no_driver_is_one_clear_error_and_not_the_end():
    run = python("""
import xlogmem
for _ in range(2):
    try:
        xlogmem.get_runtime()
    except xlogmem.DriverNotFoundError as error:
        for word in ("libcuda.so.1", "`xlogmem check --no-gpu program.py`", "XLOGMEM_SIMULATE=1"):
            assert word in str(error), word
    else:
        raise SystemExit("a runtime without a driver")
from xlogmem import sim
sim.install()
assert xlogmem.get_runtime().allocate(64).nbytes == 64
""", XLOGMEM_SIMULATE="0")
    assert run.returncode == 0, run.stderr


@pytest.mark.simulator
@pytest.mark.parametrize("settings", [{"version": 11080}, {"devices": 0}])
def test_a_driver_that_is_too_old_or_fails_has_the_same_advice(settings):
    run = python("import xlogmem; xlogmem.get_runtime()", XLOGMEM_SIMULATE="1", **settings)
    assert run.returncode == 1
    for words in ("DriverNotFoundError", "`xlogmem check --no-gpu program.py`", "XLOGMEM_SIMULATE=1"):
        assert words in run.stderr, words


@pytest.mark.simulator
def test_the_environment_selects_the_simulator_loudly():
    run = python("import xlogmem; xlogmem.get_runtime(); assert xlogmem.is_simulated()",
                 XLOGMEM_SIMULATE="1", quiet=False)
    assert run.returncode == 0, run.stderr
    assert run.stderr.count("SIMULATED") == 1


@pytest.mark.simulator
def test_an_old_driver_is_refused():
    run = python("import xlogmem; xlogmem.get_runtime()", XLOGMEM_SIMULATE="1", version=11080)
    assert run.returncode == 1
    assert "supports CUDA 11.8; xlogmem needs 12.0 or later" in run.stderr


@pytest.mark.parametrize(("variable", "value"), [("XLOGMEM_RESOURCE", "warp"), ("XLOGMEM_POLICY", "hasty")])
def test_settings_that_make_no_sense_are_named(variable, value):
    run = python("import xlogmem; xlogmem.get_runtime()", XLOGMEM_SIMULATE="1" if SIMULATED else "0",
                 **{variable: value})
    assert run.returncode == 1
    assert value in run.stderr


@pytest.mark.promise(77)
def test_the_exit_is_silent():
    """Blocks, windows and runtimes that are alive at the end make no driver call and print nothing."""
    run = python("""
import xlogmem
runtime = xlogmem.get_runtime()
own = xlogmem.DeviceRuntime()
stream = own.acquire_stream()
blocks = [runtime.allocate(64), own.allocate(64, stream)]
recorder = xlogmem.use(stream, read=blocks[1])
recorder.preflight()
recorder.cancel()
cycle = [blocks]; cycle.append(cycle)
""", XLOGMEM_SIMULATE="1" if SIMULATED else "0")
    assert (run.returncode, run.stdout, run.stderr) == (0, "", "")


@pytest.mark.parametrize("missing", ["cuda", "cuda.bindings"])
def test_without_cuda_bindings_it_says_what_to_install(missing):
    run = python(f"""
import sys
sys.modules[{missing!r}] = None
import xlogmem
""")
    assert run.returncode == 1
    assert run.stderr.splitlines()[-1].startswith("ModuleNotFoundError: xlogmem calls the driver through cuda-bindings")
    assert "pip install cuda-bindings, of the CUDA version" in run.stderr


def test_source_that_is_not_built_says_so(tmp_path):
    """A Python that is started in a checkout finds the source first."""
    source = Path(xlogmem.__file__).parent
    shutil.copytree(source, tmp_path / "xlogmem", ignore=lambda folder, names: [
        name for name in names if not (Path(folder) / name).is_dir() and not name.endswith(".py")])
    run = subprocess.run([sys.executable, "-c", "import xlogmem"], capture_output=True, text=True, cwd=tmp_path,
                         timeout=60, env=os.environ | {"PYTHONPATH": "", "PYTHONSAFEPATH": ""}, check=False)
    assert run.returncode == 1
    assert run.stderr.splitlines()[-1] == (
        f"ImportError: {tmp_path} has xlogmem's source, which is not built, and Python looks there before it looks for "
        "an installed xlogmem: start Python in another folder, or build the source in place with `pip install -e .`")


def test_modules_are_attributes():
    """Each module that a program uses by name, without an import of its own; `dir` lists those that are usable here."""
    run = python("""
import sys
import xlogmem
assert "xlogmem.check" not in sys.modules
for name in ("allocators", "check", "history", "nvtx", "sim", "statistics"):
    assert getattr(xlogmem, name).__name__.endswith(name) and name in dir(xlogmem)
sys.modules["rmm"] = sys.modules["cudf"] = None
for name in ("rmm", "cudf"):
    try:
        getattr(xlogmem, name)
    except ImportError as error:
        assert "needs" in str(error), error
    else:
        raise SystemExit(f"{name} was imported")
for name in ("environ", "Any", "TYPE_CHECKING"):
    assert name not in dir(xlogmem)
""")
    assert run.returncode == 0, run.stderr


@pytest.mark.parametrize(("name", "advice"), [
    ("XLOGMEM_RESORCE", r": did you mean XLOGMEM_RESOURCE\?"),
    ("XLOGMEM_SIMULATED", r": did you mean XLOGMEM_SIMULATE\?"),
    ("XLOGMEM_ZZZZZZZZZZZ", r"\. They are XLOGMEM_RESOURCE, XLOGMEM_OPTIONS, ")])
def test_an_unknown_variable_is_named(monkeypatch, name, advice):
    monkeypatch.setenv(name, "pool")
    with pytest.warns(RuntimeWarning, match=f"the environment variable {name} is none of xlogmem's, .*{advice}"):
        warn_of_unknown()


def test_the_page_has_the_table_of_variables():
    page = ROOT / "docs" / "using.md"
    rows = dict(re.findall(r"^\| `(XLOGMEM_\w+)` \| (.+) \|$", page.read_text(), re.M))
    assert rows == VARIABLES


@pytest.mark.simulator
def test_the_simulated_driver_is_there_from_the_import_on():
    """Whatever makes the first call."""
    run = python("""
import xlogmem
from cuda.bindings import driver
assert int(driver.cuInit(0)[0]) == 0 and xlogmem.is_simulated()
""", XLOGMEM_SIMULATE="1")
    assert run.returncode == 0, run.stderr


@pytest.mark.promise(70, 72, 74, 76, 79)
def test_one_runtime_for_each_device():
    run = python("""
import threading, xlogmem
seen, start = [], threading.Barrier(8)
def first():
    start.wait()
    seen.append(xlogmem.get_runtime())
threads = [threading.Thread(target=first) for _ in range(8)]
[t.start() for t in threads]; [t.join() for t in threads]
assert len(seen) == 8 and len({id(r) for r in seen}) == 1 and seen[0] is xlogmem.get_runtime(0)
assert xlogmem.DeviceRuntime() is not seen[0]
for device_id in (16, -1, 10**9):
    try:
        xlogmem.get_runtime(device_id)
    except ValueError as error:
        assert "from 0 to 15" in str(error)
    else:
        raise SystemExit(f"device_id {device_id} was accepted")
try:
    xlogmem.get_runtime(1.5)
except TypeError:
    pass
""", XLOGMEM_SIMULATE="1" if SIMULATED else "0")
    assert run.returncode == 0, run.stderr


def test_a_forked_child_is_refused_and_its_finalizers_are_silent():
    """CUDA cannot be used there, and on an H200 cuMemAllocAsync returns success all the same (W56)."""
    run = python("""
import os, threading, warnings, xlogmem
warnings.simplefilter("ignore")                     # Python's own about forking with threads
runtime = xlogmem.get_runtime()
stream = runtime.acquire_stream()
block, other = runtime.allocate(64, stream), runtime.allocate(64, stream)
recorder = xlogmem.use(stream, read=other)
recorder.preflight()
child = os.fork()
if child == 0:
    refused = 0
    for call in (lambda: runtime.allocate(64), block.free, runtime.reap_pending, lambda: runtime.acquire_stream(),
                 lambda: xlogmem.use(stream, read=block).preflight(), recorder.commit, lambda: xlogmem.DeviceRuntime()):
        try:
            call()
        except xlogmem.XlogmemError as error:
            refused += "forked" in str(error)
    del block, other, recorder
    os._exit(100 + refused)
status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
assert status == 107, status
recorder.commit()
block.free()
runtime.reap_pending()
assert runtime.bytes_outstanding == 64
""", XLOGMEM_SIMULATE="1" if SIMULATED else "0")
    assert run.returncode == 0, run.stderr


def test_a_child_may_start_what_its_parent_only_imported():
    run = python("""
import os, xlogmem
child = os.fork()
if child == 0:
    xlogmem.get_runtime().allocate(64).free()
    os._exit(42)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 42
""", XLOGMEM_SIMULATE="1" if SIMULATED else "0")
    assert run.returncode == 0, run.stderr
