"""Allocations through RMM before `enable`, as far as they can be seen: RMM does not list its allocations.

The buffers that Python has can be seen, and the counts of adaptors.  A buffer that another thread is making at this
moment is among the former, and has no C++ object yet: to read its size or its address ends the process.  So buffers are
counted, and not their bytes.  The resource of a buffer is found by way of the garbage collector, which may visit any
object at any time.
"""
from __future__ import annotations

import gc

import rmm
import rmm.mr

from xlogmem._base.log import warn
from xlogmem._base.units import bytes_in_words, counted
from xlogmem.rmm._binding import RuntimeMemoryResource
from xlogmem.rmm.stacks import stack
from xlogmem.runtime import DeviceRuntime

__all__ = ["warn_of_earlier"]


def warn_of_earlier(replaced: list[rmm.mr.DeviceMemoryResource], former: list[DeviceRuntime]) -> None:
    """Warn the caller of `enable`: once, whichever devices are concerned.

    Parameters
    ----------
    replaced : list of rmm.mr.DeviceMemoryResource
        RMM's resources that get a new runtime.  What adaptors of another one have counted includes what its runtime has
        allocated.
    former : list of DeviceRuntime
        Those that end as the process's own.
    """
    untracked = of_former = 0
    for thing in gc.get_objects():
        if issubclass(type(thing), rmm.DeviceBuffer):   # isinstance reads `__class__`, which may run code of the object
            resource = next(filter(_is_resource, gc.get_referents(thing)), None)
            if resource is not None:
                runtimes = [lower.runtime for lower in stack(resource) if isinstance(lower, RuntimeMemoryResource)]
                untracked += not runtimes
                of_former += any(runtime in former for runtime in runtimes)
    nbytes = sum(max(map(_counted, stack(resource))) for resource in replaced)
    found = ([f"{counted(untracked, 'buffer')} (rmm.DeviceBuffer)"] if untracked else []) + (
        [f"{bytes_in_words(nbytes)}, as RMM's adaptors count them,"] if nbytes else [])
    if found:
        were = "was" if untracked + nbytes == 1 else "were"
        warn(f"{' and '.join(found)} {were} allocated through RMM before xlogmem.rmm.enable(): this memory is not "
             "tracked, and use() refuses it. Call enable() before anything is allocated, or adopt it "
             "(DeviceRuntime.adopt)", RuntimeWarning)
    if of_former:
        warn(f"{counted(of_former, 'buffer was', 'buffers were')} allocated before RMM's resource was replaced: the "
             "former runtime tracks what was allocated then, and use() finds it there only (runtime=...)",
             RuntimeWarning)


def _is_resource(thing: object) -> bool:
    return issubclass(type(thing), rmm.mr.DeviceMemoryResource)


def _counted(mr: rmm.mr.DeviceMemoryResource) -> int:
    """Bytes that are allocated now, if it is an adaptor that knows."""
    if isinstance(mr, rmm.mr.StatisticsResourceAdaptor):
        return int(mr.allocation_counts.current_bytes)
    if isinstance(mr, rmm.mr.TrackingResourceAdaptor | rmm.mr.LimitingResourceAdaptor):
        return int(mr.get_allocated_bytes())
    return 0
