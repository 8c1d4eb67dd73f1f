"""The zoo's table, and its files."""
from __future__ import annotations

import json
import statistics
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from zoo_judge import Outcome

__all__ = ["Row", "judge_slowdown", "problems_of", "summary", "table", "write"]

LONG_STEP = 20                                          # ms; a shorter one may be slowed down more
SHORTENED = 6_000                                       # letters of an output in zoo.txt


@dataclass
class Row:
    """A program, or a wrong variant of it, in one mode."""

    program: str
    kind: str
    variant: str
    mode: str
    seconds: float | None = None
    bare_seconds: float | None = None
    certain: int = 0
    possible: int = 0
    status: int | None = None
    step_ms: float | None = None
    slowdown: float | None = None
    peak_mb: int = 0
    notes: dict[str, int] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    skipped: str = ""

    @property
    def ran(self) -> bool:
        return self.seconds is not None

    @property
    def title(self) -> str:
        return f"{self.program} {self.variant}".strip()


def judge_slowdown(rows: list[Row], most: float) -> None:
    """A long step that takes too many times as long as alone fails."""
    alone = {row.program: row.step_ms for row in rows if row.mode == "bare"}
    for row in rows:
        if row.slowdown and (alone.get(row.program) or 0) >= LONG_STEP and row.slowdown > most:
            row.failures.append(f"a step takes {row.slowdown} times as long as alone, at most {most} are allowed")


def problems_of(rows: list[Row], least: int) -> list[str]:
    """What is wrong with the whole: a run that checks little does not pass."""
    right = {row.program for row in rows if row.ran and not row.variant}
    problems = [] if len(right) >= least else [f"only {len(right)} right programs ran, of at least {least}"]
    return problems if any(row.ran for row in rows) else [*problems, "nothing ran"]


def cell(row: Row | None) -> str:
    """What a table says of a run: its seconds, its findings, and whether that is as it has to be."""
    if row is None:
        return ""
    if not row.ran:
        return "skipped" if row.skipped else "NOT RUN"
    found = "" if row.mode == "bare" else f" {row.certain}/{row.possible}"
    slower = f" {row.slowdown}x" if row.slowdown else ""
    return f"{row.seconds:.1f}s{found}{slower}{' FAILED' if row.failures else ''}"


def table(rows: list[Row]) -> str:
    """A line for each program and variant: seconds, certain and possible findings."""
    by_title: dict[str, dict[str, Row]] = {}
    for row in sorted(rows, key=lambda row: (row.kind, row.title)):
        by_title.setdefault(row.title, {})[row.mode] = row
    lines = [f"{'program':34}{'bare':>10}  {'driver':22}{'real':22}(seconds, certain/possible, slowdown of a step)"]
    lines += [f"{title:34}{cell(of.get('bare')):>10}  {cell(of.get('driver')):22}{cell(of.get('real'))}".rstrip()
              for title, of in by_title.items()]
    return "\n".join(lines)


def slowdown_of(rows: list[Row], mode: str) -> str:
    found = [row for row in rows if row.mode == mode and row.slowdown]
    if not found:
        return f"slowdown of a step, {mode}: no program printed its time"
    worst = max(found, key=lambda row: row.slowdown or 0)
    return (f"slowdown of a step, {mode}: median {statistics.median(row.slowdown or 0 for row in found):.2f}, "
            f"worst {worst.slowdown} ({worst.program}, {worst.step_ms} ms), of {len(found)}")


def counted(rows: list[Row], mode: str) -> str:
    right = [row for row in rows if row.mode == mode and row.ran and not row.variant]
    wrong = [row for row in rows if row.mode == mode and row.ran and row.variant]
    text = f"{mode}: {len(right)} right programs, {sum(bool(row.failures) for row in right)} failed"
    if mode == "bare":
        return text
    return (f"{text}, {sum(bool(row.certain) for row in right)} flagged ({sum(row.certain for row in right)} certain "
            f"findings); {len(wrong)} wrong ones, {sum(not row.failures for row in wrong)} found")


def summary(rows: list[Row], problems: list[str]) -> str:
    """What stands at the end: counts, what was skipped, what failed and why."""
    modes = [mode for mode in ("bare", "driver", "real") if any(row.mode == mode for row in rows)]
    lines = ["", *(counted(rows, mode) for mode in modes)]
    lines += [slowdown_of(rows, mode) for mode in modes if mode != "bare"]
    lines += [f"skipped: {reason}: {', '.join(sorted({row.program for row in rows if row.skipped == reason}))}"
              for reason in sorted({row.skipped for row in rows} - {""})]
    late = sum(not row.ran and not row.skipped for row in rows)
    lines += [f"NOT RUN: {late} runs, for want of time"] if late else []
    lines += [f"FAILED {row.title} [{row.mode}]: {'; '.join(row.failures)}" for row in rows if row.failures and row.ran]
    lines += [f"FAILED: {problem}" for problem in problems]
    failed = Counter(bool(row.failures) for row in rows if row.ran)
    return "\n".join([*lines, f"zoo: {failed[False]} runs as they have to be, {failed[True]} failed"])


def write(out: Path, rows: list[Row], outcomes: Mapping[int, Outcome], problems: list[str]) -> None:
    """zoo.json has the rows; zoo.txt what failed, with the reports and the ends of the outputs."""
    (out / "zoo.json").write_text(json.dumps({"problems": problems, "runs": [asdict(row) for row in rows]}, indent=1))
    with (out / "zoo.txt").open("w") as file:
        file.writelines(f"FAILED: {problem}\n" for problem in problems)
        for number, row in enumerate(rows):
            if row.failures:
                file.write(f"\n==== {row.title} [{row.mode}]\n" + "".join(f"FAILED: {one}\n" for one in row.failures))
                if outcome := outcomes.get(number):
                    file.write(f"-- standard output\n{outcome.out[-1_500:]}\n"
                               f"-- standard error\n{shortened(outcome.err)}\n")


def shortened(text: str) -> str:
    """Its beginning, where reports are, and its end, where errors are."""
    if len(text) <= SHORTENED:
        return text
    return f"{text[:SHORTENED // 2]}\n... {len(text) - SHORTENED} letters ...\n{text[-SHORTENED // 2:]}"
