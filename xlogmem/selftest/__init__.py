"""``xlogmem selftest``: random programs whose every use, free and reuse of memory is checked.

A program allocates, launches with and without a recorder, frees, registers and drops streams, captures graphs and lets
driver calls fail, in an order drawn from its seed; it keeps its own side of the rules, so what goes wrong is xlogmem's.
On the simulated driver every pair of accesses is judged by happens-before, whatever the schedule, and other "threads"
get in at the gaps of driver calls, so that a failing program can be repeated and shrinks to a few steps.  On a GPU the
blocks carry patterns of their generation, kernels check what they read, and delays stretch the windows.

`programs` says what a program is, `world` is what it works on, `steps` is what it may do; here programs are run, in one
thread or in several, and shrunk.
"""
from __future__ import annotations

import faulthandler
import gc
import re
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from xlogmem._driver import device_name, is_simulated
from xlogmem.errors import BlockingStreamWarning
from xlogmem.selftest.programs import Program
from xlogmem.selftest.steps import STEPS, leave
from xlogmem.selftest.world import NothingToDo, World

__all__ = ["COUNTED", "Failure", "Report", "Settings", "run"]

COUNTED = ("overlapping_windows", "deferred_frees", "cross_stream_reuses", "elided_waits", "waits", "records",
           "refusals")

PATIENCE = 120                              # seconds that a program may take before it counts as a deadlock
MANY = 8                                    # threads, unless somebody says how many
NESTED = 3                                  # gaps within gaps
TRIES = 400                                 # programs run to shrink one


@dataclass(frozen=True)
class Settings:
    """What to run.

    Attributes
    ----------
    programs : int or None
        How many, None: as many as fit into the time.
    seconds : float or None
        After which no new program is begun, None: no limit.
    length : int
        Steps of a program.
    threads : int or None
        That run one program together, on one runtime; 1 repeats exactly and shrinks.  None: programs of one thread
        and of eight, for about as long.
    seed : int
        Of the first program; the next ones count up.
    policy : str or None
        See `DeviceRuntime`; None draws one for each program.
    protect : bool
        Whether launches are recorded.  Without, this has to fail: a check of the check.
    shrink : bool
        Whether a program that goes wrong is shrunk.
    replay : tuple of Program
        Run these instead.
    """

    programs: int | None = 200
    seconds: float | None = None
    length: int = 160
    threads: int | None = None
    seed: int = 0
    policy: str | None = None
    protect: bool = True
    shrink: bool = True
    replay: tuple[Program, ...] = ()


@dataclass(frozen=True)
class Failure:
    """A program that went wrong: what was seen, and the script that shows it."""

    program: str
    threads: int
    kind: str
    violations: list[str]
    script: list[str]


@dataclass
class Report:
    """What a run did.

    Attributes
    ----------
    overlapping_windows : int
        Opened while another was open on the same block.
    deferred_frees : int
        Asked for inside a window.
    cross_stream_reuses : int
        Allocations that came back at an address last freed on another stream.
    elided_waits : int
        Left out because the order held already, or an event was there.
    refusals : int
        Errors that a program has to reckon with.
    steps : dict
        How often each step was taken.
    """

    device: str
    simulated: bool
    threads: int | None
    programs: int = 0
    operations: int = 0
    violations: int = 0
    seconds: float = 0.0
    overlapping_windows: int = 0
    deferred_frees: int = 0
    cross_stream_reuses: int = 0
    elided_waits: int = 0
    waits: int = 0
    records: int = 0
    refusals: int = 0
    steps: dict[str, int] = field(default_factory=dict)
    failure: Failure | None = None

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def add(self, world: World) -> None:
        self.programs += 1
        self.operations += world.happened["operations"]
        self.violations += len(world.violations)
        for name in COUNTED:
            setattr(self, name, getattr(self, name) + world.happened[name])
        for name in STEPS:
            self.steps[name] = self.steps.get(name, 0) + world.happened[name]


def run(settings: Settings, progress: Callable[[Report], None] = lambda report: None) -> Report:
    """Run programs until one goes wrong; that one is shrunk.

    Parameters
    ----------
    settings : Settings
        What to run.
    progress : callable
        Is called with the report so far before each program.

    Notes
    -----
    Not thread-safe: it resets the simulated driver and needs the process for itself.
    """
    started = time.perf_counter()
    report = Report(device_name(0), is_simulated(), settings.threads)
    automatic = gc.isenabled()
    gc.collect()
    gc.freeze()                             # what is there already is not looked at again and again
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)            # dropped recorders
            warnings.simplefilter("ignore", BlockingStreamWarning)
            _run(settings, report, started, progress)
    finally:
        gc.unfreeze()
        if automatic:
            gc.enable()
    report.seconds = time.perf_counter() - started
    return report


def _run(settings: Settings, report: Report, started: float, progress: Callable[[Report], None]) -> None:
    for program in _programs(settings, report):
        progress(report)
        world = _play(program, settings)
        report.add(world)
        report.seconds = time.perf_counter() - started
        if world.violations:
            report.failure = _explain(program, world, settings)
            return


def _programs(settings: Settings, report: Report) -> Iterator[Program]:
    """Without a number of threads, whichever of one and several has had less time is next."""
    yield from settings.replay
    spent = dict.fromkeys((1, MANY) if settings.threads is None else (settings.threads,), 0.0)
    begun = dict.fromkeys(spent, 0)
    while not settings.replay and (settings.programs is None or report.programs < settings.programs) and (
            settings.seconds is None or report.seconds < settings.seconds):
        threads = min(spent, key=lambda threads: spent[threads])
        before = time.perf_counter()
        yield Program(settings.seed + begun[threads], settings.length * threads, threads)
        spent[threads] += time.perf_counter() - before
        begun[threads] += 1


def _simulator() -> Any:
    if not is_simulated():
        return None
    from xlogmem import sim

    return sim.simulator()


def _play(program: Program, settings: Settings, script: bool = False) -> World:
    """Run one program from its beginning to its end."""
    faulthandler.dump_traceback_later(PATIENCE, exit=True, file=sys.__stderr__ or 2)
    if program.threads == 1:
        gc.disable()                        # only where the program says so
    else:
        gc.enable()
    world = World(program.kind, program.seed, _simulator(), protect=settings.protect, threads=program.threads,
                  policy=settings.policy)
    if script:
        world.script = [f"# program {program}, {program.kind.name}, policy {world.policy}"]
    if program.threads == 1:
        _run_steps(world, program, program.numbers)
    else:
        _run_threads(world, program)
    world.end(leave)
    faulthandler.cancel_dump_traceback_later()
    return world


def _run_steps(world: World, program: Program, numbers: tuple[int, ...]) -> None:
    with world.context():
        for number in numbers:
            if world.violations:
                return
            _take_step(world, program, number)
            if not world.depth and program.threads == 1:
                while world.to_destroy:
                    world.destroy(world.to_destroy.pop())


def _run_threads(world: World, program: Program) -> None:
    """Each thread takes its share of the steps, on the same runtime, streams and blocks."""
    count = program.threads
    start = threading.Barrier(count)

    def work(index: int) -> None:
        start.wait()
        try:
            _run_steps(world, program, program.numbers[index::count])
        except BaseException as error:
            world.surprise(error)

    threads = [threading.Thread(target=work, args=(index,), name=f"selftest {index}") for index in range(count)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)


def _take_step(world: World, program: Program, number: int) -> None:
    """In its turn, or armed for a gap: then it runs inside somebody else's call, or never."""
    step = program.step(number)
    if step.gap is None or world.simulator is None:
        _perform(world, step.name, step.draws)
        return
    where, occasion, when = step.gap

    def inside() -> None:
        if world.depth >= NESTED or world.over:
            return
        world.depth += 1
        world.say(f"# {when} {where}:")
        try:
            _perform(world, step.name, step.draws)
        finally:
            world.depth -= 1

    if where in ("resource", "owner"):
        world.armed[where].append(inside)
    else:
        world.simulator.on_call(where, inside, occasion, when)


def _perform(world: World, name: str, draws: Any) -> None:
    try:
        STEPS[name](world, draws)
    except NothingToDo:
        return
    except Exception as error:
        if not world.excuses(error):
            world.surprise(error)
        else:
            world.say(f"# refused: {error}")
            with world.lock:
                world.happened["refusals"] += 1
    with world.lock:
        world.happened["operations"] += 1
        world.happened[name] += 1


# ---------------------------------------------------------------------------------------------- shrinking
def _signature(violation: str) -> str:
    return re.sub(r"[\d]+", "", violation.split(":")[0])


def _explain(program: Program, world: World, settings: Settings) -> Failure:
    """The shortest program found that goes wrong in the same way, and what it does."""
    violations = world.violations
    script = ["# several threads: the schedule is not repeated exactly"]
    if program.threads == 1 and settings.shrink:
        program = _shrink(program, _signature(violations[0]), settings)
        again = _play(program, settings, script=True)
        script = ["# it did not happen again"]
        if again.violations:
            violations, script = again.violations, again.script or []
    return Failure(str(program), program.threads, program.kind.name, violations[:20], script)


def _shrink(program: Program, signature: str, settings: Settings) -> Program:
    """Leave out steps, many at a time and then fewer, while the program goes wrong in the same way."""
    tries = TRIES

    def fails(numbers: tuple[int, ...]) -> bool:
        nonlocal tries
        tries -= 1
        violations = _play(program.keeping(numbers), settings).violations
        return any(_signature(violation) == signature for violation in violations)

    kept = program.numbers
    size = max(1, len(kept) // 2)
    while tries > 0:
        smaller = kept
        at = 0
        while at < len(smaller) and tries > 0:
            candidate = smaller[:at] + smaller[at + size:]
            if candidate and fails(candidate):
                smaller = candidate
            else:
                at += size
        if size == 1 and smaller == kept:
            break
        kept = smaller
        size = max(1, min(size // 2, len(kept) // 2))
    return program.keeping(kept)
