"""Which driver the tests run on: the real one where there is a GPU, otherwise the simulated one.

The first import settles it for the process.
"""
from __future__ import annotations

import os

from xlogmem import _driver, sim
from xlogmem.commands.start import start_driver

os.environ.update(sim.settings(quiet=True))             # the header of the run says it instead
REQUIRE_CUDA = os.environ.get("XLOGMEM_REQUIRE_CUDA", "0") not in ("", "0")

start_driver()

SIMULATED = _driver.is_simulated()
