"""The check knows green contexts: their streams, events of a whole context, a wait of the host for all of a device."""
from __future__ import annotations

import pytest
from places import HELPERS

pytestmark = pytest.mark.simulator
PROGRAM = f"""
import sys
sys.path.insert(0, {str(HELPERS)!r})
from cuda.bindings import driver as cuda
from xlogmem.sim.kernels import check
check(cuda.cuInit(0))
check(cuda.cuCtxPushCurrent(check(cuda.cuDevicePrimaryCtxRetain(0))))
from green import GreenContext, GreenStream
how = (sys.argv + ["nothing"])[1]
green = GreenContext()
g, ordinary = GreenStream(green), check(cuda.cuStreamCreate(1))
event, memory = check(cuda.cuEventCreate(2)), check(cuda.cuMemAlloc(64))
check(cuda.cuMemsetD32Async(memory, 1, 16, g.stream))                       # the first
if how == "stream":
    check(cuda.cuEventRecord(event, g.stream))
    check(cuda.cuStreamWaitEvent(ordinary, event, 0))
if how == "context":
    check(cuda.cuGreenCtxRecordEvent(green.handle, event))
    check(cuda.cuStreamWaitEvent(ordinary, event, 0))
if how == "host":
    check(cuda.cuCtxSynchronize())
check(cuda.cuMemsetD32Async(memory, 2, 16, ordinary))                       # the second
check(cuda.cuCtxSynchronize())
check(cuda.cuMemFree(memory))
g.destroy()
green.destroy()
"""


@pytest.mark.parametrize("how", ["stream", "context", "host"])
def test_what_is_ordered_is_silent(checked, how):
    run = checked(PROGRAM, how)
    assert (run.returncode, run.pairs) == (0, []), run.stderr


def test_what_is_not_is_found(checked):
    run = checked(PROGRAM)
    assert (run.returncode, run.pairs) == (1, [("write/write", True)]), run.stderr
