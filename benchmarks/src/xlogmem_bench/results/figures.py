"""The figures of rows, from the turns of their processes."""
from __future__ import annotations

import statistics
from collections.abc import Iterable
from typing import Any

from xlogmem_bench.allocators import OURS, PEER

__all__ = ["Document", "Row", "figured", "in_words", "ordered", "times"]

Row = dict[str, Any]
Document = dict[str, Any]
Processes = dict[str, list[float]]          # figures of turns, by process


def percentile(values: list[float], part: float) -> float:
    ordered = sorted(values)
    return ordered[round(part * (len(ordered) - 1))]


def spread(values: Processes) -> dict[str, float]:
    return {"median": statistics.median(turn for turns in values.values() for turn in turns),
            "low": min(percentile(turns, .1) for turns in values.values()),
            "high": max(percentile(turns, .9) for turns in values.values())}


def divided(values: Processes, by: Processes) -> Processes:
    """Turn by turn, of the processes that both have."""
    found = {process: [a / b for a, b in zip(turns, by.get(process, ()), strict=False) if b > 0]
             for process, turns in values.items()}
    return {process: turns for process, turns in found.items() if turns}


def rounded(figures: dict[str, float], digits: int) -> dict[str, float]:
    return {name: round(value, digits) for name, value in figures.items()}


def figured(rows: list[Row]) -> list[Row]:
    """Rows with their figures, beside the reference of their case and beside its best peer."""
    by_case: dict[str, list[Row]] = {}
    for row in rows:
        turns = [turn for turns in row["values"].values() for turn in turns]
        row |= {"best": round(min(turns), 2), **rounded(spread(row["values"]), 2),
                "to_reference": ratio(divided(row["values"], row["beside"]))}
        by_case.setdefault(row["case"], []).append(row)
    for row in rows:
        best = best_peer(row, by_case[row["case"]])
        row["best_peer"] = best["candidate"] if best else None
        row["to_best_peer"] = ratio(divided(
            divided(row["values"], row["beside"]), divided(best["values"], best["beside"]))) if best else None
    return rows


def ratio(turns: Processes) -> dict[str, float] | None:
    return rounded(spread(turns), 4) if turns else None


def best_peer(row: Row, rows: list[Row]) -> Row | None:
    """The fastest like-for-like peer of a row of xlogmem's, from the same language; None if there is none."""
    if row["role"] != OURS:
        return None
    return min((other for other in rows if other["role"] == PEER and not other["note"]
                and other["language"] == row["language"]), key=lambda other: float(other["median"]), default=None)


def in_words(ns: float) -> str:
    if ns < 100:
        return f"{ns:.1f}"
    if ns < 1e5:
        return f"{ns:,.0f}"
    return f"{ns / 1e3:,.0f} µs" if ns < 1e8 else f"{ns / 1e6:,.0f} ms"


def times(ratio: dict[str, float] | None) -> str:
    return "–" if ratio is None else "{} ({}–{})".format(*(
        f"{ratio[name]:.2f}" if ratio[name] >= .1 else f"{ratio[name]:.2g}" for name in ("median", "low", "high")))


def ordered(names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(names))
