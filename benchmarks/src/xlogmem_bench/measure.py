"""The measurement: the candidates of a case in turn in one process, and the same in several processes.

Clocks of hosts change by a factor of two within seconds, and memory lies elsewhere in each process.  So within a
process candidates take turns of a millisecond, in another order each time, and the *reference* of the case (the floor;
without one, the first candidate) is run again and again between them: each figure has one of the reference from just
before and just after it, and their ratio holds whatever the clock does.  The whole is done in several processes, as
pyperf does, minutes apart for the same case, so that the spread includes what differs between them.  As in pyperf,
calls are doubled until a turn is long enough, which is the warm-up too.

`python -m xlogmem_bench` is such a process: it reads an `Order` and writes a line of JSON for each event; `processes`
starts it and reads them.
"""
from __future__ import annotations

import gc
import json
import random
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import IO, Any

from xlogmem.commands.start import start_driver
from xlogmem_bench.allocators import FLOOR
from xlogmem_bench.cases import FAMILIES, Candidate, Case, built
from xlogmem_bench.machine import facts
from xlogmem_bench.settings import ALL_OF_IT, Order, Settings, selected
from xlogmem_bench.world import Failed, World

__all__ = ["Entrant", "main", "measure", "take_turns", "work"]

BESIDE = 0.008                              # seconds after which the reference is run again
Say = Callable[[dict[str, Any]], None]


def calibrated(candidate: Candidate, turn_ns: float) -> tuple[int, float]:
    """Calls that fill a turn, and the seconds that a turn takes, with what goes before it.  The first call does not
    count: it takes what the later ones have, such as a chunk of a pool, or a library's modules."""
    candidate.before()
    candidate.run(1)
    calls = 1
    while True:
        started = time.perf_counter()
        candidate.before()
        took = candidate.run(calls)
        if took >= turn_ns or calls >= candidate.most:
            return calls, time.perf_counter() - started
        calls = min(candidate.most, max(2 * calls, min(10 * calls, int(calls * turn_ns / max(took, 1)))))


class Entrant:
    """A candidate that takes part: the ns of each of its turns, and beside each the ns of the reference around it."""

    def __init__(self, candidate: Candidate, calls: int, seconds: float, per: int) -> None:
        self.candidate, self.calls, self.seconds, self.per = candidate, calls, seconds, per
        self.values: list[float] = []
        self.beside: list[float] = []

    def turn(self, world: World) -> float:
        self.candidate.before()
        world.synchronize()                                     # earlier candidates' work is not in this turn
        return self.candidate.run(self.calls) / self.calls / self.per


def take_turns(entrants: list[Entrant], reference: Entrant, world: World, dropped: Callable[[Entrant, Exception], None]
               ) -> None:
    """One turn of each entrant, in this order; the reference before the first, after the last, and in between."""
    figures = [reference.turn(world)]
    waiting: list[Entrant] = []
    gap, since = max(BESIDE, 4 * reference.seconds), time.perf_counter()
    for place, entrant in enumerate(entrants, 1):
        try:
            entrant.values.append(entrant.turn(world))
            waiting.append(entrant)
        except Exception as error:                              # another library may raise anything
            dropped(entrant, error)
        if waiting and (place == len(entrants) or time.perf_counter() > since + gap):
            figures.append(reference.turn(world))
            for one in waiting:
                one.beside.append((figures[-2] + figures[-1]) / 2)
            waiting.clear()
            since = time.perf_counter()
    reference.values.append(statistics.fmean(figures))
    reference.beside.append(reference.values[-1])


def measure(case: Case, world: World, settings: Settings, banned: list[tuple[str, str]], say: Say, process: int = 0
            ) -> None:
    """All candidates of a case, turn by turn; each turn of each process has its own order."""
    def failed(name: str, error: BaseException) -> None:
        say(failure(case.id, name, f"{type(error).__name__}: {error}"[:300]))

    def dropped(entrant: Entrant, error: Exception) -> None:
        failed(entrant.candidate.name, error)
        entrants.remove(entrant)

    if case.needs > world.free:
        say(failure(case.id, ALL_OF_IT,
                    f"needs {case.needs >> 30} GiB of free device memory, there are {world.free >> 30}"))
        return
    with built(case, world, failed) as candidates:
        tried = [candidate for candidate in candidates if (case.id, candidate.name) not in banned]
        entrants = list(entered(case, tried, world, settings, say, failed))
        if not entrants:
            return
        reference = next((one for one in entrants if one.candidate.role == FLOOR), entrants[0])
        entrants.remove(reference)
        say({"kind": "turns", "case": case.id})
        a_turn = reference.seconds + sum(entrant.seconds for entrant in entrants)
        shuffle = random.Random(f"{case.id} {process}").shuffle
        with no_collections():
            for _ in range(max(1, min(settings.turns, int(settings.case_seconds / max(a_turn, 1e-9))))):
                order = list(entrants)
                shuffle(order)
                take_turns(order, reference, world, dropped)
        for entrant in (reference, *entrants):
            say(row_of(entrant, case, reference))


def entered(case: Case, candidates: list[Candidate], world: World, settings: Settings, say: Say, failed: Failed
            ) -> Iterator[Entrant]:
    """The candidates that run, calibrated."""
    for candidate in candidates:
        say({"kind": "trying", "case": case.id, "candidate": candidate.name})
        try:
            entrant = Entrant(candidate, *calibrated(candidate, 1e6 * settings.turn_ms), case.per)
            world.synchronize()
        except Exception as error:
            failed(candidate.name, error)
        else:
            yield entrant


@contextmanager
def no_collections() -> Iterator[None]:
    """Without Python's garbage collector, which would be in some turns and not in others."""
    collecting = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


def failure(case: str, candidate: str, text: str) -> dict[str, Any]:
    return {"kind": "failure", "case": case, "candidate": candidate, "text": text}


def row_of(entrant: Entrant, case: Case, reference: Entrant) -> dict[str, Any]:
    candidate = entrant.candidate
    return {"kind": "row", "case": case.id, "candidate": candidate.name, "language": candidate.language,
            "role": candidate.role, "note": candidate.note, "calls": entrant.calls,
            "reference": reference.candidate.name, "values": [round(value, 2) for value in entrant.values],
            "beside": [round(value, 2) for value in entrant.beside]}


def work(order: Order, say: Say) -> None:
    """Carry out an order in this process."""
    cases = {case.id: case for case in selected(order.settings)}
    wanted = {name for case in order.cases for name in FAMILIES[cases[case].family]}
    world = World(order.settings.room, order.settings.without, order.settings.program_seconds, wanted)
    gc.collect()
    gc.freeze()                                                 # collections before each case skip the modules
    try:
        say({"kind": "facts", **facts(world)})
        for name in order.cases:
            say({"kind": "case", "case": name})
            began = time.perf_counter()
            try:
                measure(cases[name], world, order.settings, order.banned, say, order.process)
            except Exception as error:                          # the other cases go on
                say(failure(name, ALL_OF_IT, f"{type(error).__name__}: {error}"[:300]))
            say({"kind": "took", "case": name, "seconds": time.perf_counter() - began})
    finally:
        gc.unfreeze()
        world.close()


def main(orders: IO[str], answers: IO[str]) -> None:
    """One process of a run: an order comes in, events go out."""
    start_driver()

    def say(event: dict[str, Any]) -> None:
        answers.write(json.dumps(event) + "\n")
        answers.flush()

    work(Order.load(orders.read()), say)
    say({"kind": "done"})
