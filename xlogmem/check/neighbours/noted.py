"""Notes about libraries, printed at the end of a report: reasons why findings may be missing."""
from __future__ import annotations

from collections.abc import Callable

__all__ = ["note", "note_at_end", "notes"]

_notes: dict[str, None] = {}
_at_end: list[Callable[[], str]] = []


def note(text: str) -> None:
    _notes[text] = None


def note_at_end(text_of: Callable[[], str]) -> None:
    """Have a note made when the report is: an empty one is left out."""
    _at_end.append(text_of)


def notes() -> list[str]:
    """Return the notes, each once, in the order in which they came up."""
    return [*_notes, *filter(None, (text_of() for text_of in _at_end))]
