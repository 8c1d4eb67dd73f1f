"""Quantities as text, for summaries that are read by a person."""
from __future__ import annotations

__all__ = ["format_bytes"]


def format_bytes(nbytes: int) -> str:
    """A number of bytes in the largest binary unit that leaves at least one: ``"512 B"``, ``"1.5 MiB"``."""
    number = float(nbytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if number < 1024:
            break
        number /= 1024
    else:
        unit = "TiB"
    return f"{nbytes} B" if unit == "B" else f"{number:.1f} {unit}"
