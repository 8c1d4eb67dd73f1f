"""Calls of the C table while a Python exception is under way, as a finalizer makes them: it is still set afterwards.

A tensor may be dropped between the call that raised and the interpreter's look at what it raised.
"""
from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import sysconfig

import pytest
import torch_stand_in
from c_table import ENVIRONMENT, SIZE, VOID, Error, Hold, functions
from engine_traces import compiler
from places import HELPERS, ROOT

from xlogmem import (
    DeviceMemoryResource,
    DeviceRuntime,
    DirectMemoryResource,
    DriverError,
    GuardResourceAdaptor,
    LimitingResourceAdaptor,
    PoolMemoryResource,
    TrackingResourceAdaptor,
    record_history,
)

pytestmark = pytest.mark.skipif(compiler() is None, reason="no C++ compiler here")


class Python(DeviceMemoryResource):
    """Memory of another resource, by way of Python."""

    order = "host"

    def __init__(self, fails: bool = False) -> None:
        super().__init__()
        self.fails, self.upstream = fails, DirectMemoryResource()

    def allocate(self, nbytes: int, stream: int) -> int:
        if self.fails:
            raise ValueError("refused")
        return self.upstream.allocate(nbytes, stream)

    def deallocate(self, ptr: int, nbytes: int, stream: int) -> None:
        self.upstream.deallocate(ptr, nbytes, stream)


@pytest.fixture(scope="module")
def callers(tmp_path_factory):
    """C++ that makes the calls: ctypes itself looks for exceptions after each of its own."""
    library = tmp_path_factory.mktemp("under-way") / "under_way.so"
    subprocess.run([compiler() or "g++", "-std=c++17", "-O1", "-shared", "-fPIC",
                    f"-I{sysconfig.get_paths()['include']}", f"-I{ROOT / 'xlogmem/include'}",
                    ROOT / "tests/helpers/under_way.cpp", "-o", library], check=True)
    return ctypes.PyDLL(str(library))


@pytest.fixture(params=[pytest.param(True, marks=pytest.mark.with_gil, id="with-gil"),
                        pytest.param(False, id="without-gil")])
def caller(callers, request):
    """Calls a function of the table, and says whether the exception was kept."""
    def call(name, *arguments):
        return bool(getattr(callers, name)(ctypes.byref(functions), int(request.param), *arguments))

    return call


def allocated(caller, hold, nbytes=64):
    """The address, 0 where the call failed, and whether the exception was kept."""
    ptr, error, failed = VOID(), Error(), ctypes.c_int()
    kept = caller("allocate", VOID(hold.runtime), SIZE(nbytes), VOID(), ctypes.byref(ptr), ctypes.byref(error),
                  ctypes.byref(failed))
    return ptr.value or 0, kept


RESOURCES = {
    "stacks": lambda: TrackingResourceAdaptor(DirectMemoryResource(), depth=4),
    "guard": lambda: GuardResourceAdaptor(DirectMemoryResource()),
    "python": Python,
    "limit": lambda: LimitingResourceAdaptor(PoolMemoryResource(), 1 << 20),
}


@pytest.mark.parametrize("resource", RESOURCES.values(), ids=RESOURCES)
def test_every_function_keeps_it(caller, resource):
    hold = Hold(DeviceRuntime(resource=resource()))
    ptr, kept = allocated(caller, hold)
    assert (ptr != 0, kept) == (True, True)
    assert caller("record_use", VOID(hold.runtime), VOID(ptr), VOID(), ctypes.byref(Error()))
    assert caller("deallocate", VOID(hold.runtime), VOID(ptr), VOID())
    hold.close()


def test_a_free_that_fails_keeps_it(caller):
    runtime = DeviceRuntime(resource=TrackingResourceAdaptor(DirectMemoryResource(), depth=4))
    hold = Hold(runtime)
    assert caller("deallocate", VOID(hold.runtime), VOID(0xdead00), VOID())
    with pytest.raises(DriverError, match="no block"):
        runtime.reap_pending()
    hold.close()


def test_a_failure_of_python_keeps_it(caller):
    """What is refused has a text, which is made with the GIL, and an exception of its own, which is dropped."""
    hold = Hold(DeviceRuntime(resource=Python(fails=True)))
    assert allocated(caller, hold) == (0, True)
    hold.close()


def test_a_recording_keeps_it(caller, tmp_path):
    """A stack that is new goes to its file."""
    hold = Hold(DeviceRuntime())
    with record_history(tmp_path / "a.xlog", stacks="all"):
        ptr, kept = allocated(caller, hold)
        assert kept
        assert caller("deallocate", VOID(hold.runtime), VOID(ptr), VOID())
    hold.close()


def test_a_runtime_that_is_out_of_memory_keeps_it(caller):
    """It waits for the frees of the others that share its budget."""
    budget = LimitingResourceAdaptor(DirectMemoryResource(), 1 << 20)
    runtimes = [DeviceRuntime(resource=budget) for _ in range(2)]
    holds = [Hold(runtime) for runtime in runtimes]
    ptr, kept = allocated(caller, holds[0], 1 << 20)
    assert kept
    assert allocated(caller, holds[1]) == (0, True)
    assert caller("deallocate", VOID(holds[0].runtime), VOID(ptr), VOID())
    for hold in holds:
        hold.close()


@pytest.mark.simulator
def test_pytorchs_first_allocation_keeps_it(callers, tmp_path):
    """It makes the runtime; in a process of its own, where there is none yet."""
    program = f"""
import ctypes, sys
from pathlib import Path
import torch_stand_in
from xlogmem import sim
driver = sim.install()
torch_stand_in.install(Path(sys.argv[1]))
from xlogmem.allocators import _pluggable
callers, mine = ctypes.PyDLL({callers._name!r}), ctypes.CDLL(_pluggable.__file__)
ptr = ctypes.c_void_p()
for with_gil in True, False:
    assert callers.allocate_for_torch(mine.xlogmem_torch_allocate, with_gil, ctypes.c_size_t(64), ctypes.byref(ptr))
    assert ptr.value
"""
    path = os.pathsep.join(filter(None, [str(HELPERS), os.environ.get("PYTHONPATH")]))
    done = subprocess.run([sys.executable, "-c", program, torch_stand_in.build(tmp_path)], capture_output=True,
                          text=True, timeout=100, cwd=tmp_path, env=os.environ | ENVIRONMENT | {"PYTHONPATH": path})
    assert done.returncode == 0, done.stderr
