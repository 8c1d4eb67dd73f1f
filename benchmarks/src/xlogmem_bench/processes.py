"""The processes around `measure`: they are started, listened to, and restarted after a candidate that ends one."""
from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

from xlogmem import sim
from xlogmem_bench.settings import ALL_OF_IT, LATE, Order, Settings, selected

__all__ = ["Run", "run"]

COMMAND = [sys.executable, "-m", "xlogmem_bench"]
Event = dict[str, Any]


def run(settings: Settings, on_event: Callable[[Event], None]) -> dict[str, Any]:
    """Measure in fresh processes; `on_event` gets each event as it arrives.  Returns the raw results.

    A candidate that failed is left out of the later processes.  A process that would not end in time is not begun."""
    progress = Run(settings, on_event)
    started = time.time()
    until = started + settings.seconds
    longest = 0.
    for process in range(settings.processes):
        began = time.time()
        if process and began + longest > until:
            break
        if not progress.one_process(process, until):
            break
        progress.raw["processes"] += 1
        longest = max(longest, time.time() - began)
    progress.raw["seconds"] = round(time.time() - started, 1)
    return progress.raw


class Run:
    """The raw results so far; the cases (`names`) that are still tried, and the candidates (`banned`) that are not."""

    def __init__(self, settings: Settings, on_event: Callable[[Event], None]) -> None:
        self.settings, self.on_event = settings, on_event
        self.names = [case.id for case in selected(settings)]
        self.banned: list[tuple[str, str]] = []
        self.raw: dict[str, Any] = {"facts": None, "rows": {}, "failures": [], "spent": {}, "processes": 0}

    def one_process(self, process: int, until: float) -> bool:
        """All cases once; where a process dies, another one goes on.  False if the time was up."""
        left = list(self.names)
        while left:
            case: str | None = None
            candidate: str | None = None                # None in the turns, where it may be any of them
            for event in _child(Order(self.settings, left, self.banned, process), until):
                self.on_event({"process": process, **event})
                kind = event["kind"]
                if kind in ("case", "trying", "turns"):
                    case, candidate = event["case"], event.get("candidate")
                elif kind == "late":
                    if process == 0:                    # later on the cases were measured, in fewer processes
                        for name in left[left.index(case):] if case else left:
                            self.fail(name, ALL_OF_IT, event["text"])
                    return False
                elif kind == "died":
                    left = self.after_death(left, case, candidate, event["text"])
                elif kind == "done":
                    left = []
                else:
                    self.take(process, event)
        return True

    def take(self, process: int, event: Event) -> None:
        """A result: facts, a row, a failure, or the time of a case."""
        if event["kind"] == "facts":
            self.raw["facts"] = self.raw["facts"] or {name: value for name, value in event.items() if name != "kind"}
        elif event["kind"] == "took":
            self.raw["spent"][event["case"]] = self.raw["spent"].get(event["case"], 0.) + event["seconds"]
        elif event["kind"] == "row":
            row = self.raw["rows"].setdefault((event["case"], event["candidate"], event["language"]),
                                              {**event, "values": {}, "beside": {}})
            if row["reference"] == event["reference"]:          # else the reference failed in this process
                row["values"][process], row["beside"][process] = event["values"], event["beside"]
        elif event["kind"] == "failure" and (event["case"], event["candidate"]) not in self.banned:
            self.fail(event["case"], event["candidate"], event["text"])
            self.banned.append((event["case"], event["candidate"]))

    def after_death(self, left: list[str], case: str | None, candidate: str | None, text: str) -> list[str]:
        """The cases for another process: without the candidate that ended this one, or else without its case."""
        if case is None:
            raise RuntimeError(f"a benchmark process did not start: {text}")
        self.fail(case, candidate or ALL_OF_IT, text)
        if candidate:
            self.banned.append((case, candidate))
            return left[left.index(case):]
        self.names.remove(case)
        return left[left.index(case) + 1:]

    def fail(self, case: str, candidate: str, text: str) -> None:
        self.raw["failures"].append({"case": case, "candidate": candidate, "text": text})


def _child(order: Order, until: float) -> Iterator[dict[str, Any]]:
    """The events of one process; then that it died, or that the time was up, unless it is done."""
    with tempfile.TemporaryFile("w+") as errors, subprocess.Popen(
            COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors,
            text=True, env=os.environ | sim.settings(quiet=True)) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        last = time.time()

        def watch() -> None:
            while process.poll() is None:
                if time.time() > min(until, last + order.settings.candidate_seconds):
                    process.kill()
                time.sleep(.2)

        threading.Thread(target=watch, daemon=True).start()
        try:
            with suppress(BrokenPipeError):                     # the process ended before
                process.stdin.write(order.dump())
                process.stdin.close()
            finished = False
            for line in process.stdout:
                last = time.time()
                if line.startswith('{"kind"'):                  # libraries may print, too
                    event = json.loads(line)
                    finished = event["kind"] == "done"
                    yield event
            process.wait()
        finally:
            process.kill()
        if not finished and time.time() > until:
            yield {"kind": "late", "text": LATE}
        elif not finished and time.time() > last + order.settings.candidate_seconds:
            yield {"kind": "died", "text": f"no output for {order.settings.candidate_seconds:.0f} s"}
        elif not finished:
            errors.seek(0)
            message = (errors.read().strip().splitlines() or ["no message"])[-1]
            yield {"kind": "died", "text": f"the process ended with {process.returncode}: {message[:200]}"}
