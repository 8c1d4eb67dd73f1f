"""How it is measured: the candidates of a case turn by turn in one process, the same in several processes.

Clocks of hosts change by a factor of two within seconds, and memory lies elsewhere in each process.  So within a
process candidates take turns of a millisecond, in another order each time, and the *reference* of the case (the floor;
where there is none, whoever comes first) is run again and again between them: each figure has one of the reference
from just before and just after it, and their ratio holds whatever the clock does.  The whole is done in several
processes, as pyperf does, minutes apart for the same case, so that the spread has in it what differs between them.  As
in pyperf, calls are doubled until a turn is long enough, which is the warm-up too.

`python -m xlogmem.bench` is such a process: it reads an `Order` and writes a line of JSON for each thing that happened.
"""
from __future__ import annotations

import gc
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any

from xlogmem.bench.allocators import FLOOR, World
from xlogmem.bench.cases import FAMILIES, Candidate, Case, all_cases, built

__all__ = ["LATE", "Order", "Settings", "facts", "run", "selected", "work"]

QUICK = {"turns": 5, "processes": 1, "case_seconds": 1.0}
LATE = "the time was up (--seconds)"
BESIDE = 0.008                              # seconds after which the reference is run again
COMMAND = [sys.executable, "-m", "xlogmem.bench"]


@dataclass(frozen=True)
class Settings:
    """A case whose turns would take longer than `case_seconds` in a process has fewer of them, one at least.  `scale`
    is for tests, see `all_cases`; `room` too, see `World`."""

    families: tuple[str, ...] = tuple(FAMILIES)
    quick: bool = False
    only: tuple[str, ...] = ()              # ids; none: all of the families
    logs: tuple[str, ...] = ()              # files of RMM's logging adaptor
    without: tuple[str, ...] = ()           # neighbours that are left out
    turns: int = 7
    turn_ms: float = 1.0
    processes: int = 5                      # fewer, if another one would not end in time
    case_seconds: float = 1.5
    program_seconds: float = 2.0            # after which a program in C++ is given up
    candidate_seconds: float = 60.0         # of silence, after which a process is ended: somebody hangs
    seconds: float = 300.0                  # for all of it; what is not reached is named
    scale: int = 1
    room: int | None = None


@dataclass
class Order:
    """What one process is to do: the cases by id, but not these candidates of them (which ended a process before)."""

    settings: Settings
    cases: list[str]
    banned: list[tuple[str, str]] = field(default_factory=list)
    process: int = 0

    def dump(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def load(cls, text: str) -> Order:
        raw = json.loads(text)
        given: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value
                                 for name, value in raw["settings"].items()}
        settings = Settings(**given)
        return cls(settings, raw["cases"], [tuple(pair) for pair in raw["banned"]], raw["process"])


def selected(settings: Settings) -> list[Case]:
    return [case for case in all_cases(settings.scale, settings.logs)
            if case.family in settings.families and (case.id in settings.only or not settings.only)
            and (case.quick or not settings.quick or settings.only)]


# ---------------------------------------------------------------------------------------------- in the process
def calibrated(candidate: Candidate, turn_ns: float) -> tuple[int, float]:
    """Calls that fill a turn, and the seconds that it takes, with what goes before it."""
    calls = 1
    while True:
        started = time.perf_counter()
        candidate.before()
        took = candidate.run(calls)
        if took >= turn_ns or calls >= candidate.most:
            return calls, time.perf_counter() - started
        calls = min(candidate.most, max(2 * calls, min(10 * calls, int(calls * turn_ns / max(took, 1)))))


class Entrant:
    """A candidate that takes part: ns of each of its turns, and beside each what the reference took around it."""

    def __init__(self, candidate: Candidate, calls: int, seconds: float, per: int) -> None:
        self.candidate, self.calls, self.seconds, self.per = candidate, calls, seconds, per
        self.values: list[float] = []
        self.beside: list[float] = []

    def turn(self, world: World) -> float:
        self.candidate.before()
        world.synchronize()                                     # nobody pays for what another has queued
        return self.candidate.run(self.calls) / self.calls / self.per


def take_turns(entrants: list[Entrant], reference: Entrant, world: World, dropped: Callable[[Entrant, Exception], None]
               ) -> None:
    """One turn of everybody, in this order; the reference before the first, after the last, and in between."""
    figures = [reference.turn(world)]
    waiting: list[Entrant] = []
    gap, since = max(BESIDE, 4 * reference.seconds), time.perf_counter()
    for place, entrant in enumerate(entrants, 1):
        try:
            entrant.values.append(entrant.turn(world))
            waiting.append(entrant)
        except Exception as error:                              # of a neighbour, whatever it is
            dropped(entrant, error)
        if waiting and (place == len(entrants) or time.perf_counter() > since + gap):
            figures.append(reference.turn(world))
            for one in waiting:
                one.beside.append((figures[-2] + figures[-1]) / 2)
            waiting.clear()
            since = time.perf_counter()
    reference.values.append(statistics.fmean(figures))
    reference.beside.append(reference.values[-1])


def measure(case: Case, world: World, settings: Settings, banned: list[tuple[str, str]],
            say: Callable[[dict[str, Any]], None], process: int = 0) -> None:
    """All candidates of a case, turn by turn, in an order that each turn of each process has for itself."""
    def failed(name: str, error: BaseException) -> None:
        say({"kind": "failure", "case": case.id, "candidate": name, "text": f"{type(error).__name__}: {error}"[:300]})

    def dropped(entrant: Entrant, error: Exception) -> None:
        failed(entrant.candidate.name, error)
        entrants.remove(entrant)

    if case.needs > world.free:
        say({"kind": "failure", "case": case.id, "candidate": "all of it",
             "text": f"needs {case.needs >> 30} GiB of free device memory, there are {world.free >> 30}"})
        return
    with built(case, world, failed) as candidates:
        entrants: list[Entrant] = []
        for candidate in candidates:
            if (case.id, candidate.name) in banned:
                continue
            say({"kind": "trying", "case": case.id, "candidate": candidate.name})
            try:
                entrants.append(Entrant(candidate, *calibrated(candidate, 1e6 * settings.turn_ms), case.per))
                world.synchronize()
            except Exception as error:
                failed(candidate.name, error)
        if not entrants:
            return
        reference = next((one for one in entrants if one.candidate.role == FLOOR), entrants[0])
        entrants.remove(reference)
        say({"kind": "turns", "case": case.id})
        a_turn = reference.seconds + sum(entrant.seconds for entrant in entrants)
        shuffle = random.Random(f"{case.id} {process}").shuffle
        collecting = gc.isenabled()
        gc.collect()
        gc.disable()
        try:
            for _ in range(max(1, min(settings.turns, int(settings.case_seconds / max(a_turn, 1e-9))))):
                order = list(entrants)
                shuffle(order)
                take_turns(order, reference, world, dropped)
        finally:
            if collecting:
                gc.enable()
        for entrant in (reference, *entrants):
            candidate = entrant.candidate
            say({"kind": "row", "case": case.id, "candidate": candidate.name, "language": candidate.language,
                 "role": candidate.role, "note": candidate.note, "calls": entrant.calls,
                 "reference": reference.candidate.name, "values": [round(value, 2) for value in entrant.values],
                 "beside": [round(value, 2) for value in entrant.beside]})


def work(order: Order, say: Callable[[dict[str, Any]], None]) -> None:
    """Carry out an order in this process."""
    cases = {case.id: case for case in selected(order.settings)}
    wanted = {name for case in order.cases for name in FAMILIES[cases[case].family]}
    world = World(order.settings.room, order.settings.without, order.settings.program_seconds, wanted)
    gc.collect()
    gc.freeze()                                                 # modules need not be looked at before each case
    try:
        say({"kind": "facts", **facts(world)})
        for name in order.cases:
            say({"kind": "case", "case": name})
            began = time.perf_counter()
            try:
                measure(cases[name], world, order.settings, order.banned, say, order.process)
            except Exception as error:                          # the others go on
                say({"kind": "failure", "case": name, "candidate": "all of it",
                     "text": f"{type(error).__name__}: {error}"[:300]})
            say({"kind": "took", "case": name, "seconds": time.perf_counter() - began})
    finally:
        gc.unfreeze()
        world.close()


def facts(world: World) -> dict[str, Any]:
    """The machine, the versions and who is here."""
    import xlogmem
    from xlogmem import _driver
    from xlogmem.bench import _loops

    return {
        "device": _driver.device_name(0), "simulated": world.simulated,
        "driver": ".".join(map(str, _driver.driver_version())), "host": _processor(), "cores": os.cpu_count(),
        "system": f"{platform.system()} {platform.release()}", "python": platform.python_version(),
        "xlogmem": xlogmem.__version__, "commit": _commit(), "build": _driver.BUILD, "compiler": _loops.COMPILER,
        "empty_call_ns": _empty_call(), "found": world.found, "missing": world.missing,
    }


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _commit() -> str | None:
    """Of the source that runs, if it runs from one; XLOGMEM_COMMIT knows better, where the source was copied."""
    root = Path(__file__).parent.parent.parent
    if (given := os.environ.get("XLOGMEM_COMMIT")) or not (root / ".git").exists():
        return given
    try:
        run = subprocess.run(["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"],
                             capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return run.stdout.strip() or None


def _empty_call() -> float:
    """What the loop in Python costs by itself, ns per call: it is in every figure from Python."""
    from xlogmem.bench.cases import timed

    return round(min(timed(lambda: None)(10_000) for _ in range(5)) / 10_000, 1)


# ---------------------------------------------------------------------------------------------- around the processes
def run(settings: Settings, heard: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """Measure in fresh processes; `heard` is told everything as it happens.  Returns the raw results.

    Whoever failed once is left out of the processes after that one.  The last processes are not begun if they would not
    end in time."""
    names = [case.id for case in selected(settings)]
    raw: dict[str, Any] = {"facts": None, "rows": {}, "failures": [], "spent": {}, "processes": 0}
    banned: list[tuple[str, str]] = []
    started = time.time()
    longest = 0.
    for process in range(settings.processes):
        began = time.time()
        if process and began + longest > started + settings.seconds:
            break
        if not _one_process(settings, process, names, banned, started + settings.seconds, raw, heard):
            break
        raw["processes"] += 1
        longest = max(longest, time.time() - began)
    raw["seconds"] = round(time.time() - started, 1)
    return raw


def _one_process(settings: Settings, process: int, names: list[str], banned: list[tuple[str, str]], until: float,
                 raw: dict[str, Any], heard: Callable[[dict[str, Any]], None]) -> bool:
    """All cases once; another process goes on where one died.  False if the time was up.  `names` loses the cases, and
    `banned` gets the candidates, that no process is to try again."""
    left = list(names)
    while left:
        at, trying = None, None
        for event in _child(Order(settings, left, banned, process), until):
            heard({"process": process, **event})
            if event["kind"] == "facts":
                raw["facts"] = raw["facts"] or {name: value for name, value in event.items() if name != "kind"}
            elif event["kind"] == "case":
                at, trying = event["case"], None
            elif event["kind"] == "trying":
                trying = event["candidate"]
            elif event["kind"] == "turns":
                trying = None                                       # from here on it may be anybody
            elif event["kind"] == "took":
                raw["spent"][event["case"]] = raw["spent"].get(event["case"], 0.) + event["seconds"]
            elif event["kind"] == "row":
                row = raw["rows"].setdefault((event["case"], event["candidate"], event["language"]),
                                             {**event, "values": {}, "beside": {}})
                if row["reference"] == event["reference"]:          # else that failed in this process
                    row["values"][process], row["beside"][process] = event["values"], event["beside"]
            elif event["kind"] == "failure":
                who = event["case"], event["candidate"]
                if who not in banned:
                    raw["failures"].append({"case": who[0], "candidate": who[1], "text": event["text"]})
                    banned.append(who)
            elif event["kind"] == "late":
                if process == 0:                    # else they were measured, in fewer processes
                    raw["failures"] += [{"case": name, "candidate": "all of it", "text": event["text"]}
                                        for name in (left[left.index(at):] if at else left)]
                return False
            elif event["kind"] == "died":
                if at is None:
                    raise RuntimeError(f"a benchmark process did not start: {event['text']}")
                raw["failures"].append({"case": at, "candidate": trying or "all of it", "text": event["text"]})
                left = left[left.index(at) + (trying is None):]
                if trying:
                    banned.append((at, trying))
                else:
                    names.remove(at)
            elif event["kind"] == "done":
                left = []
    return True


def _child(order: Order, until: float) -> Iterator[dict[str, Any]]:
    """The events of one process, then that it is done or died, or that the time was up."""
    with tempfile.TemporaryFile("w+") as complaints, subprocess.Popen(
            COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=complaints,
            text=True, env=os.environ | {"XLOGMEM_SIM_QUIET": "1"}) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        heard = time.time()

        def watch() -> None:
            while process.poll() is None:
                if time.time() > min(until, heard + order.settings.candidate_seconds):
                    process.kill()
                time.sleep(.2)

        threading.Thread(target=watch, daemon=True).start()
        try:
            with suppress(BrokenPipeError):                     # it ended before
                process.stdin.write(order.dump())
                process.stdin.close()
            finished = False
            for line in process.stdout:
                heard = time.time()
                if line.startswith('{"kind"'):                  # neighbours may print too
                    event = json.loads(line)
                    finished = event["kind"] == "done"
                    yield event
            process.wait()
        finally:
            process.kill()
        if not finished and time.time() > until:
            yield {"kind": "late", "text": LATE}
        elif not finished and time.time() > heard + order.settings.candidate_seconds:
            yield {"kind": "died", "text": f"nothing was heard of it for {order.settings.candidate_seconds:.0f} s"}
        elif not finished:
            complaints.seek(0)
            last = complaints.read().strip().splitlines()[-1:] or ["no message"]
            yield {"kind": "died", "text": f"the process ended with {process.returncode}: {last[0][:200]}"}


def main(orders: IO[str], answers: IO[str]) -> None:
    """A process of `run`."""
    from xlogmem.cli import start_driver

    start_driver()

    def say(event: dict[str, Any]) -> None:
        answers.write(json.dumps(event) + "\n")
        answers.flush()

    work(Order.load(orders.read()), say)
    say({"kind": "done"})
