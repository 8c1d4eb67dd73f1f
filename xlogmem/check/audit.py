"""Findings of an audit: launches on tracked memory that are not declared to xlogmem.

Under ``XLOGMEM_AUDIT=1`` the engine notes work on a tracked block outside of any `use`, and work that writes what its
`use` declares as read; in every check it notes a `use` of which the launch went to another stream.  None of these has
to be a race this time; all make the waits that xlogmem queues too few.
"""
from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from xlogmem._base.texts import printable
from xlogmem._base.units import format_bytes
from xlogmem.check.findings import Stream, stack_of
from xlogmem.check.frames import Frame, place_in

__all__ = ["as_text", "as_texts", "entries", "merged", "repair_of", "resolved", "went_elsewhere"]

MEANING = ("AUDIT entries are launches that no `use` declares as they are: xlogmem may queue too few waits for them.  "
           "An entry is not a finding, and does not change the exit status")


def resolved(record: dict[str, Any]) -> dict[str, Any]:
    """Return a record of the engine with places instead of numbers, in the process that has the places."""
    place, declared = place_in(stack_of(record["site"])), place_in(stack_of(record["declared"]))
    return {"kind": record["kind"], "name": record["name"], "tag": record["tag"],
            "stream": Stream(record["stream"], record["stream_kind"]).name,
            "named": Stream(record["named"]["number"], record["named"]["kind"]).name if record["named"] else None,
            "place": asdict(place) if place else None, "declared": asdict(declared) if declared else None,
            "bytes": record["end"] - record["begin"], "count": record["count"]}


def entries(records: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Those of the engine's records that are entries of the audit; the others belong to findings alone."""
    return [resolved(one) for one in records if one["entry"]]


def merged(documents: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Merge the omissions of all processes: those of the same places become one."""
    found: dict[str, dict[str, Any]] = {}
    for document in documents:
        for record in document["omissions"]:
            key = repr([record[part] for part in ("kind", "name", "place", "declared")])
            if key in found:
                found[key]["count"] += record["count"]
            else:
                found[key] = record
    return list(found.values())


def went_elsewhere(named: str, stream: str) -> str:
    """Say of a `use` that it names one stream, and that the launch went to another."""
    return f"names {named}, on which nothing was queued inside that `use`; the launch went to {stream}"


def repair_of(named: str, stream: str, declared: Frame | None) -> str:
    """Advice on such a `use`."""
    at = f" at {declared}" if declared else ""
    return (f"name {stream} in the `use`{at} (`xlogmem.use(stream, …)`, or None where CuPy or PyTorch has made "
            f"{stream} current: `with stream, xlogmem.use(None, …):`), or launch on {named} inside it")


def as_texts(records: Iterable[dict[str, Any]]) -> list[str]:
    """Format omissions as paragraphs, behind one that explains them."""
    texts = [as_text(record) for record in records]
    return [MEANING, *texts] if texts else []


def as_text(record: dict[str, Any]) -> str:
    """Format an omission as a paragraph."""
    place = Frame(**record["place"]) if record["place"] else None
    declared = Frame(**record["declared"]) if record["declared"] else None
    what = "AUDIT outside: work on tracked memory that no `use` declares"
    repair = "launch it inside `with xlogmem.use(…)` on that stream"
    if record["kind"] == "written":
        what = "AUDIT written: what is declared as read is written"
        repair = f"declare it as write or read_write{f' at {declared}' if declared else ''}"
    if record["kind"] == "elsewhere":
        what = f"AUDIT elsewhere: a `use` {went_elsewhere(record['named'], record['stream'])}"
        repair = repair_of(record["named"], record["stream"], declared)
    tag = f' "{record["tag"]}"' if record["tag"] else ""
    lines = [what, f"  {'launch':8}{f'{place}, in {place.function}: ' if place else ''}{record['name']} on "
                   f"{record['stream']}"]
    if place and place.source:
        lines.append(f"{'':14}{place.source}")
    if record["kind"] == "elsewhere" and declared:
        lines.append(f"  {'use':8}{declared}, in {declared.function}")
        lines += [f"{'':14}{declared.source}"] if declared.source else []
    lines += [f"  {'memory':8}{format_bytes(record['bytes'])}{tag}", f"  {'repair':8}{repair}"]
    if record["count"] > 1:
        lines.append(f"  {record['count']} times")
    return "\n".join(map(printable, lines))
