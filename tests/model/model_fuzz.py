"""Random programs against the ordering model.

    python tests/model/model_fuzz.py --programs 20000                 the rules: no violations
    python tests/model/model_fuzz.py --programs 20000 --host          with host accesses and host memory
    python tests/model/model_fuzz.py --programs 20000 --graphs        with captures and launches of graphs
    python tests/model/model_fuzz.py --programs 20000 --ranges        with launches that name ranges of blocks
    python tests/model/model_fuzz.py --programs 400 --every-defect    each rule in turn is left out: is it noticed?
    python tests/model/model_fuzz.py --configuration threads --seed 17 --trace
                                                                one program, with its driver calls

`--programs` is the number for each configuration.  The exit status is 1 if a program breaks, or if a planted defect is
not found.
"""
from __future__ import annotations

import argparse
import sys
from dataclasses import replace

from ordering_model.actions import POLICIES
from ordering_model.rules import GraphRules, HostRules, RangeRules, Rules, switches
from ordering_model.search import configurations_of, find_defect, play_many, program


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0, help="of the first program")
    parser.add_argument("--host", action="store_true", help="programs with host accesses and host memory")
    parser.add_argument("--graphs", action="store_true", help="with captures and launches of graphs, too")
    parser.add_argument("--ranges", action="store_true", help="with launches that name ranges of blocks, too")
    parser.add_argument("--configuration", help="this one alone")
    parser.add_argument("--policy", choices=(*POLICIES, "mixed"), default="mixed")
    parser.add_argument("--defect", action="append", default=[], metavar="SWITCH", help="leave this rule out")
    parser.add_argument("--every-defect", action="store_true", help="leave out each rule in turn")
    parser.add_argument("--trace", action="store_true", help="print the driver calls of the first program")
    options = parser.parse_args(arguments)
    rules = (RangeRules if options.ranges else GraphRules if options.graphs else HostRules if options.host
             else Rules)
    options.rules = rules(policy=options.policy)
    names = [*configurations_of(options.rules)]
    if options.configuration is not None and options.configuration not in names:
        parser.error(f"--configuration: one of {', '.join(names)}, got {options.configuration!r}")
    options.names = [options.configuration] if options.configuration else names
    known = {name: rule for base in rules.__mro__ if issubclass(base, Rules) for name, rule in switches(base).items()}
    for switch in options.defect:
        if switch not in known:
            parser.error(f"--defect: one of {', '.join(known)}, got {switch!r}")
    options.rules = replace(options.rules, **dict.fromkeys(options.defect, False))
    return options


def show_trace(options: argparse.Namespace) -> bool:
    one = program(options.names[0], options.rules, options.seed, tracing=True).play()
    print(*one.oracle.trace, one.oracle.first_problem or "0 violations", sep="\n")
    return not one.oracle.problems


def search_defects(options: argparse.Namespace) -> bool:
    found_all = True
    for switch, rule in switches(type(options.rules)).items():
        found = find_defect(options.rules, switch, options.names, options.programs, options.seed)
        if found is None:
            found_all = False
            print(f"{switch:32s} NOT FOUND ({rule})", flush=True)
        else:
            name, played = found
            print(f"{switch:32s} {name} after {played.programs} programs: {played.first}", flush=True)
    return found_all


def play_all(options: argparse.Namespace) -> bool:
    right = True
    for name in options.names:
        played = play_many(name, options.rules, options.programs, options.seed)
        right = right and not played.first
        print(f"{name:18s} {played.programs} programs, {played.operations} operations, {played.records} records, "
              f"{played.waits} waits: {dict(played.problems) or '0 violations'} {played.first}".rstrip(), flush=True)
    return right


def main() -> int:
    options = parse()
    task = show_trace if options.trace else search_defects if options.every_defect else play_all
    return 0 if task(options) else 1


if __name__ == "__main__":
    sys.exit(main())
