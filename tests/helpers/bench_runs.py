"""Runs of the benchmarks by hand: rows, documents and what is printed."""
from __future__ import annotations

import json
import subprocess
import sys
from io import StringIO

from children import variables
from rich.console import Console
from xlogmem_bench import cases, results, settings
from xlogmem_bench.allocators import CPP, FLOOR, OURS, PEER, PYTHON
from xlogmem_bench.settings import Settings

TINY = Settings(turns=2, turn_ms=.001, processes=1, case_seconds=1e9, scale=100, room=256 << 20)
LIBRARIES = {"RMM", "CuPy", "PyTorch", "cuda.core", "Numba", "CUDASTF", "pylibcudf"}
LOUD = "no GPU is involved"


def all_of(chosen: Settings = TINY) -> list[cases.Case]:
    return settings.selected(chosen)


def bench(*arguments: str, quiet: bool = False) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "xlogmem", "bench", *arguments], capture_output=True, text=True,
                          timeout=110, env=variables(COLUMNS="200", quiet=quiet))


def raw(beside: list[list[float]] | None = None, **values: list[list[float]]) -> dict:
    """A run of one case: names to turns of each process; `beside` is what the reference took around all of them."""
    about = {"floor": (CPP, FLOOR, ""), "ours": (CPP, OURS, ""), "peer": (CPP, PEER, ""), "slow": (CPP, PEER, ""),
             "unlike": (CPP, PEER, "marks only"), "snake": (PYTHON, PEER, "")}
    reference = next(iter(values))
    beside = beside or values[reference]
    rows = {}
    for name, turns in values.items():
        language, role, note = about[name]
        rows[name] = {"case": "use/ping-pong", "candidate": name, "language": language, "role": role, "note": note,
                      "calls": 7, "reference": reference, "values": dict(enumerate(turns)),
                      "beside": dict(enumerate(values[name] if name == reference else beside))}
    facts = {"device": "none", "simulated": False, "found": {}, "missing": {"CuPy": "not installed"}, "commit": "abc"}
    return {"rows": rows, "facts": facts, "failures": [], "seconds": 1.0, "spent": {"use/ping-pong": .5},
            "processes": 1}


def document(beside: list[list[float]] | None = None, **values: list[list[float]]) -> dict:
    return results.assembled(raw(beside, **values), Settings(), ["xlogmem", "bench"])


def by_row(document: dict) -> dict:
    return {(row["case"], row["candidate"], row["language"]): row for row in document["rows"]}


def row_of(document: dict, name: str) -> dict:
    return next(row for row in document["rows"] if row["candidate"] == name)


def printed(seen: dict, everything: bool = False) -> str:
    console = Console(file=StringIO(), width=200)
    results.print_table(seen, console, everything)
    return console.file.getvalue()


def of_case(seen: dict, case: str) -> dict:
    """The same document, of another case."""
    seen = json.loads(json.dumps(seen).replace("use/ping-pong", case))
    for row in seen["rows"]:
        row["family"] = case.split("/")[0]
    return seen
