"""Quantities as text, in both directions."""
from __future__ import annotations

import operator
import re
from collections.abc import Callable
from typing import SupportsIndex

__all__ = ["format_bytes", "parse_bytes"]

UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
POWERS = {unit.lower(): 1024 ** power for power, unit in enumerate(UNITS)} | {
    unit.lower(): 1000 ** power for power, unit in enumerate(("B", "kB", "MB", "GB", "TB"))}


def format_bytes(nbytes: int) -> str:
    """A number of bytes in the largest binary unit of which it has at least one: ``"512 B"``, ``"1.5 MiB"``."""
    number, power = float(nbytes), 0
    while number >= 1024 and power < len(UNITS) - 1:
        number /= 1024
        power += 1
    return f"{number:.1f} {UNITS[power]}" if power else f"{nbytes} B"


def parse_bytes(name: str, value: SupportsIndex | str | float, total: Callable[[], int]) -> int:
    """A number of bytes: an int, a text such as ``"8GiB"`` or ``"500 MB"``, or a share of `total()`.

    Raises
    ------
    TypeError, ValueError
        It is none of these; the error names the parameter.
    """
    if isinstance(value, str):
        found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]+)\s*", value)
        if not found or found[2].lower() not in POWERS:
            raise ValueError(f"{name} must be a number and a unit ({', '.join(UNITS)}, kB, MB, GB, TB), got {value!r}")
        return int(float(found[1]) * POWERS[found[2].lower()])
    if isinstance(value, float):
        if not 0 < value <= 1:
            raise ValueError(f"{name} as a share of the device's memory must be above 0 and at most 1, got {value}; a "
                             "number of bytes is an int")
        return int(value * total())
    try:
        nbytes = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be an int, a text such as '8GiB' or a share such as 0.5, not "
                        f"{type(value).__name__}") from None
    if not 0 <= nbytes < 1 << 63:
        raise ValueError(f"{name} must be a number of bytes, got {nbytes}")
    return nbytes
