"""Arrays that are dropped while their library captures a graph: the graph does not own their memory.

The library's own functions that begin and end a capture are wrapped, so frees outside of a capture cost nothing more.
"""
from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

from xlogmem._base.texts import printable
from xlogmem._base.units import format_bytes
from xlogmem._driver import ProcessLock

__all__ = ["Captures", "Dropped"]


class Dropped(NamedTuple):
    arrays: int = 0
    nbytes: int = 0


class Captures:
    """The captures of one library.

    Parameters
    ----------
    arrays : str
        The library's name for its arrays, for the warning.
    begin : callable
        Called when the first capture has begun: from here on the library's frees are counted.
    end : callable
        Called when the last capture ends: returns the number and bytes of arrays dropped meanwhile, in any thread.

    Notes
    -----
    Thread-safe.  Of captures that overlap the last one warns.
    """

    def __init__(self, arrays: str, begin: Callable[[], None], end: Callable[[], Dropped]) -> None:
        self._arrays, self._begin, self._end = arrays, begin, end
        self._open = 0
        self._lock = ProcessLock()
        self._wrapped: list[tuple[type, str, Any, Any]] = []    # the last: the owner's own method, if it has one

    def watch(self, owner: type, begin: str, end: str) -> None:
        """Wrap the methods of `owner` that begin and end a capture, if it has them.  A second call does nothing."""
        if hasattr(owner, begin) and not any(known is owner for known, *_ in self._wrapped):
            self._wrap(owner, begin, self._after_begin)
            self._wrap(owner, end, self._after_end)

    def unwatch(self) -> None:
        """Restore the methods, unless other code has replaced them.  A capture in progress is not watched further."""
        while self._wrapped:
            owner, name, wrapped, own = self._wrapped.pop()
            if vars(owner).get(name) is not wrapped:
                continue
            if own is not None:
                setattr(owner, name, own)
            else:
                delattr(owner, name)            # it is a method of a base class
        self._close(everything=True)

    def _wrap(self, owner: type, name: str, after: Callable[[bool], None]) -> None:
        method = getattr(owner, name)

        @functools.wraps(method, updated=())            # a compiled method has no __dict__
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            try:
                result = method(*args, **kwargs)
            except BaseException:
                after(False)
                raise
            after(True)
            return result

        self._wrapped.append((owner, name, wrapped, vars(owner).get(name)))
        setattr(owner, name, wrapped)

    def _after_begin(self, succeeded: bool) -> None:
        with self._lock:
            if succeeded:
                self._open += 1
                if self._open == 1:
                    self._begin()

    def _after_end(self, succeeded: bool) -> None:
        """A capture that was spoilt has ended as well, and made no graph."""
        dropped = self._close()
        if succeeded and dropped.arrays:
            what = f"{dropped.arrays} {self._arrays}{'s' * (dropped.arrays != 1)} of {format_bytes(dropped.nbytes)}"
            warnings.warn(
                f"{printable(what)} dropped while a graph was captured: the graph does not own their memory. If its "
                "work uses it, a launch reads and writes the memory of the next owner. Keep what a graph uses alive as "
                "long as the graph. `xlogmem check` finds the launches that use it", RuntimeWarning, stacklevel=3)

    def _close(self, everything: bool = False) -> Dropped:
        with self._lock:
            if not self._open:
                return Dropped()
            self._open = 0 if everything else self._open - 1
            return Dropped() if self._open else self._end()
