"""Settings of a run, and of one of its processes."""
from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any

from xlogmem_bench.cases import FAMILIES, Case, all_cases

__all__ = ["ALL_OF_IT", "LATE", "QUICK", "Order", "Settings", "selected"]

ALL_OF_IT = "all of it"                     # in place of a candidate, where a whole case failed
LATE = "the time was up (--seconds)"
QUICK = {"turns": 5, "processes": 1, "case_seconds": 1.0}


@dataclass(frozen=True)
class Settings:
    """A case whose turns would take longer than `case_seconds` in a process has fewer of them, at least one.  `scale`
    (see `all_cases`) and `room` (see `World`) are for tests."""

    families: tuple[str, ...] = tuple(FAMILIES)
    quick: bool = False
    only: tuple[str, ...] = ()              # ids; none: all of the families
    logs: tuple[str, ...] = ()              # files of RMM's logging adaptor
    without: tuple[str, ...] = ()           # libraries that are left out
    turns: int = 7
    turn_ms: float = 1.0
    processes: int = 5                      # fewer, if another one would not end in time
    case_seconds: float = 1.5
    program_seconds: float = 2.0            # after which a program in C++ is stopped
    candidate_seconds: float = 60.0         # without output, after which a process is killed: it hangs
    seconds: float = 300.0                  # for all of it; cases that are not reached are listed
    scale: int = 1
    room: int | None = None


@dataclass
class Order:
    """Work order of one process: the cases by id, without the candidates that failed in a process before."""

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
