"""Programs that are right by a rule of the driver's, or may be: no certain finding."""
from __future__ import annotations

import pytest
from checked_programs import DRIVER

pytestmark = pytest.mark.simulator

START = DRIVER + """
a, b = (ok(cuda.cuStreamCreate(1)) for _ in range(2))
p = ok(cuda.cuMemAlloc(4096))
"""
GRAPH = START + """
def captured():
    ok(cuda.cuStreamBeginCapture(a, cuda.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED))
    ok(cuda.cuMemsetD8Async(p, 1, 4096, a))
    return ok(cuda.cuGraphInstantiate(ok(cuda.cuStreamEndCapture(a)), 0))

one = captured()
other = one if "same" in sys.argv else captured()
ok(cuda.cuGraphLaunch(one, a))
ok(cuda.cuGraphLaunch(other, b))
ok(cuda.cuCtxSynchronize())
"""
HOST_FUNCTION = START + """
done = threading.Event()
called = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: done.set())
ok(cuda.cuMemsetD8Async(p, 1, 4096, a))
if "called" in sys.argv:
    ok(cuda.cuLaunchHostFunc(a, cuda.CUhostFn(ctypes.cast(called, ctypes.c_void_p).value), 0))
    done.wait()
ok(cuda.cuMemsetD8Async(p, 2, 4096, b))
ok(cuda.cuCtxSynchronize())
"""

MANAGED = START + """
m = ok(cuda.cuMemAllocManaged(4096, 1))
ok(cuda.cuMemsetD8Async(m, 1, 4096, a))
if "fixed" in sys.argv:
    ok(cuda.cuStreamSynchronize(a))
ok(cuda.cuMemcpyDtoDAsync(p, m, 4096, b))
ok(cuda.cuMemFree(m))
memory = bytearray(b"x" * (1 << 22))                    # at the addresses of `m`, if these were given again
ok(cuda.cuMemcpyHtoD(p, bytes(memory[:4096]), 4096))
"""


def test_launches_of_one_executable_graph_come_after_each_other(checked):
    """"Each launch is ordered behind … any previous launches of hGraphExec": cuGraphLaunch."""
    assert checked(GRAPH, "same").pairs == []
    assert checked(GRAPH, "two").pairs == [("write/write", True)]


def test_a_host_function_may_say_that_its_stream_is_done(checked):
    assert checked(HOST_FUNCTION, "called").pairs == [("write/write", False)]
    assert checked(HOST_FUNCTION).pairs == [("write/write", True)]


def test_managed_memory_is_memory_of_streams(checked):
    assert checked(MANAGED).pairs == [("write/read", True)]
    assert checked(MANAGED, "fixed").pairs == []


RELEASED = DRIVER + """
a = ok(cuda.cuStreamCreate(1))
if "retained" in sys.argv:
    ok(cuda.cuDevicePrimaryCtxRetain(0))
ok(cuda.cuDevicePrimaryCtxRelease(0))
cuda.cuStreamSynchronize(a)
"""


def test_the_last_release_of_a_primary_context_ends_its_streams(checked):
    assert [one["kind"] for one in checked(RELEASED).findings] == ["dead-stream"]
    assert checked(RELEASED, "retained").findings == []
