"""The oracle: nothing is found where nothing is wrong, something where something is, and what is found shrinks."""
from __future__ import annotations

import gc
import itertools
import json
import sys
import threading
import weakref
from types import SimpleNamespace

import pytest
import xlogmem_selftest as selftest
from click.testing import CliRunner
from cuda.bindings import driver as cuda
from xlogmem_selftest.programs import ACROSS, DEVICES, KINDS, Program
from xlogmem_selftest.steps import STEPS, devices, graphs, windows
from xlogmem_selftest.world import CapturedItem, GraphUse, Window, World, sure

from xlogmem import DeviceRuntime, StreamMisuseError, use
from xlogmem.commands.cli import main

pytestmark = pytest.mark.usefixtures("_context")

IN_THREADS = {"fork"}                       # steps that programs of one thread have not
INTERESTING = ("overlapping_windows", "deferred_frees", "cross_stream_reuses", "elided_waits", "waits", "records")
WITH_LIBRARIES = {"export_to_library", "adopt_array", "use_array"}       # see test_selftest_libraries.py
ACROSS_DEVICES = set(DEVICES)
GPU_CANNOT = {"fail", "situation"}          # there no driver call fails on request
several = pytest.mark.skipif(selftest.peers() < 2, reason="needs two devices with access to each other")


def run(**settings) -> selftest.Report:
    return selftest.run(selftest.Settings(**{"threads": 1, "devices": 1, **settings}))


def test_random_programs_go_right_and_do_what_is_interesting():
    report = run(programs=8 * len(KINDS))
    assert report.failure is None
    assert report.violations == 0
    assert report.programs == 8 * len(KINDS)
    assert report.operations > 50 * report.programs
    assert {name: getattr(report, name) for name in INTERESTING if getattr(report, name) < 40} == {}
    unused = {name for name in STEPS if not report.steps[name]}
    assert unused - IN_THREADS - WITH_LIBRARIES - ACROSS_DEVICES <= (set() if report.simulated else GPU_CANNOT)


def test_several_threads_on_one_runtime_go_right():
    report = run(programs=4, threads=8)
    assert report.failure is None
    assert report.operations > 1000
    assert report.overlapping_windows
    assert report.conflict_waits
    assert report.deferred_frees
    assert not report.simulated or all(report.steps[name] for name in IN_THREADS)


def test_without_a_number_of_threads_there_are_programs_of_one_and_of_many():
    seen = []
    selftest.run(selftest.Settings(programs=6, devices=1), lambda report: seen.append(report.operations))
    steps = [later - earlier for earlier, later in itertools.pairwise(seen)]
    assert max(steps) > 4 * min(steps)      # eight threads take eight times the steps


@pytest.mark.simulator
@pytest.mark.parametrize("seed", range(len(KINDS)))
def test_without_the_recorder_every_kind_of_program_goes_wrong(seed):
    report = run(programs=60, seed=seed, protect=False, shrink=False)
    assert report.violations
    assert report.failure is not None
    assert any("RACE" in text or "USE-AFTER-FREE" in text or "were not what was written" in text
               for text in report.failure.violations)


@several
def test_programs_across_devices_go_right():
    report = run(programs=8 * len(ACROSS), devices=2)
    assert report.failure is None
    assert report.violations == 0
    assert {name: getattr(report, name) for name in INTERESTING if getattr(report, name) < 40} == {}
    assert all(report.steps[name] for name in ACROSS_DEVICES)


@several
def test_several_threads_across_devices_go_right():
    report = run(programs=4, threads=8, devices=2)
    assert report.failure is None
    assert report.overlapping_windows
    assert report.conflict_waits


@several
def test_without_a_number_of_devices_there_are_programs_of_one_and_of_several():
    report = run(programs=12, devices=None)
    assert report.failure is None
    assert any(report.steps[name] for name in ACROSS_DEVICES)
    assert run(programs=4).steps["copy_between"] == 0


@pytest.mark.simulator
@several
@pytest.mark.parametrize("seed", range(len(ACROSS)))
def test_without_the_recorder_every_kind_of_program_across_devices_goes_wrong(seed):
    report = run(programs=60, seed=seed, protect=False, shrink=False, devices=2)
    assert report.failure is not None
    assert report.failure.devices == 2
    assert any("RACE" in text or "USE-AFTER-FREE" in text for text in report.failure.violations)


def test_more_devices_than_there_are_is_refused():
    result = CliRunner().invoke(main, ["selftest", "--devices", str(selftest.peers() + 1)])
    assert result.exit_code == 2
    assert "have access to each other" in result.output


@pytest.mark.simulator
@several
def test_the_command_says_for_how_many_devices_a_program_is():
    command = ["selftest", "--programs", "9", "--threads", "1", "--devices", "2", "--no-recorder"]
    result = CliRunner().invoke(main, command)
    assert result.exit_code == 1
    again = result.stdout.split("again: xlogmem ")[1].split("\n")[0].split()
    assert again[-2:] == ["--devices", "2"]
    assert CliRunner().invoke(main, [*again, "--no-recorder", "--json"]).exit_code == 1
    assert CliRunner().invoke(main, [*again, "--json"]).exit_code == 0


@pytest.mark.simulator
def test_a_failing_program_shrinks_to_a_script_that_fails_again_by_its_seed():
    failure = run(programs=20, protect=False).failure
    program = Program.parse(failure.program)
    assert program.kept is not None
    assert len(program.kept) <= 6
    assert 1 < len(failure.script) < 20
    assert any("launch" in line for line in failure.script)
    again = run(replay=(program,), protect=False, shrink=False)
    assert again.programs == 1
    assert again.violations
    protected = run(replay=(program,))
    assert protected.violations == 0


@pytest.mark.simulator
def test_a_refusal_in_a_capture_is_a_violation_and_shrinks(monkeypatch):
    def refuse(world, recorder, claims, rng, addressed):
        if any(isinstance(claim.item, CapturedItem) for claim in claims):
            raise StreamMisuseError("refused on purpose")
        return registered(world, recorder, claims, rng, addressed)

    registered = windows.register
    monkeypatch.setattr(windows, "register", refuse)
    failure = run(programs=3 * len(KINDS)).failure
    assert "refused, in a capture: refused on purpose" in failure.violations[0]
    kept = Program.parse(failure.program).kept
    assert kept is not None
    assert len(kept) <= 6


@pytest.mark.simulator
def test_a_launch_of_a_graph_that_is_not_recorded_is_found(monkeypatch):
    """The rest of the program is recorded."""
    def launch(world, rng, graph, stream, claims):
        world.ready_for_work(stream)
        sure(cuda.cuGraphLaunch, graph.executable or graph.graph.handle, stream.handle)
        return Window(None, stream, claims, "all")

    monkeypatch.setattr(graphs, "launch", launch)
    failure = run(programs=8 * len(KINDS), shrink=False).failure
    assert any("RACE" in text or "STALE" in text or "USE-AFTER-FREE" in text for text in failure.violations)


@pytest.mark.simulator
@pytest.mark.parametrize("access", ["needs", "gives"])
def test_a_graph_that_has_not_what_was_declared_is_found(monkeypatch, access):
    """Memory that the graph does not know of, or that it only reads."""
    def check(world, capture, graph, uses):
        if access == "needs":
            declared = [*uses, *(GraphUse(item, {}, {0: 0}) for item in world.items if item not in capture.items)]
        else:
            declared = [GraphUse(use.item, {}, {0: 0} if use.item.id in graph.reads else use.gives) for use in uses]
        checked(world, capture, graph, declared)

    checked = graphs.check_uses
    monkeypatch.setattr(graphs, "check_uses", check)
    failure = run(programs=8 * len(KINDS), shrink=False).failure
    assert any("were declared" in text for text in failure.violations)


@pytest.mark.simulator
def test_what_a_step_raises_unasked_is_a_violation(monkeypatch):
    def broken(world, rng):
        raise ZeroDivisionError("broken on purpose")

    monkeypatch.setitem(STEPS, "reap", broken)
    failure = run(programs=20).failure
    assert "ZeroDivisionError: broken on purpose" in failure.violations[0]
    assert len(Program.parse(failure.program).kept) == 1


def test_programs_are_the_same_for_the_same_seed():
    program = Program(7)
    assert [program.step(i) for i in range(50)] == [Program(7).step(i) for i in range(50)]
    shrunk = program.keeping((3, 9))
    assert str(shrunk) == "7:3,9"
    assert Program.parse("7:3,9") == shrunk
    assert Program.parse("7") == program


def test_the_command_prints_one_json_object():
    result = CliRunner().invoke(main, ["selftest", "--programs", "9", "--threads", "1", "--json"])
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert report["programs"] == 9
    assert report["violations"] == 0
    assert set(INTERESTING) | {"operations", "seconds", "failure", "device", "simulated"} <= set(report)


@pytest.mark.simulator
def test_the_command_prints_the_script_and_how_to_run_it_again():
    result = CliRunner().invoke(main, ["selftest", "--programs", "9", "--threads", "1", "--no-recorder"])
    assert result.exit_code == 1
    assert "again: xlogmem selftest --replay " in result.stdout
    replay = result.stdout.split("--replay ")[1].split()[0]
    assert CliRunner().invoke(main, ["selftest", "--replay", replay, "--no-recorder", "--json"]).exit_code == 1
    assert CliRunner().invoke(main, ["selftest", "--replay", replay, "--json"]).exit_code == 0


@pytest.mark.parametrize("text", ["", "x", "1:", "1:2,", "1:a", "-1"])
def test_a_replay_that_is_none_is_refused(text):
    result = CliRunner().invoke(main, ["selftest", f"--replay={text}"])
    assert result.exit_code == 2
    assert "SEED" in result.output


# ---------------------------------------------------------------------------------------------- what programs wait for
class SlowGarbage:
    """Garbage that holds up the collector."""

    def __init__(self, reached: threading.Event, go_on: threading.Event) -> None:
        self.itself, self.reached, self.go_on = self, reached, go_on

    def __del__(self) -> None:
        self.reached.set()
        self.go_on.wait(30)


def test_a_recorder_that_is_dropped_in_a_cycle_is_gone_afterwards(monkeypatch):
    """A collector in another thread has found it, and has not dropped it yet."""
    reached, go_on = threading.Event(), threading.Event()
    collector = threading.Thread(target=gc.collect)

    def collect() -> None:
        if not reached.is_set():
            SlowGarbage(reached, go_on)
            collector.start()
            assert reached.wait(30)
        else:
            go_on.set()
            collector.join()

    runtime = DeviceRuntime()
    block = runtime.allocate(256)
    window = SimpleNamespace(recorder=use(runtime.acquire_stream(), write=block))
    window.recorder.preflight()
    monkeypatch.setattr(windows, "gc", SimpleNamespace(collect=collect))
    gc.disable()
    try:
        with pytest.warns(ResourceWarning, match="dropped without being left"):
            windows.drop_in_cycle(window)
        with use(runtime.acquire_stream(), write=block, on_conflict="raise"):
            pass
    finally:
        go_on.set()
        collector.join()
        gc.enable()


@pytest.mark.simulator
@several
@pytest.mark.parametrize("refused", [False, True])
def test_a_visitor_has_ended_before_its_stream_may_be_destroyed(monkeypatch, refused):
    """A program of several threads destroys streams that the runtime of the visit knows, too."""
    visitors, left = [], []

    def visitor(*arguments, **options):
        runtime = DeviceRuntime(*arguments, **options)
        visitors.append(weakref.ref(runtime))
        return runtime

    def refuse(*_, **__):
        raise StreamMisuseError("refused on purpose")

    def end_registration(world, stream, successor):
        if sys._getframe(1).f_code.co_name == "visit":
            left.append(visitors[-1]() is not None)
        usual(world, stream, successor)

    usual = World.end_registration
    monkeypatch.setattr(World, "end_registration", end_registration)
    monkeypatch.setattr(devices, "DeviceRuntime", visitor)
    if refused:
        monkeypatch.setattr(devices, "launch_on", refuse)
    run(replay=tuple(Program(seed, devices=2) for seed in range(1, 200, len(ACROSS))))
    assert left
    assert not any(left)
