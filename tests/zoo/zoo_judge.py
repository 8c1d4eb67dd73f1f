"""Whether a run of the zoo is as it has to be: every rule is a sentence that a failing run gets."""
from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zoo_manifest import Program, Wrong, marks

__all__ = ["Outcome", "judged", "last_line", "step_ms"]

UNCHECKED = "nothing was checked"                      # as `xlogmem check` says it
NO_FINDING, CERTAIN, PROGRAM_FAILED = 0, 1, 3           # its exit status


@dataclass(frozen=True)
class Outcome:
    """What came of a run; of one under the check, with the document of --json."""

    status: int | None                                  # of the command; None: it was killed when its time was over
    out: str = ""
    err: str = ""
    seconds: float = 0.0
    document: dict[str, Any] | None = None
    peak_mb: int = 0                                    # of the largest process, on the host

    @property
    def own_status(self) -> int | None:
        """The program's own."""
        if self.status is None or self.document is None:
            return self.status
        status: int = self.document["status"]
        return status

    def count(self, certain: bool) -> int:
        return sum(one["certain"] is certain for one in (self.document or {}).get("findings", ()))


def last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""


def step_ms(text: str) -> float | None:
    """What a program says of the time of its steps."""
    found = re.findall(r"^step_ms: ([\d.]+)$", text, re.MULTILINE)
    return float(found[-1]) if found else None


def judged(program: Program, wrong: Wrong | None, bare: Outcome | None, run: Outcome, mode: str) -> list[str]:
    """What is wrong with a run of a program, or of its variant; nothing if it is as it has to be.

    Without a bare run the output is not compared, and a program has to end with status 0.
    """
    if run.status is None:
        return [f"killed after {run.seconds:.0f} s"]
    if mode == "bare":
        return list(_bare(program, run))
    if run.document is None:
        return [f"no report: the check ended with status {run.status}"]
    if UNCHECKED in run.err:
        return ["no process was checked"]
    if wrong:
        return list(_wrong(program, wrong, run))
    return list(_right(program, bare, run))


def _bare(program: Program, run: Outcome) -> Iterator[str]:
    if run.status != 0:
        yield f"the program itself ends with status {run.status}"
    elif program.compare == "output" and not last_line(run.out):
        yield "the program prints nothing that could be compared"


def _right(program: Program, bare: Outcome | None, run: Outcome) -> Iterator[str]:
    status, line = (bare.status, last_line(bare.out)) if bare else (0, None)
    if certain := run.count(True):
        yield f"{certain} certain findings in a right program"
    if run.own_status != status:
        yield f"the program ended with status {run.own_status}, alone with {status}"
    if program.compare == "output" and line is not None and last_line(run.out) != line:
        yield f"the last line is {last_line(run.out)!r}, alone {line!r}"
    expected = CERTAIN if certain else PROGRAM_FAILED if run.own_status else NO_FINDING
    if run.status != expected:
        yield f"the check ended with status {run.status} in place of {expected}"


def _wrong(program: Program, wrong: Wrong, run: Outcome) -> Iterator[str]:
    assert run.document is not None
    if run.own_status is not None and run.own_status < 0:
        yield f"ended by signal {-run.own_status}"
    seen = [one for one in run.document["findings"] if one["certain"] or not wrong.certain]
    word = "certain finding" if wrong.certain else "finding"
    if not seen:
        yield f"no {word}"
    elif wrong.places == "marked" and not any(_is_marked(one, program.file, wrong.name) for one in seen):
        places = ", ".join(f"{a or 'none'} and {b or 'none'}" for a, b in
                           ([_line_of(one[end], program.file) for end in ("first", "second")] for one in seen[:5]))
        yield f"no {word} at the marked lines, but at {places}"


def _is_marked(finding: dict[str, Any], file: Path, variant: str) -> bool:
    """Whether its two places are lines that are marked for this variant, in either order."""
    marked = marks(file.read_text()).get(variant, {"first": set(), "then": set()})
    one, other = (_line_of(finding[end], file) for end in ("first", "second"))
    return any(a in marked["first"] and b in marked["then"] for a, b in ((one, other), (other, one)))


def _line_of(access: dict[str, Any], file: Path) -> int | None:
    """Of the innermost frame in the program's file."""
    stack = access.get("captured") or access["stack"]
    return next((frame["line"] for frame in stack if Path(frame["file"]) == file), None)
