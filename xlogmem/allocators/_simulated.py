"""Libraries that look for a driver on paths of their own, where the simulated one is not."""
from __future__ import annotations

from collections.abc import Callable

from xlogmem._driver import is_simulated

__all__ = ["find_simulated_driver"]


def find_simulated_driver(library: str, look: Callable[[], object]) -> None:
    """Let the library look for the simulated driver, if there is one.  Makes no context.

    Raises
    ------
    RuntimeError
        The library does not find it.
    """
    if not is_simulated():
        return
    try:
        look()
    except Exception as error:
        raise RuntimeError(f"{library} does not find the simulated driver by itself: `xlogmem check --no-gpu "
                           "program.py` runs the program there, where no kernel computes anything") from error
