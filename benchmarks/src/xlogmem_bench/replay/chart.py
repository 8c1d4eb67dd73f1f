"""Memory over time, as a chart; needs matplotlib."""
from __future__ import annotations

import os
from collections.abc import Sequence

from xlogmem_bench.replay.measure import Row

__all__ = ["plot", "require_matplotlib"]

MIB = 1 << 20


def require_matplotlib() -> None:
    """Raises RuntimeError with what to install."""
    try:
        import matplotlib
        matplotlib.use("Agg")
    except ImportError as error:
        raise RuntimeError("the chart needs matplotlib: pip install \"xlogmem-bench[chart]\"") from error


def plot(rows: Sequence[Row], path: str) -> None:
    """For each log, the bytes in use and held by each resource, and how fragmented its free memory is.  PNG or SVG, by
    the name."""
    require_matplotlib()
    from matplotlib import pyplot

    logs = list(dict.fromkeys(row.log for row in rows))
    figure, panels = pyplot.subplots(len(logs), 2, squeeze=False, figsize=(11, 1 + 3.2 * len(logs)),
                                     layout="constrained")
    for (memory, broken), log in zip(panels, logs, strict=True):
        of_log = [row for row in rows if row.log == log]
        draw_use(memory, of_log[0])
        for row in of_log:
            calls = [sample.calls for sample in row.samples]
            if any(sample.held is not None for sample in row.samples):
                memory.plot(calls, [(sample.held or 0) / MIB for sample in row.samples],
                            label=f"held by {row.resource}")
            if any(sample.fragmentation is not None for sample in row.samples):
                broken.plot(calls, [100 * (sample.fragmentation or 0) for sample in row.samples], label=row.resource)
        memory.set_title(os.path.basename(log), loc="left", fontsize=10)
        memory.set_ylabel("MiB")
        broken.set_ylabel("% of the free bytes outside of the largest place", fontsize=8)
        broken.set_ylim(0, 100)
        for panel in (memory, broken):
            panel.set_xlabel("allocations and frees")
            if panel.get_legend_handles_labels()[0]:
                panel.legend(fontsize=8)
    figure.savefig(path, dpi=100)
    pyplot.close(figure)


def draw_use(panel: object, row: Row) -> None:
    calls, used = [sample.calls for sample in row.samples], [sample.in_use / MIB for sample in row.samples]
    panel.fill_between(calls, used, color="#9aa0a6", alpha=.5, label="in use")      # type: ignore[attr-defined]
