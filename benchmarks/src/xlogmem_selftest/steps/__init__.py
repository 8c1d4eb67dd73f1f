"""Operations of random programs: one function for each step, which draws its arguments from its own random numbers.

A step that finds nothing to work on raises `NothingToDo`.  What the library raises is judged where the step is run
(`World.excuses`); here errors are caught only where the program has to put its own side in order, or where it wants
them: calls that have to be refused are made on purpose, and one that is not refused is a violation.
"""
from __future__ import annotations

from xlogmem_selftest.registry import step
from xlogmem_selftest.steps import (
    adopted,
    blocks,
    devices,
    disturbances,
    exchange,
    graphs,
    host,
    identity,
    libraries,
    streams,
    unrecorded,
    windows,
)

__all__ = ["STEPS"]

STEPS = {function.__name__: function for function in step.of(
    exchange, blocks, windows, unrecorded, identity, adopted, streams, disturbances, libraries, devices, host, graphs)}
