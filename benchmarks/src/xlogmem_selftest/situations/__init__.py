"""Situations that chance makes too seldom: each needs several things in the right order, or a look from outside.

The programs choose them like any other step, with the policy, the schedule and the streams drawn; each has a small
runtime of its own.  What is not ordered the simulated driver reports, so a situation only has to bring it about; what
is not a question of order it checks itself.  They need the simulated driver: injected failures, gaps, a second device.
"""
from __future__ import annotations

from xlogmem_selftest.registry import situation
from xlogmem_selftest.situations import frees, launches, pools, process, streams

__all__ = ["SITUATIONS"]

SITUATIONS = situation.of(launches, frees, pools, streams, process)     # a program's seed chooses by this order
