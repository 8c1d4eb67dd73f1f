"""The package's logger, imported late: few processes log anything.  And warnings of a line of the program.

Importing `logging` takes a fifth of the time that importing all of xlogmem takes.
"""
from __future__ import annotations

import sys
import warnings
from os.path import dirname, join
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import logging
    from types import FrameType

__all__ = ["WARNING", "logger", "warn"]

WARNING = 30                                # as in logging
PACKAGE = join(dirname(dirname(__file__)), "")
IMPORTS = "<frozen importlib._bootstrap"    # whose frames `warnings` does not count


def logger() -> logging.Logger:
    """The logger ``"xlogmem"``."""
    import logging

    return logging.getLogger("xlogmem")


def warn(message: str, category: type[Warning]) -> None:
    """Warn of the line of the program that has called xlogmem.  Compiled functions have no frame of their own, so no
    fixed `stacklevel` is right for them and for functions of Python's."""
    frame: FrameType | None = sys._getframe()           # this function's
    level = 1
    while frame is not None and (name := frame.f_code.co_filename).startswith((PACKAGE, IMPORTS)):
        level += name.startswith(PACKAGE)
        frame = frame.f_back                            # a thread of C++'s has no frame of the program's
    warnings.warn(message, category, stacklevel=level)
