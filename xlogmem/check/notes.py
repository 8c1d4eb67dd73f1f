"""Gaps in findings, as sentences, from the numbers of a front end."""
from __future__ import annotations

from collections import Counter
from typing import Any

from xlogmem._base.units import counted

__all__ = ["COMPUTED_NOTHING", "MAY_HAVE_VERIFIED", "of_gpu", "of_journal", "of_simulator"]

COMPUTED_NOTHING = "computed nothing, because the check runs without a GPU"     # the end of a note
MAY_HAVE_VERIFIED = ("without a GPU kernels compute nothing: the program may have ended because it works with their "
                     "results, or verifies them")
MOST_NAMES = 3                                          # of kernels, in a note


def of_journal(said: dict[str, Any]) -> list[str]:
    """Notes that a process without Python wrote at its end: see cpp/engine/journal.hpp."""
    if "unseen" in said:
        return of_gpu(said)
    return [*of_simulator(said), *of_compiled(said)]


def of_compiled(said: dict[str, Any]) -> list[str]:
    """Reasons why a program without Python may have ended, from the simulated driver's notes."""
    own = ["the program has NVIDIA's runtime built in, as nvcc does it by default: that accepts no driver but "
           "NVIDIA's.  Link the program with -cudart shared, or check it on a GPU"] if said["private_tables"] else []
    return own + [f"{name} is not simulated: the program got an error from it" for name in said["not_simulated"]]


def of_simulator(said: dict[str, Any]) -> list[str]:
    """Notes that every program may have, from the simulated driver's (`Simulator.notes`)."""
    launches = said["computed_nothing"]
    launched = counted(launches, "launch of a kernel", "launches of kernels")
    return ([f"{launched} {COMPUTED_NOTHING}"] if launches else []) + not_judged(said["not_judged"])


def not_judged(unknown: dict[str, int]) -> list[str]:
    """Count the launches whose accesses are unknown, and name the most frequent kernels."""
    if not unknown:
        return []
    kernels = Counter[str]()
    for name, count in unknown.items():
        short, angle, _ = name.removeprefix("void ").partition("<")
        kernels[f"{short}<...>" if angle else short] += count
    names = sorted(kernels, key=lambda name: (-kernels[name], name))
    more = f" and {counted(len(names) - MOST_NAMES, 'more kernel')}" if len(names) > MOST_NAMES else ""
    launched = counted(sum(unknown.values()), "launch was", "launches were")
    return [f"{launched} not judged, because it is not known what these kernels do to memory: "
            f"{', '.join(names[:MOST_NAMES])}{more}"]


def of_gpu(report: dict[str, Any]) -> list[str]:
    notes = [f"not modelled: {call} ({counted(count, 'time')})" for call, count in sorted(report["unseen"].items())]
    if report["unknown_launches"]:
        notes.append(f"{report['unknown_launches']} of {report['launches']} launches: the driver does not say "
                     "where their parameters are")
    if report["dropped"]:
        notes.append(f"{counted(report['dropped'], 'access was', 'accesses were')} not remembered: too many to the "
                     "same memory")
    return notes
