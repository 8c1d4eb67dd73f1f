"""The comparison of two runs, row by row."""
from __future__ import annotations

from typing import Any

from rich.console import Console

from xlogmem._base.screens import Table
from xlogmem._base.units import counted
from xlogmem_bench.allocators import FLOOR, OURS
from xlogmem_bench.results.figures import Document, Row, times

__all__ = ["agreement", "print_agreement"]

LEAST = 3                                   # turns that make a spread


def agreement(document: Document, earlier: Document) -> list[dict[str, Any]]:
    """The rows that both runs have, of the same case and parameters beside the same reference, and whether they agree:
    None for rows of fewer than three turns, which have no spread to compare."""
    before = {key_of(row): row for row in earlier["rows"]}
    found = []
    for row in document["rows"]:
        other = before.get(key_of(row))
        if other is None or row["role"] == FLOOR or row["values"] == row["beside"]:         # the reference itself
            continue
        now, then = row["to_reference"], other["to_reference"]
        if now is None or then is None or any(row[name] != other[name] for name in ("parameters", "reference")):
            continue
        enough = all(sum(map(len, one["values"].values())) >= LEAST for one in (row, other))
        found.append({"case": row["case"], "candidate": row["candidate"], "language": row["language"],
                      "role": row["role"], "now": now, "then": then,
                      "agree": now["low"] <= then["high"] and then["low"] <= now["high"] if enough else None,
                      "change": now["median"] / then["median"] if then["median"] else float("inf")})
    return found


def print_agreement(document: Document, earlier: Document, console: Console) -> bool:
    """Print the rows that differ by more than their spreads.  True if no row of xlogmem's does, and there are some."""
    both = agreement(document, earlier)
    found = [row for row in both if row["agree"] is not None]
    differ = [row for row in found if not row["agree"]]
    ours = [row for row in found if row["role"] == OURS]
    different = [row for row in ours if not row["agree"]]
    commits = [part["machine"].get("commit") or "no commit" for part in (document, earlier)]
    console.print(f"Compared with a run of {commits[1]} (this one: {commits[0]}), by the ratio to the reference of the "
                  "case:", markup=False, highlight=False)
    if differ:
        console.print(table_of(differ))
    alone = {key_of(row) for row in document["rows"]} ^ {key_of(row) for row in earlier["rows"]}
    others = f" {counted(len(alone), 'row is', 'rows are')} in one of the runs only." if alone else ""
    if len(both) > len(found):
        others += f" Not compared: {counted(len(both) - len(found), 'row')} of fewer than {LEAST} turns."
    console.print(f"{len(found) - len(differ)} of {len(found)} rows agree within their spreads; of xlogmem's "
                  f"{len(ours) - len(different)} of {len(ours)}.{others}", markup=False, highlight=False)
    return bool(ours) and not different


def table_of(differ: list[dict[str, Any]]) -> Table:
    """The largest change first."""
    table = Table("outside of both spreads", "from", "then", "now", "change", left=(0, 1))
    for row in sorted(differ, key=lambda row: -abs(row["change"] - 1)):
        table.add(f"{row['case']}: {row['candidate']}", row["language"], times(row["then"]), times(row["now"]),
                  f"{100 * (row['change'] - 1):+.0f} %", style="red" if row["role"] == OURS else "")
    return table


def key_of(row: Row) -> tuple[str, str, str]:
    return row["case"], row["candidate"], row["language"]
