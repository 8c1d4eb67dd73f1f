"""Findings that are known, and left out with a reason: a TOML file.

    [[suppress]]
    reason = "the library's own pool orders this"       # required
    kind = "write/free"                                 # what the report calls it; without it, any
    file = "*/site-packages/somelib/*"                  # a pattern; of either place
    function = "Pool.*"
    operation = "cuMemFreeAsync"
    allocated = "*/somelib/*"                           # of the memory: a file that allocated it, or whose callee did
"""
from __future__ import annotations

import tomllib
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from xlogmem.check.findings import Access, Finding

__all__ = ["Suppression", "applied", "loaded"]

PATTERNS = ("kind", "file", "function", "operation", "allocated")


@dataclass
class Suppression:
    """One entry; patterns are those of a shell."""

    reason: str
    patterns: dict[str, str]
    used: int = 0

    def fits(self, finding: Finding) -> bool:
        kind = finding.pair if finding.kind == "race" else finding.kind
        if not fnmatchcase(kind, self.patterns.get("kind", "*")):
            return False
        wanted = self.patterns.get("allocated")
        if wanted and not any(fnmatchcase(frame.file, wanted) for frame in finding.allocated):
            return False
        return any(self.fits_access(access) for access in (finding.first, finding.second))

    def fits_access(self, access: Access) -> bool:
        if not fnmatchcase(access.name, self.patterns.get("operation", "*")):
            return False
        if "file" not in self.patterns and "function" not in self.patterns:
            return True
        return any(fnmatchcase(frame.file, self.patterns.get("file", "*"))
                   and fnmatchcase(frame.function, self.patterns.get("function", "*")) for frame in access.stack)


def loaded(file: str) -> list[Suppression]:
    """The entries of a file.

    Raises
    ------
    ValueError
        It is not such a file; the text says where.
    """
    try:
        document = tomllib.loads(Path(file).read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{file}: {error}") from error
    entries = document.pop("suppress", [])
    if document or not isinstance(entries, list):
        raise ValueError(f"{file}: only [[suppress]] entries are expected, found {', '.join(document) or 'a table'}")
    found = []
    for number, entry in enumerate(entries, 1):
        if not isinstance(entry, dict):
            raise ValueError(f"{file}, entry {number}: [[suppress]] with keys is expected, found {entry!r}")
        unknown = entry.keys() - {"reason", *PATTERNS}
        if unknown or not isinstance(entry.get("reason"), str) or not entry["reason"].strip():
            raise ValueError(f"{file}, entry {number}: " + (f"unknown keys {sorted(unknown)}" if unknown else
                                                            "a reason is required"))
        patterns = {key: entry[key] for key in PATTERNS if key in entry}
        if not patterns or not all(isinstance(pattern, str) for pattern in patterns.values()):
            raise ValueError(f"{file}, entry {number}: a pattern for one of {', '.join(PATTERNS)} is required")
        found.append(Suppression(entry["reason"], patterns))
    return found


def applied(suppressions: list[Suppression], findings: list[Finding]) -> tuple[list[Finding], int]:
    """The findings that no entry fits, and how many were left out."""
    kept = []
    for finding in findings:
        fitting = next((one for one in suppressions if one.fits(finding)), None)
        if fitting is None:
            kept.append(finding)
        else:
            fitting.used += 1
    return kept, len(findings) - len(kept)
