"""`xlogmem check`: find the missing wait in a CUDA Python program; docs/check.md.

`start` runs inside of the program; `findings` has its findings, `audit` its undeclared work, `report` the text of both;
`suppressions` and `ignored` leave findings out; `command` runs a program and `plugin` runs tests:
``pytest -p xlogmem.check``.  The engine (cpp/engine) is C++ and knows nothing of these.
"""
from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from xlogmem.check.ignored import ignore

if TYPE_CHECKING:
    import pytest

    from xlogmem.check.launches import Launch

__all__ = ["ignore", "kernel"]


def kernel(pattern: str, *, read: Iterable[int] = (), write: Iterable[int] = (),
           run: Callable[[Launch], object] | None = None) -> None:
    """Declare the accesses of a kernel, for a check without a GPU; elsewhere this does nothing.

    Parameters
    ----------
    pattern
        The kernel's name as the driver knows it, mangled for a C++ kernel; ``*`` and ``?`` as in a shell.
    read, write
        The parameters, counted from 0, through which the kernel reads and writes, in place of the facts in its image.
    run
        Called in the kernel's place, in the order of its stream, with a `Launch`: for kernels whose results decide the
        program's next steps.  `run` must make no CUDA calls.  Without `run` nothing is computed.

    Raises
    ------
    ValueError
        An index is negative.

    Examples
    --------
    >>> import xlogmem.check
    >>> xlogmem.check.kernel("count_*", read=[1], write=[0])
    """
    from xlogmem.check.launches import declare

    declare(pattern, read, write, run)


def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Register the plugin, before a conftest can load the driver."""
    from xlogmem.check.plugin import Checks

    early_config.pluginmanager.register(Checks(), "xlogmem-check")


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("xlogmem check")
    group.addoption("--races", choices=("fail", "report"), default="fail",
                    help="what a certain finding does to its test; with report only a test that uses the fixture "
                    "`no_races` fails")
