"""The reaction to `rmm.reinitialize`, which replaces RMM's resources.

RMM's own hooks (``register_reinitialize_hook``) run before the replacement.  So the function that RMM calls last is
replaced here, in RMM's module: a program may have imported ``reinitialize`` itself by name.
"""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import rmm.rmm

__all__ = ["follow", "leave"]


class _Initialize:
    """In the place of RMM's function: calls it, and then what follows."""

    def __init__(self, real: Callable[..., None], after: Callable[[], None]) -> None:
        self.real, self.after = real, after

    def __call__(self, *arguments: Any, **keywords: Any) -> None:
        self.real(*arguments, **keywords)
        self.after()


def follow(after: Callable[[], None]) -> None:
    """Call `after` at the end of each `rmm.reinitialize` that succeeds; a second call changes nothing."""
    real = rmm.rmm._initialize
    if not isinstance(real, _Initialize):
        rmm.rmm._initialize = _Initialize(real, after)


def leave() -> None:
    """Restore RMM's function, unless other code has replaced ours."""
    ours = rmm.rmm._initialize
    if isinstance(ours, _Initialize):
        rmm.rmm._initialize = ours.real
