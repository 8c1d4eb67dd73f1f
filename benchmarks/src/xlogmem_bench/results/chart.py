"""The chart of a document; needs matplotlib."""
from __future__ import annotations

import itertools
from typing import Any

from xlogmem._base.units import counted
from xlogmem_bench.allocators import CPP, FLOOR, PEER, PYTHON
from xlogmem_bench.results.figures import Document, Row, in_words, ordered

__all__ = ["CHART", "plot"]

# The cases that it shows, if they were measured, and their labels.
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
    "enabled/CuPy, 1 MiB": "CuPy's alloc of 1 MiB, its own pool and others",
    "enabled/PyTorch, 1 MiB": "PyTorch's empty of 1 MiB, likewise",
    "pylibcudf/allocate_like, 1,000 rows": "pylibcudf column of 1,000 rows",
}
GREEN, PALE, BLUE, GREY = "#1a7f37", "#7bc98f", "#0b62b8", "#9aa0a6"
OUR_MARKS = {"xlogmem": (GREEN, "full", "xlogmem, pool; uses"), "xlogmem pool": (GREEN, "full", "xlogmem, pool; uses"),
             "xlogmem async": (PALE, "full", "xlogmem, async resource"),
             **{f"xlogmem over rmm {name}": (GREEN, "none", "xlogmem over RMM's resources")
                for name in ("async", "pool", "arena")}}


def plot(document: Document, path: str) -> None:
    """The cost of rows as a multiple of their reference: from C++ on the left, from Python on the right.  PNG or SVG,
    by the name."""
    try:
        import matplotlib
        matplotlib.use("Agg")
        from matplotlib import pyplot
    except ImportError as error:
        raise RuntimeError("the chart needs matplotlib: pip install \"xlogmem-bench[chart]\"") from error
    names = ordered(row["case"] for row in document["rows"] if row["to_reference"])
    names = [name for name in CHART if name in names] or names[:len(CHART)]
    if not names:
        raise ValueError("there is nothing to draw: no case was measured beside its reference")
    figure, panels = pyplot.subplots(1, 2, sharey=True, figsize=(11, 1.9 + .33 * len(names)), layout="constrained")
    for panel, language in zip(panels, (CPP, PYTHON), strict=True):
        draw_panel(panel, language, names, document["rows"])
    panels[0].set_yticks(range(len(names)), [label(document, name) for name in names], fontsize=8.5)
    panels[0].set_ylim(len(names) - .4, -.6)
    panels[1].tick_params(left=False)
    seen = {text: handle for panel in panels for handle, text in zip(*panel.get_legend_handles_labels(), strict=True)}
    figure.legend(list(seen.values()), list(seen), loc="outside lower center", ncols=len(seen), fontsize=8.5,
                  frameon=False)
    figure.suptitle(title(document), fontsize=10)
    with pyplot.rc_context({"svg.fonttype": "none"}):
        figure.savefig(path, dpi=100)
    pyplot.close(figure)


def draw_panel(panel: Any, language: str, names: list[str], rows: list[Row]) -> None:
    """All cases from one language, with a line between families."""
    for place, name in enumerate(names):
        draw_case(panel, place, [row for row in rows if row["case"] == name and row["to_reference"]
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


def title(document: Document) -> str:
    machine = document["machine"]
    most = max(len(row["values"]) for row in document["rows"])
    return (("SIMULATED, times mean nothing: " if machine.get("simulated") else "")
            + f"xlogmem beside others on {machine.get('device')}, driver {machine.get('driver')}: multiples of the "
            "driver's time, less is better\nPoints: medians. Lines: spread of up to "
            f"{counted(most, 'process', 'processes')}. In brackets: the raw driver calls, or the candidate that is "
            "named there")


def label(document: Document, case: str) -> str:
    """Label of a case: the measured operation, and the time of its reference."""
    reference = next(row for row in document["rows"] if row["case"] == case and row["values"] == row["beside"])
    name = "" if reference["role"] == FLOOR else f"{reference['candidate']} "
    return f"{CHART.get(case, case)}  [{name}{in_words(reference['median'])} ns]".replace("µs ns", "µs")


def draw_case(panel: Any, place: int, rows: list[Row]) -> None:
    """One case from one language: xlogmem with its spread, the best peer by name, and the other peers."""
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
            panel.annotate(row["candidate"], (ratio["median"], place), xytext=(0, 5),
                           textcoords="offset points", fontsize=6.5, color=BLUE, ha="center")
        elif row["role"] == PEER:
            panel.plot([ratio["median"]], [place], "o", color=GREY, markersize=3.5, zorder=3,
                       fillstyle="none" if row["note"] else "full",
                       label="not like for like" if row["note"] else "other peers")
