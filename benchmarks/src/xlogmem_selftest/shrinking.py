"""A program that goes wrong is made short: steps are left out while it goes wrong in the same way."""
from __future__ import annotations

import re
from collections.abc import Callable
from typing import Protocol, TypeVar

__all__ = ["shrink", "signature"]

TRIES = 400                                 # programs run to shrink one


class Steps(Protocol):
    """A program, of which each step runs without the others."""

    @property
    def numbers(self) -> tuple[int, ...]: ...

    def keeping(self: Shortened, numbers: tuple[int, ...], /) -> Shortened: ...


Shortened = TypeVar("Shortened", bound=Steps)


def signature(violation: str) -> str:
    """The text that violations of one kind have in common."""
    return re.sub(r"0x[\da-f]+|\d+", "", violation.split(":")[0])


def shrink(program: Shortened, wanted: str, violations: Callable[[Shortened], list[str]]) -> Shortened:
    """Leave out steps, many at a time and then fewer, while a violation has the wanted signature.

    Parameters
    ----------
    program : Program
        The program to shorten.
    wanted : str
        The signature that has to stay.
    violations : callable
        Runs a program, and returns what went wrong.
    """
    tries = TRIES

    def fails(numbers: tuple[int, ...]) -> bool:
        nonlocal tries
        tries -= 1
        return any(signature(violation) == wanted for violation in violations(program.keeping(numbers)))

    kept = program.numbers
    size = max(1, len(kept) // 2)
    while tries > 0:
        smaller = kept
        at = 0
        while at < len(smaller) and tries > 0:
            candidate = smaller[:at] + smaller[at + size:]
            if candidate and fails(candidate):
                smaller = candidate
            else:
                at += size
        if size == 1 and smaller == kept:
            break
        kept = smaller
        size = max(1, min(size // 2, len(kept) // 2))
    return program.keeping(kept)
