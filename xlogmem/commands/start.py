"""The driver that commands, benchmarks and the self-test run on: the GPU's if there is one, else the simulated one.

The library itself never chooses the simulated driver unless `XLOGMEM_SIMULATE` or `xlogmem.sim.install` says so.
"""
from __future__ import annotations

from xlogmem import _driver, sim
from xlogmem.errors import DriverNotFoundError

__all__ = ["start_driver"]


def start_driver() -> None:
    """Load the GPU's driver; without one, install the simulated driver, which announces itself."""
    try:
        _driver.initialize()
    except DriverNotFoundError:
        sim.install()
        _driver.initialize()
