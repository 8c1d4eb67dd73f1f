"""The figures of a process as a terminal shows them."""
from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from xlogmem._base.screens import Table
from xlogmem._base.texts import printable, shown
from xlogmem._base.units import counted, format_bytes
from xlogmem.observe.live.figures import COUNTED, ProcessFigures, RuntimeFigures

__all__ = ["NOTHING", "picture", "rates"]

NOTHING = "no process has imported xlogmem yet"


def picture(process: ProcessFigures, before: ProcessFigures | None) -> RenderableType:
    """One process, with rates since the picture before."""
    parts: list[RenderableType] = [Text(f"process {process.pid}  {printable(process.program)}", style="bold")]
    if not process.runtimes:
        parts.append(Text("no runtime yet"))
    earlier = {runtime.number: runtime for runtime in before.runtimes} if before is not None else {}
    for runtime in process.runtimes:
        seconds = process.clock - before.clock if before is not None else 0.0
        parts += _runtime(runtime, rates(runtime, earlier.get(runtime.number), seconds))
    return Group(*parts)


def rates(now: RuntimeFigures, before: RuntimeFigures | None, seconds: float) -> dict[str, float]:
    """By the name of a counter, how much it rose per second; empty without an earlier picture."""
    if before is None or seconds <= 0:
        return {}
    return {name: (now.counters[name] - before.counters[name]) / seconds for name in COUNTED}


def _runtime(runtime: RuntimeFigures, per_second: dict[str, float]) -> list[RenderableType]:
    totals = Table("", "", left=(0, 1))
    totals.add("live", f"{format_bytes(runtime.live_bytes)} in {counted(runtime.live_blocks, 'block')}")
    totals.add("pending", format_bytes(runtime.pending_bytes))
    totals.add("peak", format_bytes(runtime.peak_bytes))
    for pool in runtime.pools:
        totals.add("pool", f"{format_bytes(pool.free)} of {format_bytes(pool.size)} free, the largest span "
                           f"{format_bytes(pool.largest_free)}, at most {format_bytes(pool.peak)} handed out")
    head = Text(printable(f"device {runtime.device}, runtime {runtime.number}: {runtime.resource}"), style="cyan")
    return [head, totals, _tags(runtime), _counters(runtime, per_second)]


def _tags(runtime: RuntimeFigures) -> Table:
    table = Table(f"{'tag':24}", "     bytes", "    blocks")
    for tag in runtime.tags:
        table.add(Text(shown(tag.name)), format_bytes(tag.nbytes), f"{tag.blocks:,}")
    if runtime.further_tags:
        table.add(counted(runtime.further_tags, "more tag"), format_bytes(runtime.further.nbytes),
                  f"{runtime.further.blocks:,}")
    return table


def _counters(runtime: RuntimeFigures, per_second: dict[str, float]) -> Table:
    table = Table(" " * 24, "    so far", *(["per second"] if per_second else []))
    for name in COUNTED:
        table.add(name.replace("_", " "), f"{runtime.counters[name]:,}",
                  *([f"{per_second[name]:,.1f}"] if per_second else []))
    return table
