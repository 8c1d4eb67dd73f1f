"""The process exits while threads of C++ are inside launches: nothing crashes, hangs or is printed."""
from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from children import variables
from gil import bindings_without_gil
from native_calls import compile_module
from places import HELPERS

from xlogmem import _driver

pytestmark = [pytest.mark.simulator, bindings_without_gil]       # a thread that wants it is ended at the exit
EXITS = 25 if _driver.BUILD == "release" else 5         # of each test; builds with checks are slow

PROGRAM = """
import sys
sys.path.insert(0, sys.argv[1])
import native_exits, xlogmem
from cuda.bindings import driver as cuda
runtime = xlogmem.DeviceRuntime()
cuda.cuCtxSetCurrent(cuda.cuDevicePrimaryCtxRetain(0)[1])
xlogmem.enable_peer_access(0, 1)
own = [runtime.acquire_stream() for _ in range(2)]
foreign = [int(cuda.cuStreamCreate(1)[1]) for _ in range(2)]
assert native_exits.start(runtime, *(stream.handle for stream in own), *foreign)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    made = tmp_path_factory.mktemp("exits")
    compile_module(HELPERS / "native_exits.cpp", made / "native_exits.so", "-pthread", "-Wall", "-Wextra", "-Werror")
    return made


@pytest.mark.parametrize("lane", range(2))              # tests run side by side, the processes of one do not
def test_launches_go_on_while_the_process_exits(folder, lane):
    """In each process at other places, by chance."""
    for _ in range(EXITS):
        done = subprocess.run([sys.executable, "-c", PROGRAM, folder], capture_output=True, text=True, timeout=100,
                              env=variables(XLOGMEM_SIMULATE=1, devices=2))
        assert (done.returncode, done.stdout, done.stderr) == (0, "went on\n", "")
