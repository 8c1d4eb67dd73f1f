"""Findings that are known, and left out with a reason: a TOML file.

    [[suppress]]
    reason = "the library's own pool orders this"       # required
    kind = "write/free"                                 # as in the report; without it, any
    file = "*/site-packages/somelib/*"                  # a pattern; of either place
    function = "Pool.*"
    operation = "cuMemFreeAsync"
    library = "libsome.so*"                             # that has made the stream for itself
    allocated = "*/somelib/*"                           # of the memory: a file that allocated it, or whose callee did
    first = {operation = "cuMemset*"}                   # the same keys, of the one place
    then = {library = "libsome.so*"}                    # … and of the other one

known.toml beside this module lists known findings in libraries, and applies to each check.
"""
from __future__ import annotations

import tomllib
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from xlogmem.check.findings import Access, Finding

__all__ = ["Suppression", "applied", "loaded", "shipped"]

OF_ACCESS = ("file", "function", "operation", "library")
SIDES = ("first", "then")
KEYS = ("kind", *OF_ACCESS, "allocated", *SIDES)


@dataclass
class Suppression:
    """One entry; patterns are those of a shell."""

    reason: str
    patterns: dict[str, Any]
    ships: bool = False                                 # with xlogmem
    used: int = 0

    def fits(self, finding: Finding) -> bool:
        kind = finding.pair if finding.kind == "race" else finding.kind
        if not fnmatchcase(kind, self.patterns.get("kind", "*")):
            return False
        wanted = self.patterns.get("allocated")
        if wanted and not any(fnmatchcase(frame.file, wanted) for frame in finding.allocated):
            return False
        either = {key: pattern for key, pattern in self.patterns.items() if key in OF_ACCESS}
        return (any(fits(access, either) for access in (finding.first, finding.second))
                and fits(finding.first, self.patterns.get("first", {}))
                and fits(finding.second, self.patterns.get("then", {})))


def fits(access: Access, patterns: dict[str, str]) -> bool:
    """True if the operation fits these patterns; of its stack, if one frame does."""
    if not fnmatchcase(access.name, patterns.get("operation", "*")):
        return False
    if not fnmatchcase(access.stream.library, patterns.get("library", "*")):
        return False
    if "file" not in patterns and "function" not in patterns:
        return True
    return any(fnmatchcase(frame.file, patterns.get("file", "*"))
               and fnmatchcase(frame.function, patterns.get("function", "*"))
               for frame in (*access.stack, *access.captured))


def shipped() -> list[Suppression]:
    """The suppressions that xlogmem ships, for known findings in libraries: known.toml."""
    entries = loaded(str(Path(__file__).parent / "known.toml"))
    for entry in entries:
        entry.ships = True
    return entries


def loaded(file: str) -> list[Suppression]:
    """Return the entries of a file.

    Raises
    ------
    ValueError
        The file is not of this kind; the text says where.
    """
    try:
        document = tomllib.loads(Path(file).read_text(encoding="utf-8-sig"))
    except UnicodeDecodeError as error:
        raise ValueError(f"{file}: TOML is UTF-8, and byte {error.start} of it is not: {error.reason}") from error
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ValueError(f"{file}: {error}") from error
    entries = document.pop("suppress", [])
    if document or not isinstance(entries, list):
        raise ValueError(f"{file}: only [[suppress]] entries are expected, found {', '.join(document) or 'a table'}")
    return [entry_of(entry, f"{file}, entry {number}") for number, entry in enumerate(entries, 1)]


def entry_of(entry: object, where: str) -> Suppression:
    if not isinstance(entry, dict):
        raise ValueError(f"{where}: [[suppress]] with keys is expected, found {entry!r}")
    if unknown := entry.keys() - {"reason", *KEYS}:
        raise ValueError(f"{where}: unknown keys {sorted(unknown)}")
    reason = entry.get("reason")
    if not isinstance(reason, str) or not reason.strip():
        raise ValueError(f"{where}: a reason is required")
    patterns = {key: entry[key] for key in KEYS if key in entry}
    for side in SIDES:
        table = patterns.get(side, {"operation": "*"})
        if not isinstance(table, dict) or not table or not are_patterns(table) or table.keys() - set(OF_ACCESS):
            raise ValueError(f"{where}: {side} has to be a table with patterns for {', '.join(OF_ACCESS)}")
    for key, value in patterns.items():
        if key not in SIDES and not isinstance(value, str):
            raise ValueError(f"{where}: {key} has to be a text, not {value!r}")
    if not patterns:
        raise ValueError(f"{where}: a pattern for one of {', '.join(KEYS)} is required")
    return Suppression(reason, patterns)


def are_patterns(table: dict[str, Any]) -> bool:
    return all(isinstance(pattern, str) for pattern in table.values())


def applied(suppressions: list[Suppression], findings: list[Finding]) -> tuple[list[Finding], int]:
    """Return the findings that no entry fits, and the number of findings left out."""
    kept = []
    for finding in findings:
        fitting = next((one for one in suppressions if one.fits(finding)), None)
        if fitting is None:
            kept.append(finding)
        else:
            fitting.used += 1
    return kept, len(findings) - len(kept)
