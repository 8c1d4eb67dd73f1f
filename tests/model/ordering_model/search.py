"""Play many programs, and stop at the first one that breaks if a planted defect is what is looked for."""
from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from ordering_model.actions import Configuration
from ordering_model.graph_side import GRAPH_CONFIGURATIONS, GraphProgram
from ordering_model.host_side import HOST_CONFIGURATIONS, HostProgram
from ordering_model.programs import CONFIGURATIONS, Program
from ordering_model.range_side import RANGE_CONFIGURATIONS, RangeProgram
from ordering_model.rules import GraphRules, HostRules, RangeRules, Rules

ALL_CONFIGURATIONS = {**CONFIGURATIONS, **HOST_CONFIGURATIONS, **GRAPH_CONFIGURATIONS, **RANGE_CONFIGURATIONS}


@dataclass
class Played:
    programs: int = 0
    operations: int = 0
    records: int = 0
    waits: int = 0
    problems: Counter[str] = field(default_factory=Counter)
    first: str = ""                     # seed and text of the first problem


# The configurations and the programs of each kind of rules.
KINDS: dict[type[Rules], tuple[dict[str, Configuration], type[Program]]] = {
    RangeRules: (RANGE_CONFIGURATIONS, RangeProgram), GraphRules: (GRAPH_CONFIGURATIONS, GraphProgram),
    HostRules: (HOST_CONFIGURATIONS, HostProgram), Rules: (CONFIGURATIONS, Program)}


def configurations_of(rules: Rules) -> dict[str, Configuration]:
    return KINDS[type(rules)][0]


def program(name: str, rules: Rules, seed: int, tracing: bool = False) -> Program:
    """A program of the named configuration, which is to be played."""
    return KINDS[type(rules)][1](seed, rules, ALL_CONFIGURATIONS[name], tracing)


def play_many(name: str, rules: Rules, programs: int, seed: int = 0, stop_at_first: bool = False) -> Played:
    played = Played()
    for number in range(seed, seed + programs):
        one = program(name, rules, number).play()
        played.programs += 1
        played.operations += one.operations
        played.records += one.oracle.calls["record"]
        played.waits += one.oracle.calls["wait"]
        played.problems += one.oracle.problems
        if one.oracle.problems and not played.first:
            played.first = f"seed {number}, {one.oracle.first_problem}"
            if stop_at_first:
                break
    return played


def find_defect(rules: Rules, switch: str, names: Sequence[str], programs: int,
                seed: int = 0) -> tuple[str, Played] | None:
    """The first configuration in which a program breaks without this rule, and the programs played there."""
    without = replace(rules, **{switch: False})     # type: ignore[arg-type]
    for name in names:
        played = play_many(name, without, programs, seed, stop_at_first=True)
        if played.first:
            return name, played
    return None
