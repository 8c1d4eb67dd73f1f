"""Environments of child processes."""
from __future__ import annotations

import os

from xlogmem import sim


def variables(**given: object) -> dict[str, str]:
    """This process' environment with these variables, in upper case, and settings of the simulated driver, in lower
    case.  The settings join those that are there; the driver is quiet unless they say otherwise."""
    environment = os.environ | {name: str(value) for name, value in given.items() if name.isupper()}
    settings = {"quiet": True} | {name: value for name, value in given.items() if name.islower()}
    return environment | sim.settings(environment, **settings)
