"""The end of a process: of the interpreter, and of processes of `multiprocessing`, which do not get that far."""
from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Callable

__all__ = ["at_end"]

_registered: set[tuple[int, Callable[[], object]]] = set()      # with the process


def at_end(function: Callable[[], object]) -> None:
    """Have it called at the end of this process, perhaps twice; once more makes no difference.

    A process of `multiprocessing` that was forked, or comes from a fork server, ends with `os._exit`, which runs no
    function of `atexit`, but it has a list of its own.  That module is not imported for this.
    """
    if (os.getpid(), function) in _registered:
        return
    if not any(known is function for _, known in _registered):
        atexit.register(function)                       # a forked child has what its parent registered
    _registered.add((os.getpid(), function))
    workers = sys.modules.get("multiprocessing.process")
    if workers is not None and workers.parent_process() is not None:
        from multiprocessing.util import Finalize
        Finalize(None, function, exitpriority=0)
