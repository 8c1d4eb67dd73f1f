"""Uploads and maps of a process that is interrupted, forks, ends or loses the device: nothing is lost, or hangs."""
from __future__ import annotations

import pytest
from sim_support import python

pytestmark = pytest.mark.simulator

START = """
import gc, os, signal, threading, time
import numpy
from cuda.bindings import driver as cuda
import xlogmem
from xlogmem import sim

simulator = sim.install()
simulator.set_policy("min")
state = xlogmem.get_device_state()
runtime = state.runtime
stream = runtime.acquire_stream()
array = numpy.full(200 << 20, 1, "uint8")           # more than the pieces under way may have

def left():
    runtime.reap_pending()
    return runtime.live_bytes, runtime.resources[1].statistics()["used_bytes"]

def check(buffer):
    assert (buffer.to_numpy() == 1).all()
    buffer.release()
"""
INTERRUPTED = START + """
signal.signal(signal.SIGINT, signal.default_int_handler)        # a process in the background ignores it
held = simulator.hold("cuEventSynchronize")

def interrupt():
    assert held.reached()                               # the upload waits for the oldest piece
    os.kill(os.getpid(), signal.SIGINT)
    held.release()

threading.Thread(target=interrupt).start()
try:
    state.upload(array, stream)
except KeyboardInterrupt:
    pass
else:
    raise AssertionError("the upload was not interrupted")
gc.collect()
assert left() == (0, 0), left()
check(state.upload(array, stream))
print("done")
"""
FORKED = START + """
buffer = state.upload(array, stream)
child = os.fork()
if child == 0:
    for refused in (lambda: state.upload(array, stream), buffer.download,
                    lambda: runtime.allocate(10, xlogmem.host, resource=runtime.resources[1])):
        try:
            refused()
        except xlogmem.DriverError as error:
            assert "forked" in str(error), error
        else:
            os._exit(1)
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
check(buffer)
assert left() == (0, 0), left()
print("done")
"""
MAPPED = START + """
pool = xlogmem.PoolMemoryResource(xlogmem.PinnedMemoryResource())
staging = state.empty(1 << 20, "uint8", xlogmem.host, resource=pool)
with staging.map(write=True) as mapped:
    mapped[:] = 1
    child = os.fork()
    if child == 0:
        for refused in (lambda: staging.map().__enter__(), lambda: staging.fill(3, xlogmem.host),
                        lambda: xlogmem.use(xlogmem.host, read=staging).preflight()):
            try:
                refused()
            except (xlogmem.DriverError, xlogmem.StreamMisuseError) as error:
                assert "forked" in str(error), error
            else:
                os._exit(1)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    mapped[0] = 2
assert staging.to_numpy(xlogmem.host)[:2].tolist() == [2, 1]
del mapped
staging.release()
runtime.reap_pending()
assert (runtime.live_bytes, pool.statistics()["used_bytes"]) == (0, 0)
print("done")
"""
ENDING = START + """
kept = [state.upload(array, stream), state.upload(array, stream).download(stream),
        runtime.allocate(64, xlogmem.host, resource=runtime.resources[1])]
threading.Thread(target=lambda: [state.upload(array, stream) for _ in range(100)], daemon=True).start()
print("done", flush=True)
"""
LOST = START + """
for nth in (1, 2, 3):
    lost = xlogmem.DeviceState(xlogmem.DeviceRuntime())
    simulator.fail("cuMemcpyHtoDAsync", nth, 700)
    try:
        lost.upload(array[:10 << 20])
    except xlogmem.DeviceLostError as error:            # it speaks of the copy, and not of the staging memory
        assert str(error).endswith("while copying from the host"), error
        assert error.__context__ is None
    else:
        raise AssertionError("the device was not lost")
    lost.mark_lost()
print("done")
"""


@pytest.mark.parametrize("program", [INTERRUPTED, FORKED, MAPPED, ENDING, LOST],
                         ids=["interrupted", "forked", "mapped", "ending", "lost"])
def test_a_process_that_uploads(program):
    run = python("-W", "ignore::DeprecationWarning", "-c", program, XLOGMEM_SIMULATE="1", XLOGMEM_SIM="quiet")
    assert (run.returncode, run.stdout, run.stderr) == (0, "done\n", "")
