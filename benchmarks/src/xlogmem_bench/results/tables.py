"""The table of a document, and the rows of the summary."""
from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console
from rich.text import Text

from xlogmem._base.screens import FirstThatFits, Table
from xlogmem._base.texts import printable
from xlogmem._base.units import counted
from xlogmem_bench.allocators import CPP, FLOOR, OURS, PYTHON
from xlogmem_bench.cases import FAMILIES
from xlogmem_bench.results.figures import Document, Row, in_words, ordered, times

__all__ = ["SUMMARY", "markdown", "print_table"]

# The summary's rows: the text there, the case, the candidate.
SUMMARY = (
    ("`allocate` + `free`, 1 MiB, tracked", "allocate/1 MiB", "xlogmem async"),
    ("the same from `PoolMemoryResource`", "allocate/1 MiB", "xlogmem pool"),
    ("`use` of 1 block, nothing to wait for", "use/1 block, same stream", "xlogmem"),
    ("`use` of 16 blocks, nothing to wait for", "use/16 blocks, same stream", "xlogmem"),
    ("two `use`s in ping-pong, each queues a wait", "use/ping-pong", "xlogmem"),
    ("allocate, 4 reads on other streams, free", "free/after 4 foreign reads", "xlogmem pool"),
)


def in_short(rows: list[Row]) -> Iterator[Row]:
    """Rows of the short table: for each case the floor, or another reference of the ratios, xlogmem, and the best peer
    for each language."""
    best = {(row["case"], row["language"], row["best_peer"]) for row in rows if row["best_peer"]}
    for row in rows:
        if (row["role"] in (FLOOR, OURS) or row["candidate"] == row["reference"]
                or (row["case"], row["language"], row["candidate"]) in best):
            yield row


def print_table(document: Document, console: Console, everything: bool = False) -> None:
    notes: dict[str, int] = {}              # and the numbers under which they are printed
    for family in FAMILIES:
        rows = [row for row in document["rows"] if row["family"] == family]
        shown = rows if everything else list(in_short(rows))
        if shown:
            console.print(FirstThatFits(family_table(family, shown, notes), family_table(family, shown, notes, True)))
    for note, number in notes.items():
        console.print(f"[{number}] not like for like: {note}", markup=False, highlight=False)
    print_circumstances(document, console)


def family_table(family: str, rows: list[Row], notes: dict[str, int], narrow: bool = False) -> Table:
    """The rows of a family; in a narrow table without the least time, and without the spreads of ratios."""
    headings = ["", "from", "best", "median", "spread", "× floor (spread)", "× best peer (spread)", "best peer"]
    if narrow:
        headings = [heading.removesuffix(" (spread)") for heading in headings if heading != "best"]
    table = Table(*headings, title=f"\n{family}", left=(0, 1, len(headings) - 1))
    with_floor = {row["case"] for row in rows if row["role"] == FLOOR}
    case = None
    for row in rows:
        if row["case"] != case:
            case = row["case"]
            table.add(Text(case, style="bold").append(f", ns per {row['unit']}", style="not bold"))
        mark = f" [{notes.setdefault(row['note'], len(notes) + 1)}]" if row["note"] else ""
        ratio, to_peer = times(row["to_reference"]), times(row["to_best_peer"])
        if narrow:
            ratio, to_peer = ratio.partition(" ")[0], to_peer.partition(" ")[0]
        table.add(
            f"  {row['candidate']}{mark}", row["language"], *([] if narrow else [in_words(row["best"])]),
            in_words(row["median"]), f"{in_words(row['low'])}–{in_words(row['high'])}",
            "1" if row["role"] == FLOOR else ratio if case in with_floor else f"{ratio} of {row['reference']}",
            to_peer, row["best_peer"] or "",
            style={OURS: "green", FLOOR: "cyan"}.get(row["role"], ""))
    return table


def print_circumstances(document: Document, console: Console) -> None:
    """The machine and the versions, where the time went, and what is missing, failed or means nothing."""
    machine = document["machine"]
    known = ("device", "driver", "cores", "host", "python", "xlogmem", "empty_call_ns", "commit")
    facts = dict.fromkeys(known) | machine
    versions = ", ".join(f"{name} {found}" for name, found in machine.get("found", {}).items())
    console.print(
        "{device}, driver {driver}, {cores} × {host}, Python {python}, xlogmem {xlogmem} ({commit}), {versions}. An "
        "empty call from Python takes {empty_call_ns} ns, which is part of every figure from Python.".format(
            **facts, versions=versions), markup=False, highlight=False)
    console.print(time_spent(document), markup=False, highlight=False)
    for name, reason in machine.get("missing", {}).items():
        console.print(printable(f"without {name}: {reason}"), markup=False, highlight=False)
    for failure in document["failures"]:
        console.print(printable(f"failed: {failure['candidate']} in {failure['case']}: {failure['text']}"),
                      markup=False, highlight=False, style="red")
    if machine.get("simulated"):
        console.print("SIMULATED DRIVER: no GPU is involved. These times mean nothing; the run shows only that every "
                      "case works.", style="bold red", markup=False)


def time_spent(document: Document) -> str:
    """The time of a run, as sentences: by family, to begin and end, and of the longest cases."""
    spent = document["spent"]
    families = {family: sum(took for case, took in spent.items() if case.split("/", 1)[0] == family)
                for family in FAMILIES}
    longest = sorted(spent, key=lambda case: -spent[case])[:3]
    return (f"{counted(document['processes'], 'process', 'processes')} took {document['seconds']:.0f} s: "
            + "".join(f"{family} {took:.0f}, " for family, took in families.items() if took)
            + f"to begin and end {document['seconds'] - sum(spent.values()):.0f}. Longest: "
            + "; ".join(f"{case} {spent[case]:.0f}" for case in longest) + ".")


def markdown(document: Document) -> str:
    """The summary's rows, and the commands and the machine that measured them."""
    rows = {(row["case"], row["candidate"], row["language"]): row for row in document["rows"]}
    lines = ["| ns | from C++ | × driver calls | from Python | best peer from C++ | from Python |",
             "|---|---|---|---|---|---|"]
    for text, case, candidate in SUMMARY:
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
