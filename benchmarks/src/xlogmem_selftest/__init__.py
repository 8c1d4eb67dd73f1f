"""``xlogmem selftest``: random programs whose every use, free and reuse of memory is checked.

A program allocates, launches with and without a recorder, frees, registers and drops streams, captures graphs and lets
driver calls fail, in an order drawn from its seed; it keeps its own side of the rules, so what goes wrong is xlogmem's.
On the simulated driver every pair of accesses is judged by happens-before, whatever the schedule, and other "threads"
get in at the gaps of driver calls, so that a failing program can be repeated and shrinks to a few steps.  On a GPU the
blocks carry patterns of their generation, kernels check what they read, and delays stretch the windows.

`programs` says what a program is, `world` is what it works on, `steps` and `situations` are what it may do, `running`
plays one in one thread or in several, `shrinking` shortens one that goes wrong; here many are run, and counted.
"""
from __future__ import annotations

import gc
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from xlogmem._devices import can_access_peer
from xlogmem._driver import device_count, device_name, is_simulated
from xlogmem.errors import BlockingStreamWarning
from xlogmem_selftest.libraries import installed
from xlogmem_selftest.programs import Program
from xlogmem_selftest.running import play
from xlogmem_selftest.shrinking import shrink, signature
from xlogmem_selftest.steps import STEPS
from xlogmem_selftest.world import World

__all__ = ["COUNTED", "EXCHANGED", "Failure", "Report", "Settings", "peers", "run"]

COUNTED = ("overlapping_windows", "conflict_waits", "deferred_frees", "cross_stream_reuses", "elided_waits", "waits",
           "records", "cached", "refusals")

EXCHANGED = ("exported", "imported", "allocated")          # with a library: see `Report.exchanges`
MANY = 8                                    # threads, unless the settings have a number
MOST = 8                                    # devices, unless the settings have a number
RARER = 3                                   # how much less time programs across devices have than others


@dataclass(frozen=True)
class Settings:
    """Settings of a run.

    Attributes
    ----------
    programs : int or None
        Number of programs, None: as many as fit into the time.
    seconds : float or None
        Time after which no new program is begun, None: no limit.
    length : int
        Steps of a program.
    threads : int or None
        Threads that run one program together, on one runtime; 1 repeats exactly and shrinks.  None: programs of one
        thread and of eight, for about as long.
    seed : int
        Seed of the first program; the next ones count up.
    policy : str or None
        See `DeviceRuntime`; None draws one for each program.
    protect : bool
        Record the launches.  Without this a run has to fail: a check of the check.
    shrink : bool
        Shrink a program that goes wrong.
    replay : tuple of Program
        Programs to run instead.
    libraries : tuple of str
        Other libraries (see `xlogmem_selftest.libraries`) that take part, if they work here: then the programs are of
        one thread, and exchange memory with them.
    devices : int or None
        Devices of programs across devices, which alone are run then; 1: no program is across devices.  None: where the
        process sees several devices with access to each other, some programs are across some of them.
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
    libraries: tuple[str, ...] = ()
    devices: int | None = None


@dataclass(frozen=True)
class Failure:
    """A program that went wrong: what was seen, and the script that shows it."""

    program: str
    threads: int
    kind: str
    violations: list[str]
    script: list[str]
    devices: int = 1


@dataclass
class Report:
    """Counts and findings of a run.

    Attributes
    ----------
    overlapping_windows : int
        Windows opened while another was open on the same block.
    conflict_waits : int
        Waits on the host for a conflicting window of another thread.
    deferred_frees : int
        Frees requested inside a window.
    cross_stream_reuses : int
        Allocations that came back at an address last freed on another stream.
    elided_waits : int
        Waits left out because the order held already, or an event was there.
    cached : int
        Allocations of memory that the same stream had freed, from its cache.
    refusals : int
        Errors that a program has to reckon with.
    steps : dict
        Number of times that each step was taken.
    exchanges : dict
        For each library that took part: the numbers of blocks exported to it, of its arrays imported or adopted, and
        of those that it allocated from xlogmem.
    missing : dict
        Reasons why the other libraries that were chosen did not take part.
    """

    device: str
    simulated: bool
    threads: int | None
    programs: int = 0
    operations: int = 0
    violations: int = 0
    seconds: float = 0.0
    overlapping_windows: int = 0
    conflict_waits: int = 0
    deferred_frees: int = 0
    cross_stream_reuses: int = 0
    elided_waits: int = 0
    waits: int = 0
    records: int = 0
    cached: int = 0
    refusals: int = 0
    steps: dict[str, int] = field(default_factory=dict)
    exchanges: dict[str, dict[str, int]] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
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
        for name, counts in self.exchanges.items():
            for what in EXCHANGED:
                counts[what] = counts.get(what, 0) + world.happened[f"{name} {what}"]


def run(settings: Settings, progress: Callable[[Report], None] = lambda report: None) -> Report:
    """Run programs until one goes wrong; that one is shrunk.

    Parameters
    ----------
    settings : Settings
        Settings of the run.
    progress : callable
        Function called with the report so far before each program.

    Notes
    -----
    Not thread-safe: it resets the simulated driver and needs the process for itself.
    """
    started = time.perf_counter()
    report = Report(device_name(0), is_simulated(), settings.threads)
    libraries, report.missing = installed(settings.libraries)
    report.exchanges = {name: dict.fromkeys(EXCHANGED, 0) for name in libraries}
    automatic = gc.isenabled()
    gc.collect()
    gc.freeze()                             # what is there already need not be traversed again and again
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)            # dropped recorders
            warnings.simplefilter("ignore", BlockingStreamWarning)
            warnings.filterwarnings("ignore", "untracked='adopt'", RuntimeWarning)      # the programs order it
            if libraries or not settings.libraries:
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
    """Without a number of threads, one or several, and without one of devices, those of one or across several:
    whichever have had less time are next."""
    libraries = tuple(report.exchanges)
    yield from (replace(program, libraries=libraries) for program in settings.replay)
    threads_of = (1,) if libraries else (1, MANY) if settings.threads is None else (settings.threads,)
    across = 1 if libraries else peers() if settings.devices is None else settings.devices
    kinds_of = {1} if across == 1 else {2} if settings.devices else {1, 2}
    spent = {(threads, kind): 0.0 for kind in sorted(kinds_of) for threads in threads_of}
    begun = dict.fromkeys(spent, 0)
    while not settings.replay and (settings.programs is None or report.programs < settings.programs) and (
            settings.seconds is None or report.seconds < settings.seconds):
        chosen = min(spent, key=lambda chosen: spent[chosen])
        threads, kind = chosen
        seed = settings.seed + begun[chosen]
        devices = 1 if kind == 1 else settings.devices or 2 + seed // 5 % (min(across, MOST) - 1)
        before = time.perf_counter()
        yield Program(seed, settings.length * threads, threads, libraries=libraries, devices=devices)
        spent[chosen] += (time.perf_counter() - before) * (RARER if kind > 1 else 1)
        begun[chosen] += 1


def peers() -> int:
    """The number of devices, from the first on, that all have access to each other's memory."""
    count = 1
    while count < device_count() and all(
            can_access_peer(count, other) and can_access_peer(other, count) for other in range(count)):
        count += 1
    return count


def _play(program: Program, settings: Settings, script: bool = False) -> World:
    return play(program, protect=settings.protect, policy=settings.policy, script=script)


def _explain(program: Program, world: World, settings: Settings) -> Failure:
    """The shortest program found that goes wrong in the same way, and what it does."""
    violations = world.violations
    script = ["# several threads: the schedule is not repeated exactly"]
    if program.threads == 1 and settings.shrink:
        program = shrink(program, signature(violations[0]), lambda shorter: _play(shorter, settings).violations)
        again = _play(program, settings, script=True)
        script = ["# it did not happen again"]
        if again.violations:
            violations, script = again.violations, again.script or []
    return Failure(str(program), program.threads, program.kind.name, violations[:20], script, program.devices)
