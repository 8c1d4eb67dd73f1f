"""Quantities as text, in both directions."""
from __future__ import annotations

import math
import numbers
import operator
import re
from collections.abc import Callable
from typing import Any, SupportsIndex

__all__ = ["bytes_in_words", "count_of_devices", "counted", "format_bytes", "format_duration", "parse_bytes",
           "parse_device_id", "parse_number", "parse_size", "shortened"]

UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
POWERS = {unit.lower(): 1024 ** power for power, unit in enumerate(UNITS)} | {
    unit.lower(): 1000 ** power for power, unit in enumerate(("B", "kB", "MB", "GB", "TB"))}


def format_bytes(nbytes: int) -> str:
    """Format a number of bytes in the largest binary unit that is not larger than it: ``"512 B"``, ``"1.5 MiB"``."""
    number, power = float(nbytes), 0
    while number >= 1024 and power < len(UNITS) - 1:
        number /= 1024
        power += 1
    return f"{number:.1f} {UNITS[power]}" if power else f"{nbytes} B"


def bytes_in_words(nbytes: int) -> str:
    """Format a number of bytes for a message: ``"3.0 GiB (3221225472 bytes)"``, and below 1 KiB ``"64 bytes"``."""
    exact = f"{nbytes} {'byte' if nbytes == 1 else 'bytes'}"
    return f"{format_bytes(nbytes)} ({exact})" if nbytes >= 1024 else exact


def counted(number: int, one: str, many: str = "") -> str:
    """A number of things for a message: ``"1 block"``, ``"2,000 blocks"``.  `many` is what more than one are called,
    without it `one` and an s."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def format_duration(nanoseconds: int) -> str:
    """Format a time in the largest unit that is not larger than it, with three digits: ``"12.3 ms"``."""
    for unit, size in (("s", 10**9), ("ms", 10**6), ("µs", 10**3)):
        if nanoseconds >= size:
            number = nanoseconds / size
            return f"{number:.{max(0, 2 - int(math.log10(number)))}f} {unit}"
    return f"{nanoseconds} ns"


def parse_bytes(name: str, value: SupportsIndex | str | float, total: Callable[[], int]) -> int:
    """Parse a number of bytes: a whole number (also as ``1e9``), a text such as ``"8GiB"`` or ``"500 MB"``, or a share
    of `total()`, above 0 and at most 1.

    Raises
    ------
    TypeError, ValueError
        It is none of these; the error names the parameter.
    """
    if isinstance(value, str):
        return _in_range(name, value, _bytes_of_text(name, value))
    try:
        return _in_range(name, value, operator.index(value))     # type: ignore[arg-type]
    except TypeError:
        if not isinstance(value, numbers.Real):         # numpy's too
            raise TypeError(f"{name} must be an int, a text such as '8GiB' or a share such as 0.5, not "
                            f"{type(value).__name__}") from None
    share = float(value)
    if share > 1 and share.is_integer():
        return _in_range(name, value, int(share))
    if not 0 < share <= 1:
        raise ValueError(f"{name} as a share of the device's memory must be above 0 and at most 1, got {value}; a "
                         "number of bytes is whole")
    return int(share * total())


def parse_size(name: str, value: SupportsIndex | str | float) -> int:
    """Parse a number of bytes that cannot be a share: a whole number from 0, or a text such as ``"1GiB"``.

    Raises
    ------
    TypeError, ValueError, OverflowError
        It is none of these, or does not fit in 64 bits; the error names the parameter.
    """
    if isinstance(value, str):
        return _in_range(name, value, _bytes_of_text(name, value))
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    try:
        nbytes = operator.index(value)                  # type: ignore[arg-type]
    except TypeError:
        raise TypeError(f"{name} must be a whole number of bytes or a text such as '1GiB', "
                        f"not {shortened(value)}") from None
    if nbytes < 0:
        raise ValueError(f"{name} must not be negative, got {shortened(nbytes)}")
    if nbytes >= 1 << 64:
        raise OverflowError(f"{name} must be below 2**64, got {shortened(nbytes)}")
    return nbytes


def _bytes_of_text(name: str, text: str) -> int:
    """Parse a number and a unit exactly: a float would lose bytes."""
    from fractions import Fraction  # not before it is needed

    found = re.fullmatch(r"\s*(\d{1,1000}(?:\.\d{1,1000})?)\s*([a-zA-Z]+)\s*", text)
    if not found or found[2].lower() not in POWERS:
        raise ValueError(f"{name} must be a number and a unit ({', '.join(UNITS)}, kB, MB, GB, TB), got "
                         f"{shortened(text)}")
    return int(Fraction(found[1]) * POWERS[found[2].lower()])


def _in_range(name: str, given: object, nbytes: int) -> int:
    if not 0 <= nbytes < 1 << 63:
        raise ValueError(f"{name} must be a number of bytes, at least 0 and below 2**63, got {shortened(given)}")
    return nbytes


def shortened(value: object) -> str:
    """The value as text in a message, shortened: Python refuses to format numbers with very many digits."""
    try:
        text = repr(value)
    except ValueError:
        return "a number that is far too large"
    return text if len(text) <= 60 else f"{text[:57]}..."


def parse_number(name: str, value: Any, least: int, most: int, what: str = "a number") -> int:
    """Parse an int in a range.

    Raises
    ------
    TypeError, ValueError
        It is none; the error names the parameter.
    """
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be an int, not {shortened(value)}") from None
    if not least <= number <= most:
        raise ValueError(f"{name} must be {what} from {least} to {most}, got {shortened(number)}")
    return number


def parse_device_id(device_id: SupportsIndex | str, most: int = (1 << 31) - 1) -> int:
    """Parse the number of a device, or a text such as ``"cuda:0"``; the driver checks that the device exists.

    Raises
    ------
    TypeError, ValueError
        It is not a number of a device.
    """
    if isinstance(device_id, str):
        found = re.fullmatch(r"cuda(?::(\d{1,9}))?", device_id)
        if not found:
            raise TypeError(f"device_id must be an int, or a text such as 'cuda:0', not {shortened(device_id)}")
        device_id = int(found[1] or 0)
    return parse_number("device_id", device_id, 0, most, "the number of a device")


def count_of_devices(count: int) -> str:
    """How many devices there are, and their numbers, for a message: ``"2 devices, 0 to 1"``."""
    return f"{count} devices, 0 to {count - 1}" if count > 1 else "1 device, 0" if count else "no device"
