"""What the check sets for CuPy: a folder of compiled kernels that is this user's alone, and who may allocate."""
from __future__ import annotations

import asyncio
import os
import stat
import subprocess
import sys
import threading
import unittest
from dataclasses import replace
from types import SimpleNamespace

import _pytest.python
import pytest

from xlogmem.check.findings import Access, Finding, Stream
from xlogmem.check.frames import Frame, caller_in, place_in
from xlogmem.check.neighbours import cupy, cupy_allocator, noted
from xlogmem.check.report import repair_of
from xlogmem.observe.history import files


def test_the_folder_of_kernels_is_this_users_alone(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = cupy.cache()
    assert path == str(tmp_path / "cache" / "xlogmem-check-cupy")
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o700
    assert cupy.cache() == path


@pytest.mark.parametrize("lay", [lambda path: path.mkdir(mode=0o777) or path.chmod(0o777), lambda path: path.touch(),
                                 lambda path: path.symlink_to("/tmp")])
def test_a_folder_that_others_may_enter_is_not_used(tmp_path, monkeypatch, lay):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    lay(tmp_path / "xlogmem-check-cupy")
    path = cupy.cache()
    assert not path.startswith(str(tmp_path / "xlogmem-check-cupy"))
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o700
    os.rmdir(path)


class MemoryPool:
    def malloc(self, size):
        return size



def of(module):
    def allocate(size):
        return size

    allocate.__module__ = module
    return allocate



@pytest.mark.parametrize(("allocator", "is_noted"), [
    (None, False), (MemoryPool().malloc, False), (of("xlogmem.allocators.cupy"), False),
    (of("rmm.allocators.cupy"), False),
    (of("cupy.cuda.memory"), False), (of("__main__"), True), (of("rmmlike"), True)])
@pytest.mark.parametrize("setter", ["set_allocator", "using_allocator"])
def test_only_an_allocator_that_the_check_does_not_see_is_noted(monkeypatch, setter, allocator, is_noted):
    monkeypatch.setattr(noted, "_notes", {})
    taken = []
    module = SimpleNamespace(cuda=SimpleNamespace(set_allocator=taken.append, using_allocator=taken.append,
                                                  MemoryPool=MemoryPool, MemoryAsyncPool=type("Async", (), {})))
    ours = of("xlogmem.check")
    cupy_allocator.use(module, ours)
    getattr(module.cuda, setter)(allocator)
    assert bool(noted.notes()) == is_noted
    assert taken[-1] is (ours if isinstance(getattr(allocator, "__self__", None), MemoryPool) else allocator)


OURS = Frame(cupy.__file__, 1, "Array.__del__")


def test_a_place_is_never_a_line_of_xlogmem():
    library = Frame("/usr/lib/python3/site-packages/dask/core.py", 3, "call")
    program = Frame("/home/me/program.py", 6, "test_race")
    assert place_in((OURS,)) is None
    assert place_in((OURS, library)) == library
    assert place_in((OURS, library, program)) == program
    assert place_in((Frame(files.__file__, 1, "save"),)) is None


@pytest.mark.parametrize(("module", "name"), [
    (_pytest.python, "pytest"), (unittest.case, "unittest"), (threading, "threading"), (asyncio.events, "asyncio")])
def test_a_caller_of_a_function_that_has_ended_is_no_place(module, name):
    """... of what is dropped then: the line of the call is a line of no interest."""
    caller, program = Frame(module.__file__, 3, "call"), Frame("/home/me/program.py", 6, "test_race")
    library = Frame("/usr/lib/python3/site-packages/dask/threading/core.py", 3, "call")
    assert (caller_in((OURS, caller)), place_in((OURS, caller))) == (name, None)
    assert (caller_in((caller, program)), place_in((caller, program))) == ("", program)
    assert (caller_in((library, caller)), place_in((library, caller))) == ("", library)


def test_a_repair_names_the_memory_where_a_free_is_in_no_line_of_the_program():

    accesses = [Access("launch", role, Stream(2, "made")) for role in ("read", "write")]
    finding = Finding("race", "read/free", True, *accesses, 0, 8, 0, 8, 1)
    place = Frame("/home/me/program.py", 6, "test_race")
    free = replace(finding.second, name="cudaFreeAsync", role="free", stack=(OURS,))
    said = repair_of(replace(finding, second=free, allocated=(place,)))
    assert said.startswith("before cudaFreeAsync of the memory that was allocated at /home/me/program.py:6, ")


ENDED = """
import cupy
from cuda.bindings import driver as cuda
cupy.zeros(1)
stream = cuda.cuStreamCreate(1)[1]
cupy.cuda.ExternalStream(int(stream)).use()
array = cupy.zeros(4)
cuda.cuStreamSynchronize(stream)
cuda.cuStreamDestroy(stream)
cupy.cuda.Stream.null.use()
if later:
    del array
"""
DROPPED = """
import cupy
stream = cupy.cuda.Stream(non_blocking=True)
with stream:
    array, out = cupy.ones(1 << 20, cupy.float32), cupy.empty(1 << 20, cupy.float32)
    stream.begin_capture()
    cupy.multiply(array, 2, out=out)
    if dropped:
        del array
    graph = stream.end_capture()
    graph.launch(stream)
stream.synchronize()
"""


def checked(program: str, clean_environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    pytest.importorskip("cupy")
    return subprocess.run([sys.executable, "-m", "xlogmem", "check", "--no-gpu", "--", sys.executable, "-c", program],
                          capture_output=True, text=True, env=clean_environment, timeout=120)


@pytest.mark.simulator
@pytest.mark.parametrize("later", [True, False])
def test_an_array_outlives_a_stream_of_another_library(clean_environment, later):
    run = checked(f"later = {later}{ENDED}", clean_environment)
    assert run.returncode == 0, run.stderr
    assert "Traceback" not in run.stderr
    assert "0 certain, 0 possible" in run.stderr


@pytest.mark.simulator
def test_an_array_that_is_dropped_in_a_capture_is_freed_after_it(clean_environment):
    run = checked(f"dropped = True{DROPPED}", clean_environment)
    assert run.returncode == 1, run.stderr
    assert "CERTAIN stale-graph" in run.stderr or "CERTAIN use-after-free" in run.stderr
    assert "Traceback" not in run.stderr
    right = checked(f"dropped = False{DROPPED}", clean_environment)
    assert right.returncode == 0, right.stderr
