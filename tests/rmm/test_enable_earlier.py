"""`xlogmem.rmm.enable` looks for what was allocated before, also while other threads allocate."""
from __future__ import annotations

import os
import subprocess
import sys

import pytest
from c_table import ENVIRONMENT
from places import ROOT
from rmm_if_installed import current, needs_rmm, rmm

import xlogmem
from xlogmem import use

pytestmark = [needs_rmm, pytest.mark.simulator]


# The program ends with a signal where a buffer is touched that has no C++ object yet.
WHILE_A_BUFFER_IS_MADE = """
import threading
import rmm
from xlogmem import sim
sim.install()
import xlogmem.rmm

entered, go = threading.Event(), threading.Event()

def allocate(nbytes, stream):
    entered.set()
    go.wait(60)
    return 4096

def initialize(**_):
    rmm.mr.set_per_device_resource(0, rmm.mr.CallbackMemoryResource(allocate, lambda *freed: None))

rmm.rmm._initialize = initialize
initialize()
below = rmm.mr.get_per_device_resource(0)
thread = threading.Thread(target=lambda: rmm.DeviceBuffer(size=64, mr=below))
thread.start()
entered.wait(60)
xlogmem.rmm.enable(0, follow_reinitialize=True)
rmm.reinitialize()
assert xlogmem.rmm.is_current(0)
go.set()
thread.join()
print("done")
"""


def test_enable_while_another_thread_makes_a_buffer():
    done = subprocess.run([sys.executable, "-c", WHILE_A_BUFFER_IS_MADE], capture_output=True, text=True, timeout=100,
                          env={**os.environ, **ENVIRONMENT}, cwd=ROOT)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
    assert done.stderr.count("1 buffer (rmm.DeviceBuffer) was allocated through RMM before") == 2


def test_one_call_warns_once(two):
    statistics = [rmm.mr.StatisticsResourceAdaptor(source.mr) for source in two]
    pointers = [adaptor.allocate(100) for adaptor in statistics]
    buffers = [rmm.DeviceBuffer(size=8, mr=source.mr) for source in two]
    for device, adaptor in enumerate(statistics):
        rmm.mr.set_per_device_resource(device, adaptor)
    with pytest.warns(RuntimeWarning) as warned:
        xlogmem.rmm.enable([0, 1])
    (text,) = {str(one.message) for one in warned}
    assert text.startswith("2 buffers (rmm.DeviceBuffer) and 200 bytes, as RMM's adaptors count them, were allocated "
                           "through RMM before")
    assert [one.filename for one in warned] == [__file__]
    for adaptor, ptr in zip(statistics, pointers, strict=True):
        adaptor.deallocate(ptr, 100)
    del buffers


def test_what_another_runtime_tracks_is_not_reported(two, recwarn):
    """A buffer of an adaptor on top of a runtime, when another device is enabled, and when its own is again."""
    xlogmem.rmm.enable(0)
    buffer = rmm.DeviceBuffer(size=8, mr=rmm.mr.StatisticsResourceAdaptor(current()))
    xlogmem.rmm.enable(1)
    xlogmem.rmm.disable()
    xlogmem.rmm.enable([0, 1])
    with use(0, read=buffer):
        pass
    assert not recwarn.list
    del buffer


def test_a_buffer_from_between_is_reported(two):
    xlogmem.rmm.enable(0)
    xlogmem.rmm.disable()
    buffer = rmm.DeviceBuffer(size=8, mr=current())
    with pytest.warns(RuntimeWarning, match="1 buffer .* was allocated through RMM before"):
        xlogmem.rmm.enable(0)
    del buffer
