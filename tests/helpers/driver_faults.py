"""Every driver call of every program of `fault_programs` fails once, with each of five classes of errors.

    python tests/helpers/driver_faults.py [CLASS ...] [--program NAME] [--every N]

Runs on the simulated driver in a process of its own: what a broken context leaves behind stays here, and a crash ends
this process alone.  Prints one line for each class and one at the end; each violation is printed with the program, the
call and the code, and so is the point that was under way when the process ended early.

What has to hold at each point: the operation under which a call fails raises a documented exception or none at all, and
goes well when it is made again; another operation works; and once the program has dropped what it had and frees were
retried, nothing is live, no event is in use, no race was reported and the caller's context is current.  The same where
the program ends at its first exception.  After a sticky error, which every later call returns too, the runtime raises
`DeviceLostError`, and nothing waits for ever.
"""
from __future__ import annotations

import argparse
import contextlib
import faulthandler
import gc
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field

import sim_support
from cuda.bindings import driver as cuda
from fault_programs import PROGRAMS
from fault_world import NBYTES, Ended, World

from xlogmem import DeviceLostError, DeviceRuntime, XlogmemError, _driver, sim, use
from xlogmem.sim.kernels import Kernels, check

CLASSES = {"out of memory": 2, "invalid handle": 400, "invalid value": 1, "capture": 900, "sticky": 700}
SCRATCH = 1 << 16
STICKY_EVERY = 8                            # of these points one in eight: a lost device leaves much behind
PATIENCE = 120                              # seconds for 100 points: a lock was left held
# Calls of the programs themselves: launches, and those that make a capture.
OWN = {"cuLaunchKernel", "cuModuleGetFunction", "cuStreamBeginCapture", "cuStreamEndCapture", "cuGraphDestroy"}
# A free whose stream cannot be identified: the memory "stays allocated until the runtime is destroyed" (xlogmem.h).
MAY_LEAVE = {"c_table": NBYTES}


@dataclass
class Point:
    """One run of a program, in which one driver call fails; without `call`, none does."""

    program: str
    call: str = ""
    nth: int = 0
    code: int = 0
    again: bool = True                      # is the operation made again?
    world: World = field(init=False)
    calls: dict[str, int] = field(init=False)

    def __str__(self) -> str:
        how = "" if self.again else ", where the program ends"
        return f"{self.program}: {self.call} number {self.nth} fails with {self.code}{how}"

    def run(self) -> list[str]:
        """What is wrong."""
        _driver.trim_events()               # so that events are created in each run
        simulator.reset("eager")
        before = simulator.live_bytes()
        world = self.world = World(kernels, scratch, self.again)
        sys.unraisablehook = lambda what: world.broken.append(f"cannot be raised: {what.exc_value!r}")
        if self.code == CLASSES["sticky"]:
            simulator.on_call(self.call, self._lose_device, self.nth)
        elif self.call:
            simulator.fail(self.call, self.nth, self.code)
        self._play()
        for number in range(len(world.runtimes)):
            self._later(world.runtimes[number])
        self._end()
        if not world.lost:
            self._look_for_leaks(before)
        simulator.sticky_error(0)
        return world.broken

    def _lose_device(self) -> None:
        self.world.lost = True
        simulator.sticky_error(self.code)

    def _play(self) -> None:
        try:
            PROGRAMS[self.program](self.world)
        except Ended:
            pass
        except Exception as error:
            # The program's own calls fail too where the device is lost.
            if not (self.world.lost and isinstance(error, XlogmemError)):
                self.world.broken.append(f"undocumented: {error!r}")
            error.__traceback__ = None

    def _later(self, runtime: DeviceRuntime) -> None:
        """A later operation works, or says that the device is lost.  The call may fail as late as here."""
        lost = self.world.lost
        try:
            self._retry(lambda: later_operation(runtime))
        except DeviceLostError:
            pass
        else:
            if lost:
                self.world.broken.append("the device is not lost")

    def _retry(self, operation: Callable[[], object]) -> None:
        for turn in range(2):
            try:
                operation()
                return
            except DeviceLostError:
                if self.world.lost:
                    raise
            except XlogmemError as error:
                if turn or self.world.lost:
                    self.world.broken.append(f"later: {error!r}")

    def _end(self) -> None:
        """What the program had goes; then what a dead runtime leaves would show."""
        world = self.world
        while world.exports:
            world.release(world.exports[-1])
        world.kept.clear()
        gc.collect()
        while world.runtimes:
            self._reap(world.runtimes.pop())
        if world.lost:
            simulator.sticky_error(0)       # for the program's own memory and streams
        while world.endings:
            world.endings.pop()()
        gc.collect()

    def _reap(self, runtime: DeviceRuntime) -> None:
        with contextlib.suppress(DeviceLostError):
            self._retry(runtime.reap_pending)
            if runtime.bytes_outstanding > MAY_LEAVE.get(self.program, 0):
                self.world.broken.append(f"{runtime.bytes_outstanding} bytes of the runtime are outstanding")

    def _look_for_leaks(self, before: int) -> None:
        self.calls = simulator.all_calls()
        races, in_use = simulator.races(), _driver.live_events()[0]
        simulator.reset("eager")
        nbytes = simulator.live_bytes() - before
        left = {"races": races, "events in use": in_use, "bytes": nbytes,
                "another context is current": int(check(cuda.cuCtxGetCurrent())) != int(context)}
        self.world.broken += [f"{what}: {how}" for what, how in left.items() if how]


def later_operation(runtime: DeviceRuntime) -> None:
    block = runtime.allocate(NBYTES)
    with use(runtime.acquire_stream(), write=block, runtime=runtime):
        pass
    block.free()
    runtime.reap_pending()


simulator = sim.install()
context = sim_support.retain()
kernels = Kernels()
scratch = int(check(cuda.cuMemAlloc(SCRATCH)))


def points_of(program: str) -> list[Point]:
    """One for each driver call that the program makes in a run without a failure, each class, and each way to go on."""
    for _ in range(2):                      # the first run also makes what a process makes once
        point = Point(program)
        if broken := point.run():
            raise SystemExit(f"{program} is wrong without a failure: {broken}")
    calls = [(call, nth) for call, count in point.calls.items()
             if call not in OWN for nth in range(1, count + 1)]
    return [Point(program, call, nth, code, again) for code in CLASSES.values()
            for again in ((True, False) if code != CLASSES["sticky"] else (True,)) for call, nth in calls]


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("classes", nargs="*", choices=[[], *CLASSES])
    parser.add_argument("--program", action="append", choices=PROGRAMS)
    parser.add_argument("--every", type=int, default=1, help="run each N-th point")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    programs = options.program or list(PROGRAMS)
    every = [point for program in programs for point in points_of(program)]
    violations = ran = 0
    gc.collect()
    gc.freeze()
    for kind in options.classes or CLASSES:
        points = [point for point in every if point.code == CLASSES[kind]]
        start, raised, before = time.monotonic(), 0, ran
        every_nth = options.every * (STICKY_EVERY if kind == "sticky" else 1)
        for point in points[ran % every_nth::every_nth]:
            if ran % 100 == 0:
                faulthandler.dump_traceback_later(PATIENCE, exit=True)
            print(point, file=sys.stderr, flush=True)               # the last one was under way if the process ends
            for broken in point.run():
                violations += 1
                print(f"{point}: {broken}", flush=True)
            raised += bool(point.world.errors)
            del point.world
            ran += 1
        print(f"{kind}: {ran - before} of {len(points)} points, {raised} raised, "
              f"{time.monotonic() - start:.1f} s", flush=True)
    calls = sum(point.code == CLASSES["sticky"] for point in every)
    print(f"{len(programs)} programs x {calls} driver calls x {len(CLASSES)} classes, made again or not: "
          f"{ran} of {len(every)} points, {violations} violations")
    return bool(violations)


if __name__ == "__main__":
    sys.exit(main())
