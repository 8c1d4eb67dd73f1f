"""Random programs with other libraries: the selftest's own CuPy on a stand-in, whose copies are the driver's."""
from __future__ import annotations

import contextlib
import gc
import json
import sys

import cupy_with_copies
import pytest
import xlogmem_selftest as selftest
from click.testing import CliRunner
from xlogmem_selftest import libraries
from xlogmem_selftest.programs import Program
from xlogmem_selftest.steps import STEPS
from xlogmem_selftest.steps.exchange import buffer_of
from xlogmem_selftest.steps.libraries import Unordered
from xlogmem_selftest.world import NothingToDo

from xlogmem import allocators
from xlogmem import runtime as runtimes
from xlogmem.commands.cli import main

pytestmark = [pytest.mark.simulator, pytest.mark.with_gil, pytest.mark.usefixtures("_context")]
WITH = {"export_to_library", "adopt_array", "use_array"}


@pytest.fixture
def cupy(monkeypatch, driver):
    """Nothing is enabled, no runtime is the process's own, and no library was loaded before."""
    made = cupy_with_copies.modules()
    for name, module in made.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.delitem(sys.modules, "xlogmem.allocators.cupy", raising=False)
    monkeypatch.delattr(allocators, "cupy", raising=False)
    monkeypatch.setattr(allocators, "_enabled", {})
    monkeypatch.setattr(runtimes, "_runtimes", [None] * runtimes.MAX_DEVICES)
    monkeypatch.setattr(libraries, "_loaded", {})
    yield made["cupy"]
    assert not allocators._enabled
    assert runtimes.existing_runtime(0) is None
    libraries._loaded.clear()
    sys.modules.pop("xlogmem.allocators.cupy", None)
    vars(allocators).pop("cupy", None)
    gc.collect()


def run(**settings) -> selftest.Report:
    return selftest.run(selftest.Settings(**{"libraries": ("cupy",), "programs": 40, **settings}))


def test_memory_is_exchanged_both_ways_without_a_violation(cupy):
    report = run(programs=60)
    assert report.failure is None
    assert report.violations == 0
    assert min(report.exchanges["cupy"][what] for what in selftest.EXCHANGED) > 50
    assert all(report.steps[name] > 50 for name in WITH)
    assert report.missing == {}


def nothing(world, rng):
    raise NothingToDo


@pytest.mark.parametrize(("only", "and_its_use"), [
    ("export_to_library", "allocate"), ("adopt_array", "use"), ("use_array", "use_array")])
def test_without_the_recorder_each_exchange_goes_wrong(cupy, only, and_its_use, monkeypatch):
    """... on its own: other steps are left out."""
    for name in STEPS.keys() - {only, and_its_use}:
        monkeypatch.setitem(STEPS, name, nothing)
    assert run().violations == 0
    failure = run(protect=False, shrink=False).failure
    assert failure is not None
    assert any("RACE" in text or "were not what was written" in text for text in failure.violations)


class Broken(libraries.Cupy):
    """Copies on one stream whatever was named, as a library that does not wait for what it was given."""

    def copy(self, target, to, source, at, nbytes, stream):
        super().copy(target, to, source, at, nbytes, self.streams[0] if hasattr(self, "streams") else stream)


def test_a_library_that_works_elsewhere_is_found_and_the_program_shrinks(cupy, monkeypatch):
    monkeypatch.setitem(libraries.LIBRARIES, "cupy", Broken)
    failure = run().failure
    assert failure.kind == "libraries"
    program = Program.parse(failure.program)
    assert len(program.kept) <= 6
    assert any("cupy" in line for line in failure.script)
    assert run(replay=(program,), shrink=False).violations


@pytest.mark.parametrize("where", ["to the library", "from the library"])
def test_an_exchange_whose_wait_is_dropped_is_found(cupy, where, monkeypatch, driver):
    """The recorder is there: one of its waits is not."""
    if where == "to the library":
        monkeypatch.setattr("xlogmem_selftest.steps.libraries.buffer_of", unordered)
        monkeypatch.setitem(STEPS, "use_array", STEPS["reap"])
    else:
        monkeypatch.setattr("xlogmem_selftest.steps.libraries.use", unrecorded)
        monkeypatch.setitem(STEPS, "export_to_library", STEPS["reap"])
    failure = run(shrink=False).failure
    assert failure is not None
    assert any("RACE" in text or "were not what was written" in text for text in failure.violations)


def unordered(world, item):
    return Unordered(buffer_of(world, item))


def unrecorded(stream, **_):
    return contextlib.nullcontext()


def test_the_command_names_who_took_part_and_who_did_not(cupy, monkeypatch):
    monkeypatch.setitem(sys.modules, "numba.cuda", None)
    arguments = ["selftest", "--programs", "5", "--libraries", "cupy,numba"]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.output
    assert "with cupy: " in result.stdout
    assert "without numba: not installed" in result.stdout
    report = json.loads(CliRunner().invoke(main, [*arguments, "--json"]).stdout)
    assert report["exchanges"].keys() == {"cupy"}
    assert report["missing"] == {"numba": "not installed"}


def test_a_command_whose_libraries_are_all_missing_has_failed(monkeypatch):
    """... for it has tried nothing."""
    monkeypatch.setattr(libraries, "_loaded", {})
    monkeypatch.setitem(sys.modules, "cupy", None)
    result = CliRunner().invoke(main, ["selftest", "--programs", "5", "--libraries", "cupy"])
    assert result.exit_code == 1
    assert "without cupy: not installed" in result.stdout


@pytest.mark.parametrize(("arguments", "said"), [
    (["--libraries", "cupy,jax"], "'jax'"), (["--libraries", "cupy", "--threads", "2"], "one thread")])
def test_wrong_libraries_are_named(arguments, said):
    result = CliRunner().invoke(main, ["selftest", *arguments])
    assert result.exit_code == 2
    assert said in " ".join(result.output.split())


def test_no_library_is_imported_unless_it_was_chosen(monkeypatch):
    for kind in libraries.LIBRARIES.values():
        monkeypatch.setitem(sys.modules, kind.module, None)
    assert selftest.run(selftest.Settings(programs=2, threads=1)).violations == 0
