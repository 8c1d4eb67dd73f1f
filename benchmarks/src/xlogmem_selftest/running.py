"""One program from its beginning to its end: in one thread, in several, or in the gaps of driver calls."""
from __future__ import annotations

import faulthandler
import gc
import sys
import threading
from random import Random
from typing import Any

from xlogmem._driver import is_simulated
from xlogmem_selftest.libraries import loaded
from xlogmem_selftest.programs import Program
from xlogmem_selftest.steps import STEPS
from xlogmem_selftest.steps.windows import finish_window
from xlogmem_selftest.world import NothingToDo, World, end

__all__ = ["play"]

PATIENCE = 120                              # seconds that a program may take before it counts as a deadlock
NESTED = 3                                  # gaps within gaps


def play(program: Program, *, protect: bool = True, policy: str | None = None, script: bool = False) -> World:
    """Run a program; the world that it returns has counts, violations and, if wanted, the script."""
    faulthandler.dump_traceback_later(PATIENCE, exit=True, file=sys.__stderr__ or 2)
    if program.threads == 1:
        gc.disable()                        # only where the program says so
    else:
        gc.enable()
    world = World(program.kind, program.seed, simulator(), protect=protect, threads=program.threads, policy=policy,
                  libraries={name: loaded(name) for name in program.libraries}, devices=program.devices)
    if script:
        world.script = [f"# program {program}, {program.kind.name}, policy {world.policy}"]
    if program.threads == 1:
        run_steps(world, program, program.numbers)
    else:
        run_threads(world, program)
    end(world, finish_window)
    faulthandler.cancel_dump_traceback_later()
    return world


def simulator() -> Any:
    if not is_simulated():
        return None
    from xlogmem import sim

    return sim.simulator()


def run_steps(world: World, program: Program, numbers: tuple[int, ...]) -> None:
    with world.context():
        for number in numbers:
            if world.violations:
                return
            take_step(world, program, number)
            if not world.depth and program.threads == 1:
                while world.to_destroy:
                    world.destroy(world.to_destroy.pop())


def run_threads(world: World, program: Program) -> None:
    """Each thread takes its share of the steps, on the same runtime, streams and blocks."""
    count = program.threads
    start = threading.Barrier(count)

    def work(index: int) -> None:
        start.wait()
        try:
            run_steps(world, program, program.numbers[index::count])
            close_own_windows(world)
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


def close_own_windows(world: World) -> None:
    """The end of a thread: others may wait for what it has opened and none of them has closed."""
    with world.lock:
        own = [window for window in world.windows if window.thread is threading.current_thread()]
        world.windows[:] = [window for window in world.windows if window not in own]
    for window in own:
        try:
            finish_window(world, window, "commit")
        except Exception as error:
            if not world.excuses(error):
                world.surprise(error)


def take_step(world: World, program: Program, number: int) -> None:
    """In its turn, or armed for a gap: then it runs inside another call, or never."""
    step = program.step(number)
    if step.gap is None or world.simulator is None:
        perform(world, step.name, step.draws)
        return
    where, occasion, when = step.gap

    def inside() -> None:
        if world.depth >= NESTED or world.over:
            return
        world.depth += 1
        world.say(f"# {when} {where}:")
        try:
            perform(world, step.name, step.draws)
        finally:
            world.depth -= 1

    if where in ("resource", "owner"):
        world.armed[where].append(inside)
    else:
        world.simulator.on_call(where, inside, occasion, when)


def perform(world: World, name: str, draws: Random) -> None:
    try:
        with world.context(world.draw_device(draws)):   # whichever device is current
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
