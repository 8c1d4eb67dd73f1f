"""Where the instructions of a path go, as a tree: xlogmem's functions, and what they call outside of it.

    python benchmarks/flame.py                              # a pair and a use of one block, from Python
    python benchmarks/flame.py "use of 16 blocks"           # any path of benchmarks/instructions.py
    python benchmarks/flame.py --all --least 2

Valgrind's callgrind counts on the simulated driver, as for benchmarks/instructions.py; the figures are instructions for
one round.  The width of a bar is the share of xlogmem's own instructions.  What the interpreter does between the calls
is not in the tree, nor is the simulated driver: a real one takes other times.
"""
from __future__ import annotations

import argparse
import re
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

from instructions import FEW, MANY, PATHS, record

PYTHON = ("allocate + free, Python, pool", "use of 1 block, Python")
Edges = dict[str, Counter[str]]


def is_ours(path: str) -> bool:
    return "/xlogmem/" in path and path.endswith(".so") and not re.search(r"/xlogmem/sim/|/xlogmem_bench/", path)


def readable(name: str) -> str:
    """A C name of Cython as the source has it; arguments are left out."""
    name = re.sub(r"\(.*| \[clone.*", "", name)
    return re.sub(r"^__pyx_(?:pw|pf|f|gb|tp_\w+?)_(?:\d*xlogmem_?)?", "", name).lstrip("_0123456789")


def costs(dump: Path) -> tuple[Counter[str], Edges, set[str]]:
    """Instructions of each function itself, of the calls between functions, and which functions are xlogmem's."""
    names: dict[str, str] = {}
    own: Counter[str] = Counter()
    calls: Edges = defaultdict(Counter)
    ours: set[str] = set()
    here = callee = ""
    library = ""
    called = False
    for line in dump.read_text().splitlines():
        if named := re.match(r"(c?)(ob|fn|fi|fe)=\((\d+)\)(?: (.*))?$", line):
            of_callee, kind, number, name = named.groups()
            key = kind[:1] + number
            if name:
                names[key] = name
            if kind == "ob" and not of_callee:
                library = names[key]
            elif kind == "fn" and of_callee:
                callee = readable(names[key])
            elif kind == "fn":
                here = readable(names[key])
                if is_ours(library):
                    ours.add(here)
        elif line.startswith("calls="):
            called = True
        elif re.match(r"[+\-*\d]", line):
            cost = int(line.split()[1])
            if called:
                calls[here][callee] += cost
            else:
                own[here] += cost
            called = False
    return own, calls, ours


def difference(many: Counter[str], few: Counter[str]) -> Counter[str]:
    return Counter({name: (many[name] - few[name]) / (MANY - FEW) for name in many})    # type: ignore[misc]


def tree(own: Counter[str], calls: Edges, ours: set[str], least: float) -> Iterator[str]:
    """Functions that others call get a share of their callees by how much of them each caller causes."""
    total = sum(own[name] for name in ours)
    whole = {name: own[name] + sum(calls[name].values()) for name in {*own, *calls}}
    entries = Counter({name: sum(edges[name] for caller, edges in calls.items() if caller not in ours)
                       for name in ours})

    def below(name: str, share: float, depth: int) -> Iterator[str]:
        cost = own[name] * share
        yield f"{cost:8.0f}  {'#' * round(40 * cost / total):41}{'  ' * depth}{name}"
        for callee, part in calls[name].most_common():
            if part * share < least or callee == name:
                continue
            if callee in ours and depth < 8:
                yield from below(callee, share * part / max(whole[callee], part), depth + 1)
            elif callee not in ours:
                yield f"{'':51}{'  ' * (depth + 1)}> {callee}"

    yield f"{total:8.0f}  of xlogmem's modules"
    for name, cost in entries.most_common():
        if cost >= least:
            yield from below(name, cost / max(whole[name], cost), 0)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("paths", nargs="*", metavar="PATH", help=", ".join(PATHS))
    parser.add_argument("--all", action="store_true", help="every path")
    parser.add_argument("--least", type=float, default=4, help="instructions of what is shown")
    options = parser.parse_args()
    chosen = PATHS if options.all else tuple(options.paths) or PYTHON
    if unknown := set(chosen) - set(PATHS):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; choose of {', '.join(PATHS)}")
    with tempfile.TemporaryDirectory() as folder:
        dumps = record(Path(folder))
        for path in chosen:
            place = 3 * PATHS.index(path)
            (few, few_calls, _), (many, many_calls, ours) = costs(dumps[place + 1]), costs(dumps[place + 2])
            calls = {name: difference(edges, few_calls.get(name, Counter())) for name, edges in many_calls.items()}
            print(f"\n{path}")
            print("\n".join(tree(difference(many, few), defaultdict(Counter, calls), ours, options.least)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
