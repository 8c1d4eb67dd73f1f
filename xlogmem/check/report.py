"""The report of a check, as text and as SARIF."""
from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any
from urllib.parse import quote

import xlogmem
from xlogmem._base.texts import printable
from xlogmem._base.units import counted, format_bytes
from xlogmem.check import audit
from xlogmem.check.findings import Finding, by_places
from xlogmem.check.frames import Frame, caller_in, is_of_program, place_in

__all__ = ["as_entry", "as_json", "as_sarif", "as_text", "repair_of", "summary"]

CAUSES = {
    "write/read": "the read may see what was there before the write",
    "read/write": "the write may change what is still being read",
    "write/write": "which of the writes is the last one is left open",
    "alloc/use": "the use may come before the memory is there",
    "alloc/free": "the free may come before the memory is there",
    "read/free": "the memory may be gone while it is still being read",
    "write/free": "the memory may be gone while it is still being written",
    "use/free": "the memory may be gone while it is still being used",
    "free/use": "the memory may be gone already",
    "read/reuse": "its next owner may have the memory while it is still being read",
    "write/reuse": "its next owner may have the memory while it is still being written",
    "free/reuse": "its next owner may have the memory before it is freed",
}
OWN_CAUSES = {                              # where the second access is the program's own
    "read/write": "the host changes what is still being read",
    "write/read": "the host reads what may not be written yet",
    "write/write": "the host changes what is still being written",
    "use/write": "the host changes what is still being used",
    "alloc/use": "the host uses memory that may not be there yet",
    "read/free": "the host frees what is still being read",
    "write/free": "the host frees what is still being written",
    "use/free": "the host frees what is still being used",
}
INSTEAD = {"write": "; or give each copy a buffer of its own", "free": "; or free it later"}
DESTROYED = {"dead-stream": "stream", "dead-event": "event"}
WORDS = {"read": "read", "write": "write", "use": "read_write"}     # of `use`, by the roles of accesses
MOST = 8                                    # further findings of an entry that are named
# The library's own pool orders less, but work that it does not order does no harm here.
OF_DRIVER = "this is wrong on the driver's pool alone, which the check has put in the place of the library's own"


def repair_of(finding: Finding) -> str | None:
    """Advice on a finding, as text: for most races, the wait to add and the line before which to add it."""
    first, second = finding.first, finding.second
    place = second.place
    inside = f" in {place}" if place and second.is_own else ""
    where = f"before {place}" if place and is_of_program(place.file) else (
        f"before {second.name}{inside}{memory_of(finding)}")
    if finding.kind == "use-after-free":
        return either(uses_of(finding), "free the memory after its last use, or do not use it any more")
    if finding.kind == "stale-graph":
        return either(uses_of(finding), "capture the graph again when its memory has another owner, or keep the memory "
                                        "as long as the graph")
    if finding.kind in DESTROYED:
        after = f"after {place}" if place and is_of_program(place.file) else "after its last use"
        return f"destroy the {DESTROYED[finding.kind]} {after}, or do not use it any more"
    if library := first.stream.library or second.stream.library:
        return (f"none, if the memory is {library}'s own; else let the stream that is handed to the library wait, and "
                "wait for it")
    if second.is_own:
        event = f"an event recorded on it after {first.place or first.name}"
        begin = "let the host write after this call, or" if second.name.endswith("before this call") else f"{where},"
        by_hand = f"{begin} wait for {first.stream.name} or {event}{INSTEAD.get(second.role, '')}"
        return either(host_use_of(finding) if finding.tracked and second.role in WORDS else "", by_hand)
    if second.stream.kind == "host":
        return f"{where}, synchronize with {first.stream.name}"
    if first.stream.kind == "host":
        return f"{where}, nothing can wait for the host: make the host's call earlier"
    if first.stream.kind == second.stream.kind == "branch":
        return f"make the node of {place or second.name} depend on the node of {first.place or first.name}"
    after = f"{first.stream.name} after {first.place or first.name}"
    if place and place == first.place:
        after += " (the earlier time)"                  # of a loop, or of a function that is called twice
    by_hand = f"{where}, make {second.stream.name} wait for an event recorded on {after}"
    return either(uses_of(finding), by_hand)


def either(with_xlogmem: str, by_hand: str) -> str:
    return f"{with_xlogmem}.  Or, {by_hand}" if with_xlogmem else by_hand


def uses_of(finding: Finding) -> str:
    """Which launches on xlogmem's own memory to put in which `use`, or which `use` to change; empty where that does not
    repair it.  New memory needs none on its own stream, until another one uses it.  A graph may hold freed memory, and
    no other work."""
    is_gone = finding.kind != "race" or finding.first.role == "free"
    if not finding.tracked or (is_gone and not finding.second.captured):
        return ""
    name = name_of(finding) if finding.kind != "stale-graph" else "…"    # of the next owner
    undeclared = [one for one, known in ((finding.first, ("declared", "new")), (finding.second, ("declared",)))
                  if one.role in WORDS and one.known not in known]
    renamed, added, launches, captured = [], [], [], []
    for one in undeclared:
        if one.captured and is_of_graph(one.use):
            captured.append(f"{one.captured_place or one.name} in `with xlogmem.use(…, {WORDS[one.role]}={name})`")
        elif one.elsewhere:
            renamed.append(audit.repair_of(one.elsewhere.stream.name, one.stream.name, place_in(one.elsewhere.stack)))
        elif one.use:
            memory = "the memory" if name == "…" else name
            at = f" at {used}" if (used := place_in(one.use)) else f" around {one.place or one.name}"
            added.append(f"declare {memory} as read_write in the `use`{at}" if one.known == "written" else
                         f"add {memory} to {WORDS[one.role]}= of the `use`{at}")
        else:
            launches.append(f"{one.place or one.name} in `with xlogmem.use(…, {WORDS[one.role]}={name})` on "
                            f"{one.stream.name}")
    if launches:
        added.append(f"launch {' and '.join(dict.fromkeys(launches))}")
    if captured:
        added.append(f"capture {' and '.join(dict.fromkeys(captured))} inside `with xlogmem.capture(…) as graph`, and "
                     "launch by `graph.launch(…)` (a graph of another library: `xlogmem.capturing(…)` and "
                     "`graph.launching(…)`)")
    then = "the graph holds its memory" if is_gone else "xlogmem queues the wait"
    waits = [f"{', and '.join(dict.fromkeys(added))}: {then}"] if added else []
    return ".  ".join([*dict.fromkeys(renamed), *waits])


def is_of_graph(use: tuple[Frame, ...]) -> bool:
    """True unless the program has put a `use` of its own around a launch of a graph."""
    place = place_in(use)
    return place is None or re.search(r"\.launch(ing)?\(", place.source) is not None


def host_use_of(finding: Finding) -> str:
    """The `use` for an access by the program's own code, to xlogmem's own memory."""
    second = finding.second
    return (f"put {second.place or second.name} in `with xlogmem.use(xlogmem.host, {WORDS[second.role]}="
            f"{name_of(finding)})`: the host waits for each declared use")


def name_of(finding: Finding) -> str:
    """The variable to which the line of the allocation assigns the memory, if one call alone can have made it there."""
    allocated = place_in(finding.allocated)
    with suppress(SyntaxError, ValueError):
        match ast.parse(allocated.source if allocated else "").body:
            case [ast.Assign(targets=[ast.Name(id=name)], value=ast.Call() as call)]:
                inner = [part for part in ast.walk(call) if part is not call and isinstance(part, ast.expr)]
                if not any(isinstance(part, ast.Call) or (isinstance(part, ast.BinOp) and not is_constant(part))
                           for part in inner):
                    return name
    return "…"


def is_constant(expression: ast.BinOp) -> bool:
    return not any(isinstance(part, ast.Name | ast.Attribute) for part in ast.walk(expression))


def memory_of(finding: Finding) -> str:
    """Words about the memory, for an operation that is in no line of the program: the interpreter makes such frees."""
    allocated = place_in(finding.allocated)
    return f" of the memory that was allocated at {allocated}" if allocated else ""


def wait_lines(finding: Finding) -> list[str]:
    """A wait that does not order the two operations, and why it does not."""
    wait = finding.wait
    if wait is None:
        return []
    recorded = place_in(wait.recorded)
    at = f" at {recorded}" if recorded else ""
    what = {"never recorded": "an event that was not recorded yet",
            "recorded before": f"an event that was recorded{at}, before the first of the two",
            "recorded elsewhere": f"an event that was recorded{at}, on {wait.stream.name}"}[wait.why]
    return line_of("wait", wait.stack, f"{finding.second.stream.name} waits for {what}")


def line_of(title: str, stack: tuple[Frame, ...], what: str) -> list[str]:
    frame = place_in(stack)
    if frame is None:
        return [f"  {title:8}{what}, {where(stack)}"]
    lines = [f"  {title:8}{frame}, in {frame.function}: {what}"]
    if frame.source:
        lines.append(f"{'':14}{frame.source}")
    return lines


def as_text(finding: Finding) -> str:
    """Format a finding as a paragraph."""
    return as_entry([finding])


def as_entry(findings: Sequence[Finding]) -> str:
    """Format the findings of two places as a paragraph: the first one, and what differs in the others."""
    finding = findings[0]
    lines = destroyed_lines(finding) if finding.kind in DESTROYED else lines_of(finding)
    repair = repair_of(finding)
    if repair:
        lines.append(f"  {'repair':8}{repair}")
    for one in findings[1:MOST + 1]:
        lines.append(f"  {'also':8}{also(one, finding)}{f', {one.count} times' if one.count > 1 else ''}")
        other = repair_of(one)
        if other and other != repair:
            lines.append(f"{'':10}repair: {other}")
    if len(findings) > MOST + 1:
        lines.append(f"  {'also':8}{counted(len(findings) - MOST - 1, 'more finding')} at these two places")
    count = sum(one.count for one in findings)
    if count > 1:
        allocations = len({place_in(one.allocated) for one in findings})
        lines.append(f"  {count} times{f', in memory of {allocations} allocations' if allocations > 1 else ''}")
    return "\n".join(map(printable, lines))


def also(one: Finding, lead: Finding) -> str:
    """What differs in a further finding at the same two places."""
    same = (one.certain, title_of(one), one.first.name, one.second.name)
    memory = sized(one) + allocated_and_freed(one)
    if same == (lead.certain, title_of(lead), lead.first.name, lead.second.name):
        return memory or f"on {one.second.stream}"
    what = f"{'CERTAIN' if one.certain else 'POSSIBLE'} {title_of(one)}: {one.first.name}, then {one.second.name}"
    return f"{what}, on {memory}" if memory else what


def title_of(finding: Finding) -> str:
    return finding.pair if finding.kind == "race" else finding.kind


def sized(finding: Finding) -> str:
    """The memory, with its tag; empty where there is none."""
    size = finding.block_end - finding.block_begin
    return (format_bytes(size) + (f' "{finding.tag}"' if finding.tag else "")) if size else ""


def allocated_and_freed(finding: Finding) -> str:
    return "".join(f", {what} {where(stack)}" for what, stack in
                   (("allocated", finding.allocated), ("freed", finding.freed)) if stack)


def cause_of(finding: Finding) -> str | None:
    if finding.kind != "race":
        return None
    return (OWN_CAUSES if finding.second.is_own else CAUSES).get(finding.pair)


def lines_of(finding: Finding) -> list[str]:
    cause = cause_of(finding)
    lines = [f"{'CERTAIN' if finding.certain else 'POSSIBLE'} {title_of(finding)}{f': {cause}' if cause else ''}"]
    for name, access in (("first", finding.first), ("then", finding.second)):
        by = "by" if access.stream.kind == "host" else "on"
        graph = ", in a graph" if access.captured else ""
        what = access.name if access.is_own else f"{access.name} ({access.role}) {by} {access.stream}{graph}"
        lines += line_of(name, access.stack, what)
        if access.captured:
            lines += line_of("", access.captured, "captured there")
        if access.elsewhere:
            lines += line_of("use", access.elsewhere.stack,
                             audit.went_elsewhere(access.elsewhere.stream.name, access.stream.name))
    lines += wait_lines(finding)
    if memory := sized(finding):
        lines.append(f"  {'memory':8}{memory} at {finding.block_begin:#x}{allocated_and_freed(finding)}")
    if finding.of_driver:
        why = "the memory had no owner before" if finding.first.role == "alloc" else (
            "the stream comes after that before the pool hands the memory out again")
        lines.append(f"  {'pool':8}{OF_DRIVER}: {why}")
    return lines


def destroyed_lines(finding: Finding) -> list[str]:
    """What destroyed a stream or an event, and the call that was given its handle afterwards."""
    what = DESTROYED[finding.kind]
    first, second = finding.first, finding.second
    lines = [f"{'CERTAIN' if finding.certain else 'POSSIBLE'} {finding.kind}: the {what} was destroyed before"]
    if first.name:
        of = f" of {first.stream}" if what == "stream" else ""
        lines += line_of("first", first.stack, first.name + of)
    else:
        lines.append(f"  {'first':8}the {what} was destroyed with its context")
    return lines + line_of("then", second.stack, f"{second.name} with its handle")


def where(stack: tuple[Frame, ...]) -> str:
    """The place of a call in words."""
    caller = caller_in(stack)
    if caller:
        return f"where a function ended that {caller} had called"
    place = place_in(stack)
    return f"at {place}" if place else "in no line of Python"


def summary(findings: Iterable[Finding], suppressed: int, omissions: int = 0, hidden: str = "") -> str:
    """The closing line.  `hidden` is how to see the possible findings, where they are left out."""
    found = list(findings)
    certain = sum(one.certain for one in found)
    possible = len(found) - certain
    text = f"{certain} certain, {possible} possible{f' ({hidden})' if possible and hidden else ''}"
    if suppressed:
        text += f", {suppressed} suppressed"
    if len(found) > 1:
        text += f", at {counted(len(by_places(found)), 'place')}"
    if omissions:
        text += f", {counted(omissions, 'AUDIT entry', 'AUDIT entries')}"
    return text


def as_json(findings: Iterable[Finding]) -> dict[str, Any]:
    """Format findings for other programs.  `format` is raised where a field that was there is not any more."""
    return {"format": 1, "findings": [one.as_json() | {"text": as_text(one), "repair": repair_of(one), "entry": number}
                                      for number, entry in enumerate(by_places(findings), 1) for one in entry]}


def as_sarif(findings: Iterable[Finding]) -> dict[str, Any]:
    """Format findings for services that show them beside the code; https://docs.oasis-open.org/sarif/sarif/v2.1.0."""
    def location(frame: Frame | None) -> list[dict[str, Any]]:
        if frame is None:
            return []
        return [{"physicalLocation": {"artifactLocation": {"uri": quote(str(frame).rsplit(":", 1)[0])},
                                      "region": {"startLine": frame.line}}}]

    entries = by_places(findings)
    rules = [{"id": rule, "shortDescription": {"text": CAUSES.get(rule, rule)}}
             for rule in sorted({title_of(one) for one, *_ in entries})]
    results = [{"ruleId": title_of(one), "level": "error" if one.certain else "note",
                "message": {"text": as_entry([one, *others])}, "locations": location(one.second.place),
                "relatedLocations": [
                    {"id": number, "message": {"text": text}, **place}
                    for number, (text, frame) in enumerate((("first", one.first.place),
                                                            ("first, captured", one.first.captured_place),
                                                            ("then, captured", one.second.captured_place),
                                                            ("wait", one.wait_place)), 1)
                    for place in location(frame)]} for one, *others in entries]
    return {"$schema": "https://json.schemastore.org/sarif-2.1.0.json", "version": "2.1.0",
            "runs": [{"tool": {"driver": {"name": "xlogmem check", "version": xlogmem.__version__, "rules": rules}},
                      "results": results}]}
