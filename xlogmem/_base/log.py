"""The package's logger, imported late: few processes log anything.

Importing `logging` takes a fifth of the time that importing all of xlogmem takes.
"""
from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import logging

__all__ = ["WARNING", "logger"]

WARNING = 30                                # as in logging


def logger() -> logging.Logger:
    """The logger ``"xlogmem"``."""
    import logging

    return logging.getLogger("xlogmem")
