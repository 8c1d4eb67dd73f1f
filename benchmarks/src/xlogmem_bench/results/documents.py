"""The document of a run: how it is made of the raw results, merged with others, written and read."""
from __future__ import annotations

import gzip
import json
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from xlogmem_bench.allocators import PER_USE_EVENTS
from xlogmem_bench.cases import FAMILIES
from xlogmem_bench.results.figures import Document, Row, figured, ordered
from xlogmem_bench.settings import LATE, Settings, selected

__all__ = ["SCHEMA", "assembled", "loaded", "merged", "saved", "without_folders"]

SCHEMA = 2
RENAMED = {"an event for each use (the seeds)": PER_USE_EVENTS}         # candidates in documents of earlier releases


def without_folders(command: list[str]) -> list[str]:
    """The command with bare names of files: folders differ from machine to machine."""
    words: list[str] = []
    for word in command:
        option, equals, value = word.rpartition("=")
        if (option or (words[-1] if words else "")) in ("--json", "--plot", "--log", "--compare"):
            word = option + equals + Path(value).name
        words.append(word)
    return words


def assembled(raw: dict[str, Any], settings: Settings, command: list[str]) -> Document:
    """The document of a run."""
    cases = {case.id: case for case in selected(settings)}
    rows = []
    for one in sorted(raw["rows"].values(), key=lambda one: list(cases).index(one["case"])):
        case = cases[one["case"]]
        rows.append({
            "case": case.id, "family": case.family, "parameters": case.parameters, "unit": case.unit,
            **{name: one[name] for name in ("candidate", "language", "role", "note", "calls", "reference")},
            **{name: {str(process): turns for process, turns in one[name].items()} for name in ("values", "beside")}})
    return {"schema": SCHEMA, "command": without_folders(command), "settings": asdict(settings),
            "seconds": raw["seconds"], "processes": raw["processes"],
            "spent": {case: round(took, 2) for case, took in raw["spent"].items()},
            "machine": raw["facts"] or {}, "failures": raw["failures"], "rows": figured(rows)}


def merged(documents: list[Document]) -> Document:
    """The documents of several runs as one.  Figures of the same row count as further processes."""
    first, *others = documents
    if not others:
        return first
    for other in others:
        there, here = (document["machine"].get("device") for document in (first, other))
        if there != here:
            raise ValueError(f"runs on {there!r} and on {here!r} cannot be merged")
    rows = merged_rows(documents)
    measured = {row["case"] for row in rows}
    spent: dict[str, float] = {}
    for document in documents:
        for case, took in document["spent"].items():
            spent[case] = round(spent.get(case, 0.) + took, 2)
    failures = [failure for document in documents for failure in document["failures"]
                if failure["text"] != LATE or failure["case"] not in measured]
    return {"schema": SCHEMA, "command": first["command"], "settings": first["settings"],
            "seconds": round(sum(document["seconds"] for document in documents), 1),
            "processes": sum(document["processes"] for document in documents), "spent": spent,
            "machine": merged_machines([document["machine"] for document in documents]),
            "failures": [failure for place, failure in enumerate(failures) if failure not in failures[:place]],
            "parts": [{name: part[name] for name in ("command", "settings", "seconds", "processes", "machine")}
                      for document in documents for part in document.get("parts", [document])],
            "rows": figured(rows)}


def merged_rows(documents: list[Document]) -> list[Row]:
    """The rows of all documents, without figures, in the order of the families."""
    rows: dict[tuple[str, str, str], Row] = {}
    for document in documents:
        before = dict(rows)
        for row in document["rows"]:
            key = row["case"], row["candidate"], row["language"]
            if key not in before:
                rows[key] = row | {name: dict(row[name]) for name in ("values", "beside")}
                continue
            into = rows[key]
            if (into["parameters"], into["reference"]) != (row["parameters"], row["reference"]):
                raise ValueError(f"{row['case']} is not the same in both runs")
            number = 1 + max(map(int, into["values"]))
            for process in row["values"]:
                into["values"][f"{number + int(process)}"] = row["values"][process]
                into["beside"][f"{number + int(process)}"] = row["beside"][process]
    order = ordered(row["case"] for document in documents for row in document["rows"])
    order.sort(key=lambda case: list(FAMILIES).index(case.split("/", 1)[0]))
    return sorted(rows.values(), key=lambda row: order.index(row["case"]))


def merged_machines(machines: list[dict[str, Any]]) -> dict[str, Any]:
    """The facts of several machines of one kind; those that differ are listed."""
    def one(values: Iterable[Any]) -> Any:
        seen = ordered(value for value in values if value is not None)
        return seen[0] if len(seen) == 1 else " / ".join(map(str, seen)) if seen else None

    found = {name: one(machine["found"].get(name) for machine in machines)
             for name in ordered(name for machine in machines for name in machine["found"])}
    missing = {name: reason for machine in machines for name, reason in machine["missing"].items() if name not in found}
    return {name: one(machine.get(name) for machine in machines)
            for name in ordered(name for machine in machines for name in machine)
            if name not in ("found", "missing")} | {"found": found, "missing": missing}


def saved(document: Document, path: str) -> None:
    """Write the document: a line for each row; compressed, if the file's name ends in ``.gz``."""
    rows = ",\n".join(json.dumps(row) for row in document["rows"])
    head = json.dumps({name: value for name, value in document.items() if name != "rows"}, indent=1)
    text = f'{head[:-2]},\n "rows": [\n{rows}\n]\n}}\n'.encode()
    Path(path).write_bytes(gzip.compress(text, mtime=0) if path.endswith(".gz") else text)


def loaded(path: str) -> Document:
    text = Path(path).read_bytes()
    document: Document = json.loads(gzip.decompress(text) if path.endswith(".gz") else text)
    if document.get("schema") != SCHEMA:
        raise ValueError(f"{path} has schema {document.get('schema')!r}; this xlogmem reads {SCHEMA}")
    for entry in (*document["rows"], *document["failures"]):
        entry |= {key: RENAMED.get(entry[key], entry[key]) for key in ("candidate", "reference", "best_peer")
                  if key in entry}
    return document
