"""What came out: a document with all figures, the table, the chart, and whether two runs agree.

A row has the best, the median and the spread of its turns, and the last two of its ratio to the *reference* of the case
(the floor; where there is none, the candidate that comes first), which was run just before and just after each turn.
The *spread* is from the lowest 10th to the highest 90th percentile that a process had: a turn that was disturbed is
left out, a process in which everything was slower is not.  The *best peer* is the quickest of those from the same
language that are like for like.

Two runs agree on a row if the spreads of that ratio overlap.  The documents of several runs may be put together, of the
same cases (they count as more processes) or of others.
"""
from __future__ import annotations

import gzip
import itertools
import json
import statistics
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from xlogmem.bench.allocators import CPP, FLOOR, OURS, PEER, PYTHON
from xlogmem.bench.cases import FAMILIES
from xlogmem.bench.measure import LATE, Settings, selected

__all__ = ["README", "SCHEMA", "agreement", "assembled", "loaded", "markdown", "merged", "plot", "print_agreement",
           "print_table", "saved"]

SCHEMA = 2
LEAST = 3                                   # turns that have a spread to compare
Row = dict[str, Any]
Document = dict[str, Any]

# The README's rows: what is said there, the case, whose row.
README = (
    ("`allocate` + `free`, 1 MiB, tracked", "allocate/1 MiB", "xlogmem async"),
    ("the same from `PoolMemoryResource`", "allocate/1 MiB", "xlogmem pool"),
    ("`use` of 1 block, nothing to wait for", "use/1 block, same stream", "xlogmem"),
    ("`use` of 16 blocks, nothing to wait for", "use/16 blocks, same stream", "xlogmem"),
    ("two `use`s in ping-pong, each queues a wait", "use/ping-pong", "xlogmem"),
    ("allocate, 4 reads on other streams, free", "free/after 4 foreign reads", "xlogmem pool"),
)


# ---------------------------------------------------------------------------------------------- figures
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


def without_folders(command: list[str]) -> list[str]:
    """The command with bare names of files: whoever runs it has other folders."""
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


def figured(rows: list[Row]) -> list[Row]:
    """Rows with their figures: of each case those that there are, beside its reference and the best peer."""
    by_case: dict[str, list[Row]] = {}
    for row in rows:
        turns = [turn for turns in row["values"].values() for turn in turns]
        against = divided(row["values"], row["beside"])
        row |= {"best": round(min(turns), 2), **rounded(spread(row["values"]), 2),
                "to_reference": rounded(spread(against), 4) if against else None}
        by_case.setdefault(row["case"], []).append(row)
    for some in by_case.values():
        for row in some:
            row["best_peer"] = row["to_best_peer"] = None
            if row["role"] == OURS:
                best = min((other for other in some if other["role"] == PEER and not other["note"]
                            and other["language"] == row["language"]),
                           key=lambda other: float(other["median"]), default=None)
                if best:
                    row["best_peer"] = best["candidate"]
                    against = divided(divided(row["values"], row["beside"]), divided(best["values"], best["beside"]))
                    row["to_best_peer"] = rounded(spread(against), 4) if against else None
    return rows


def merged(documents: list[Document]) -> Document:
    """The documents of several runs as one.  Figures of the same row count as further processes."""
    first, *others = documents
    if not others:
        return first
    for other in others:
        there, here = (document["machine"].get("device") for document in (first, other))
        if there != here:
            raise ValueError(f"runs on {there!r} and on {here!r} are not put together")
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
    measured = {row["case"] for row in rows.values()}
    spent: dict[str, float] = {}
    for document in documents:
        for case, took in document["spent"].items():
            spent[case] = round(spent.get(case, 0.) + took, 2)
    order = ordered(row["case"] for document in documents for row in document["rows"])
    order.sort(key=lambda case: list(FAMILIES).index(case.split("/", 1)[0]))
    failures = [failure for document in documents for failure in document["failures"]
                if failure["text"] != LATE or failure["case"] not in measured]
    return {"schema": SCHEMA, "command": first["command"], "settings": first["settings"],
            "seconds": round(sum(document["seconds"] for document in documents), 1),
            "processes": sum(document["processes"] for document in documents), "spent": spent,
            "machine": together([document["machine"] for document in documents]),
            "failures": [failure for place, failure in enumerate(failures) if failure not in failures[:place]],
            "parts": [{name: part[name] for name in ("command", "settings", "seconds", "processes", "machine")}
                      for document in documents for part in document.get("parts", [document])],
            "rows": figured(sorted(rows.values(), key=lambda row: order.index(row["case"])))}


def together(machines: list[dict[str, Any]]) -> dict[str, Any]:
    """What is said of several machines of one kind: what differs, one after the other."""
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
    return document


# ---------------------------------------------------------------------------------------------- for people
def in_words(ns: float) -> str:
    if ns < 100:
        return f"{ns:.1f}"
    if ns < 1e5:
        return f"{ns:,.0f}"
    return f"{ns / 1e3:,.0f} µs" if ns < 1e8 else f"{ns / 1e6:,.0f} ms"


def times(ratio: dict[str, float] | None) -> str:
    return "–" if ratio is None else "{} ({}–{})".format(*(
        f"{ratio[name]:.2f}" if ratio[name] >= .1 else f"{ratio[name]:.2g}" for name in ("median", "low", "high")))


def in_short(rows: list[Row]) -> Iterator[Row]:
    """Of each case: the floor, ours, and the best peer for each language."""
    best = {(row["case"], row["language"], row["best_peer"]) for row in rows if row["best_peer"]}
    for row in rows:
        if row["role"] in (FLOOR, OURS) or (row["case"], row["language"], row["candidate"]) in best:
            yield row


def print_table(document: Document, console: Console, everything: bool = False) -> None:
    machine = document["machine"]
    notes: dict[str, int] = {}
    for family in FAMILIES:
        rows = [row for row in document["rows"] if row["family"] == family]
        shown = rows if everything else list(in_short(rows))
        if not shown:
            continue
        table = Table(title=family, title_justify="left", title_style="bold")
        for heading in ("", "from", "best", "median", "spread", "× floor (spread)", "× best peer (spread)",
                        "best peer"):
            table.add_column(heading, justify="left" if heading in ("", "from", "best peer") else "right",
                             overflow="fold")
        case = None
        for row in shown:
            if row["case"] != case:
                case = row["case"]
                table.add_section()
                table.add_row(f"[bold]{escape(case)}[/], ns per {row['unit']}")
            mark = f" [dim]\\[{notes.setdefault(row['note'], len(notes) + 1)}][/]" if row["note"] else ""
            style = {OURS: "green", FLOOR: "cyan"}.get(row["role"])
            has_floor = any(other["role"] == FLOOR for other in rows if other["case"] == case)
            against = times(row["to_reference"])
            table.add_row(
                f"  {escape(row['candidate'])}{mark}", row["language"], in_words(row["best"]), in_words(row["median"]),
                f"{in_words(row['low'])}–{in_words(row['high'])}",
                "1" if row["role"] == FLOOR else against if has_floor else f"{against} of {escape(row['reference'])}",
                times(row["to_best_peer"]), escape(row["best_peer"] or ""), style=style)
        console.print(table)
    for note, number in notes.items():
        console.print(f"[{number}] not like for like: {note}", markup=False, highlight=False)
    console.print(
        "{device}, driver {driver}, {cores} × {host}, Python {python}, xlogmem {xlogmem} ({commit}), {versions}. An "
        "empty call from Python takes {empty_call_ns} ns, which every figure from Python has in it."
        .format(**{"device": None, "driver": None, "cores": None, "host": None, "python": None, "xlogmem": None,
               "empty_call_ns": None, "commit": None} | machine,
            versions=", ".join(f"{name} {found}" for name, found in machine.get("found", {}).items())),
        markup=False, highlight=False)
    console.print(time_spent(document), markup=False, highlight=False)
    for name, reason in machine.get("missing", {}).items():
        console.print(f"without {name}: {reason}", markup=False, highlight=False)
    for failure in document["failures"]:
        console.print(f"failed: {failure['candidate']} in {failure['case']}: {failure['text']}", markup=False,
                      highlight=False, style="red")
    if machine.get("simulated"):
        console.print("SIMULATED DRIVER: no GPU is involved. These times mean nothing; the run shows only that every "
                      "case works.", style="bold red", markup=False)


def time_spent(document: Document) -> str:
    """Where the time of a run went."""
    spent = document["spent"]
    families = {family: sum(took for case, took in spent.items() if case.split("/", 1)[0] == family)
                for family in FAMILIES}
    longest = sorted(spent, key=lambda case: -spent[case])[:3]
    return (f"{document['processes']} processes took {document['seconds']:.0f} s: "
            + "".join(f"{family} {took:.0f}, " for family, took in families.items() if took)
            + f"to begin and end {document['seconds'] - sum(spent.values()):.0f}. Longest: "
            + "; ".join(f"{case} {spent[case]:.0f}" for case in longest) + ".")


def markdown(document: Document) -> str:
    """The README's rows, and what they were measured with."""
    rows = {(row["case"], row["candidate"], row["language"]): row for row in document["rows"]}
    lines = ["| ns | from C++ | × driver calls | from Python | best peer from C++ | from Python |",
             "|---|---|---|---|---|---|"]
    for text, case, candidate in README:
        native, python = rows.get((case, candidate, CPP)), rows.get((case, candidate, PYTHON))
        lines.append(" | ".join((
            f"| {text}", in_words(native["median"]) if native else "–",
            f"{native['to_reference']['median']:.2f}" if native and native["to_reference"] else "–",
            in_words(python["median"]) if python else "–", *(peer_of(row, rows) for row in (native, python)))) + " |")
    commands = ordered(f"`{' '.join(part['command'])}`" for part in document.get("parts", [document]))
    machine = document["machine"]
    return "\n".join([*lines, "", f"{', '.join(commands)}: {machine.get('device')}, driver {machine.get('driver')}, "
                      f"xlogmem {machine.get('commit') or machine.get('xlogmem')}"])


def peer_of(row: Row | None, rows: dict[tuple[str, str, str], Row]) -> str:
    if row is None or not row["best_peer"]:
        return "–"
    peer = rows[row["case"], row["best_peer"], row["language"]]
    return f"{peer['candidate']}: {in_words(peer['median'])}"


# ---------------------------------------------------------------------------------------------- two runs
def agreement(document: Document, earlier: Document) -> list[dict[str, Any]]:
    """The rows that both runs have, of the same case and parameters beside the same reference, and whether they agree:
    None for those of fewer than three turns, whose spread is none."""
    before = {(row["case"], row["candidate"], row["language"]): row for row in earlier["rows"]}
    found = []
    for row in document["rows"]:
        other = before.get((row["case"], row["candidate"], row["language"]))
        if other is None or row["role"] == FLOOR or row["values"] == row["beside"]:         # itself is the reference
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
    """Say which rows differ by more than their spreads.  True if no row of ours does, and there are some."""
    both = agreement(document, earlier)
    found = [row for row in both if row["agree"] is not None]
    differ = [row for row in found if not row["agree"]]
    ours = [row for row in found if row["role"] == OURS]
    different = [row for row in ours if not row["agree"]]
    commits = [part["machine"].get("commit") or "no commit" for part in (document, earlier)]
    console.print(f"Compared with a run of {commits[1]} (this one: {commits[0]}), by the ratio to the reference of the "
                  "case:", markup=False, highlight=False)
    if differ:
        table = Table()
        for heading in ("outside of both spreads", "from", "then", "now", "change"):
            table.add_column(heading, justify="left" if heading in ("outside of both spreads", "from") else "right")
        for row in sorted(differ, key=lambda row: -abs(row["change"] - 1)):
            table.add_row(escape(f"{row['case']}: {row['candidate']}"), row["language"], times(row["then"]),
                          times(row["now"]), f"{100 * (row['change'] - 1):+.0f} %",
                          style="red" if row["role"] == OURS else None)
        console.print(table)
    alone = {(row["case"], row["candidate"], row["language"]) for row in document["rows"]} ^ {
        (row["case"], row["candidate"], row["language"]) for row in earlier["rows"]}
    others = f" {len(alone)} rows are in one of the runs only." if alone else ""
    if len(both) > len(found):
        others += f" {len(both) - len(found)} rows of fewer than {LEAST} turns are not compared."
    console.print(f"{len(found) - len(differ)} of {len(found)} rows agree within their spreads; of ours "
                  f"{len(ours) - len(different)} of {len(ours)}.{others}", markup=False, highlight=False)
    return bool(ours) and not different


# ---------------------------------------------------------------------------------------------- the chart
# What it shows, if it was measured: one case for each question, and what it says there.
CHART = {
    "allocate/256 B": "allocate + free, 256 B",
    "allocate/1 MiB": "1 MiB",
    "allocate/1 MiB, 8 streams in turn": "1 MiB, 8 streams in turn",
    "allocate/1 MiB, 8 threads": "1 MiB, in each of 8 threads",
    "allocate/to 1 MiB, fragmented": "to 1 MiB, between 1,000 holes",
    "use/1 block, same stream": "use of 1 block, nothing to wait for",
    "use/16 blocks, same stream": "16 blocks, nothing to wait for",
    "use/hand-over": "hand-over to another stream",
    "use/ping-pong": "ping-pong, two uses",
    "use/fan-out to 8 readers and back": "fan-out to 8 readers and back",
    "free/after 4 foreign reads": "allocate, 4 reads elsewhere, free",
    "replay/queries": "replay of queries, a pair",
    "replay/ORC-like bursts": "of bursts of small columns, a pair",
    "shapes/random_allocations, 1,000 to 64 MiB": "RMM's random allocations to 64 MiB",
    "rmm/pair of 1 MiB, legacy stream": "cuDF's pair of 1 MiB, through RMM",
    "pylibcudf/allocate_like, 1,000 rows": "pylibcudf column of 1,000 rows",
}
GREEN, PALE, BLUE, GREY = "#1a7f37", "#7bc98f", "#0b62b8", "#9aa0a6"
OUR_MARKS = {"xlogmem": (GREEN, "full", "xlogmem, pool; uses"), "xlogmem pool": (GREEN, "full", "xlogmem, pool; uses"),
             "xlogmem async": (PALE, "full", "xlogmem, async resource"),
             **{f"xlogmem over rmm {name}": (GREEN, "none", "xlogmem over RMM's resources")
                for name in ("async", "pool", "arena")}}


def plot(document: Document, path: str) -> None:
    """What a row costs as a multiple of its reference: from C++ on the left, from Python on the right.  PNG or SVG, as
    the name says."""
    try:
        import matplotlib
        matplotlib.use("Agg")
        from matplotlib import pyplot
    except ImportError as error:
        raise RuntimeError("the chart needs matplotlib: pip install \"xlogmem[bench]\"") from error
    names = ordered(row["case"] for row in document["rows"] if row["to_reference"])
    names = [name for name in CHART if name in names] or names[:len(CHART)]
    if not names:
        raise ValueError("there is nothing to draw: no case was measured beside its reference")
    figure, panels = pyplot.subplots(1, 2, sharey=True, figsize=(11, 1.9 + .33 * len(names)), layout="constrained")
    for panel, language in zip(panels, (CPP, PYTHON), strict=True):
        for place, name in enumerate(names):
            draw(panel, place, [row for row in document["rows"] if row["case"] == name and row["to_reference"]
                                and row["language"] == language])
        panel.axvline(1, color="black", linewidth=1)
        panel.set_xscale("log")
        panel.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        panel.margins(x=.12)
        panel.grid(axis="x", alpha=.3)
        panel.set_title(f"from {language}", loc="left", fontsize=10, fontweight="bold")
        panel.set_xlabel("× the time of the raw driver calls in C, log scale", fontsize=9)
        for place, (above, name) in enumerate(itertools.pairwise(names)):
            if above.split("/", 1)[0] != name.split("/", 1)[0]:
                panel.axhline(place + .5, color=GREY, linewidth=.5)
    panels[0].set_yticks(range(len(names)), [label(document, name) for name in names], fontsize=8.5)
    panels[0].set_ylim(len(names) - .4, -.6)
    panels[1].tick_params(left=False)
    seen = {text: handle for panel in panels for handle, text in zip(*panel.get_legend_handles_labels(), strict=True)}
    figure.legend(list(seen.values()), list(seen), loc="outside lower center", ncols=len(seen), fontsize=8.5,
                  frameon=False)
    machine = document["machine"]
    most = max(len(row["values"]) for row in document["rows"])
    figure.suptitle(
        ("SIMULATED, times mean nothing: " if machine.get("simulated") else "")
        + f"xlogmem beside others on {machine.get('device')}, driver {machine.get('driver')}: multiples of the "
        f"driver's time, less is better\nPoints: medians. Lines: spread of up to {most} processes. In brackets: the "
        "raw driver calls, or who is named there", fontsize=10)
    with pyplot.rc_context({"svg.fonttype": "none"}):
        figure.savefig(path, dpi=100)
    pyplot.close(figure)


def label(document: Document, case: str) -> str:
    """What is measured, and what its reference takes."""
    reference = next(row for row in document["rows"] if row["case"] == case and row["values"] == row["beside"])
    who = "" if reference["role"] == FLOOR else f"{reference['candidate']} "
    return f"{CHART.get(case, case)}  [{who}{in_words(reference['median'])} ns]".replace("µs ns", "µs")


def draw(panel: Any, place: int, rows: list[Row]) -> None:
    """One case in one language: ours with their spread, the best peer by name, everybody like for like besides."""
    best = next((row["best_peer"] for row in rows if row["best_peer"]), None)
    for row in rows:
        ratio = row["to_reference"]
        if row["candidate"] in OUR_MARKS:
            colour, fill, name = OUR_MARKS[row["candidate"]]
            panel.plot([ratio["low"], ratio["high"]], [place, place], color=colour, linewidth=2, zorder=2)
            panel.plot([ratio["median"]], [place], "o", color=colour, fillstyle=fill, markersize=8, zorder=4,
                       label=name)
        elif row["role"] == PEER and row["candidate"] == best:
            panel.plot([ratio["median"]], [place], "D", color=BLUE, markeredgecolor="white", markersize=6.5, zorder=5,
                       label="best peer")
            panel.annotate(row["candidate"].removesuffix(" (the seeds)"), (ratio["median"], place), xytext=(0, 5),
                           textcoords="offset points", fontsize=6.5, color=BLUE, ha="center")
        elif row["role"] == PEER:
            panel.plot([ratio["median"]], [place], "o", color=GREY, markersize=3.5, zorder=3,
                       fillstyle="none" if row["note"] else "full",
                       label="not like for like" if row["note"] else "other peers")


def ordered(names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(names))
