"""What the check sets for CuPy: a folder of compiled kernels that is this user's alone, and who may allocate."""
from __future__ import annotations

import os
import stat
from dataclasses import replace
from types import SimpleNamespace

import pytest

from xlogmem.check.findings import Access, Finding, Stream
from xlogmem.check.frames import Frame, place_in
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
def test_only_an_allocator_that_the_check_does_not_see_is_noted(monkeypatch, allocator, is_noted):
    monkeypatch.setattr(noted, "_notes", {})
    taken = []
    module = SimpleNamespace(cuda=SimpleNamespace(set_allocator=taken.append, MemoryPool=MemoryPool,
                                                  MemoryAsyncPool=type("Async", (), {})))
    ours = of("xlogmem.check")
    cupy_allocator.use(module, ours)
    module.cuda.set_allocator(allocator)
    assert bool(noted.notes()) == is_noted
    assert taken[-1] is (ours if isinstance(getattr(allocator, "__self__", None), MemoryPool) else allocator)


OURS = Frame(cupy.__file__, 1, "Array.__del__")


def test_a_place_is_never_a_line_of_xlogmem():
    library = Frame("/usr/lib/python3/site-packages/pluggy/_callers.py", 3, "call")
    program = Frame("/home/me/program.py", 6, "test_race")
    assert place_in((OURS,)) is None
    assert place_in((OURS, library)) == library
    assert place_in((OURS, library, program)) == program
    assert place_in((Frame(files.__file__, 1, "save"),)) is None


def test_a_repair_names_the_memory_where_a_free_is_in_no_line_of_the_program():

    accesses = [Access("launch", role, Stream(2, "made")) for role in ("read", "write")]
    finding = Finding("race", "read/free", True, *accesses, 0, 8, 0, 8, 1)
    place = Frame("/home/me/program.py", 6, "test_race")
    free = replace(finding.second, name="cudaFreeAsync", role="free", stack=(OURS,))
    said = repair_of(replace(finding, second=free, allocated=(place,)))
    assert said.startswith("before cudaFreeAsync of the memory that was allocated at /home/me/program.py:6, ")
