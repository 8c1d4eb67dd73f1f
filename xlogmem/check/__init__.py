"""`xlogmem check`: find the missing wait in a CUDA Python program; docs/check.md.

`start` is what runs inside of the program, `findings` what it has found, `report` how that is said, `suppressions`
what is left out, `command` runs a program and `plugin` tests: ``pytest -p xlogmem.check``.  The engine
(xlogmem/check/engine) is C++ and knows nothing of these.
"""
from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest


def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Before a conftest can load the driver."""
    from xlogmem.check.plugin import Checks

    early_config.pluginmanager.register(Checks(), "xlogmem-check")


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("xlogmem check")
    group.addoption("--races", choices=("fail", "report"), default="fail",
                    help="what a certain finding does to its test; with report only a test that uses the fixture "
                    "`no_races` fails")
