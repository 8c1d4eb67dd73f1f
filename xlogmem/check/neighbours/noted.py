"""Notes about libraries, printed at the end of a report: reasons why findings may be missing."""
from __future__ import annotations

__all__ = ["note", "notes"]

_notes: dict[str, None] = {}


def note(text: str) -> None:
    _notes[text] = None


def notes() -> list[str]:
    """Return the notes, each once, in the order in which they came up."""
    return list(_notes)
