"""Scopes: parts of a program whose allocations have a tag."""
from __future__ import annotations

from collections.abc import Callable
from types import TracebackType

from xlogmem._base.signatures import refuse_type
from xlogmem._base.texts import shown
from xlogmem.blocks import OpenScope, PeakSpan, enter_scope, leave_scope, live_by_tag
from xlogmem.runtime import DeviceRuntime, existing_runtime

__all__ = ["range_with", "scope"]

_begin_range: Callable[[str], Callable[[], object]] | None = None


def range_with(begin: Callable[[str], Callable[[], object]] | None) -> None:
    """Have each scope that is entered from here on call `begin` with its tag, and at its end what that returned."""
    global _begin_range
    _begin_range = begin


class scope:                                # in the style of a function, as contextlib.suppress
    """Give a tag to the allocations of a part of a program: ``with xlogmem.scope("join"):``.

    Allocations from Python that name a tag keep it; inside another scope the inner one counts.

    Parameters
    ----------
    tag : str
        The tag.
    runtime : DeviceRuntime, optional
        Of which the figures are read; the default is the process's own for device 0, if there is one when the scope is
        entered.  The tag is for all runtimes.

    Attributes
    ----------
    peak_bytes : int or None
        Once it has ended: the most bytes of the runtime that were live at a time while it was open; see
        `DeviceRuntime.peak_bytes`.  None without a runtime.
    bytes_by_tag : dict of (str or None) to int
        Once it has ended: the runtime's live bytes by tag at that moment, the largest first; None stands for all
        without a tag.

    Raises
    ------
    TypeError
        The tag is not a str, or the runtime not a `DeviceRuntime`.
    RuntimeError
        The scope is open already.

    Notes
    -----
    The tag counts in this thread and context (`contextvars`): an asyncio task has that of the place where it was
    made, until that scope ends, a thread has none at its beginning. Scopes may end in any order, and in another thread
    or context than they began in. The peak is that of all threads. Allocations of other libraries
    through `xlogmem.enable` or RMM have no tag.
    Allocations with a tag take the runtime's lock, and get nothing from the caches of streams.

    Examples
    --------
    >>> runtime = xlogmem.get_runtime()
    >>> with xlogmem.scope("join", runtime=runtime) as join:
    ...     block = runtime.allocate("1MiB")
    >>> block.tag
    'join'
    >>> join.bytes_by_tag["join"]
    1048576
    """

    peak_bytes: int | None
    bytes_by_tag: dict[str | None, int]

    def __init__(self, tag: str, *, runtime: DeviceRuntime | None = None) -> None:
        if not isinstance(tag, str):
            raise TypeError(f"the tag of a scope must be a str, not {type(tag).__name__}")
        if runtime is not None and not isinstance(runtime, DeviceRuntime):
            refuse_type("runtime", runtime, DeviceRuntime)
        self.tag = tag
        self.peak_bytes = None
        self.bytes_by_tag = {}
        self._runtime = runtime
        self._opened: OpenScope | None = None
        self._counted: tuple[DeviceRuntime, PeakSpan] | None = None
        self._end_range: Callable[[], object] | None = None

    def __enter__(self) -> scope:
        if self._opened is not None:
            raise RuntimeError(f"the scope {shown(self.tag)} is open already: make a new one")
        runtime = self._runtime if self._runtime is not None else existing_runtime(0)
        if runtime is not None:
            self._counted = runtime, PeakSpan(runtime)
        if _begin_range is not None:
            self._end_range = _begin_range(self.tag)
        self._opened = enter_scope(self.tag)
        return self

    def __exit__(self, kind: type[BaseException] | None, exception: BaseException | None,
                 traceback: TracebackType | None) -> None:
        if self._opened is None:
            raise RuntimeError(f"the scope {shown(self.tag)} is not open")
        leave_scope(self._opened)
        self._opened = None
        if self._end_range is not None:
            self._end_range()
            self._end_range = None
        if self._counted is not None:
            runtime, peak = self._counted
            self._counted = None
            peak.end()
            self.peak_bytes = peak.peak_bytes
            self.bytes_by_tag = {tag: nbytes for tag, nbytes, _ in live_by_tag(runtime)}

    def __repr__(self) -> str:
        return f"<scope {shown(self.tag)}{' open' if self._opened is not None else ''}>"
