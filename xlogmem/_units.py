"""Quantities as text, for summaries that are read by a person."""
from __future__ import annotations

__all__ = ["format_bytes"]

UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def format_bytes(nbytes: int) -> str:
    """A number of bytes in the largest binary unit of which it has at least one: ``"512 B"``, ``"1.5 MiB"``."""
    number, power = float(nbytes), 0
    while number >= 1024 and power < len(UNITS) - 1:
        number /= 1024
        power += 1
    return f"{number:.1f} {UNITS[power]}" if power else f"{nbytes} B"
