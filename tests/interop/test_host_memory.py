"""Where the host has no memory for a copy, that is a MemoryError, and nothing is lost."""
from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import pytest
from c_table import ENVIRONMENT

from xlogmem import _driver

PROGRAM = textwrap.dedent("""
    import resource
    import numpy
    from xlogmem import DeviceRuntime, DeviceState, sim

    state = DeviceState(DeviceRuntime())
    large, small = state.empty(1 << 30, "uint8"), state.full(64, 7, "uint8")
    strided = large[::1 << 20]
    copies = {
        "numpy": lambda x: numpy.from_dlpack(x, device="cpu"),
        "plain": lambda x: x.__dlpack__(dl_device=(1, 0)),
        "versioned": lambda x: x.__dlpack__(dl_device=(1, 0), max_version=(1, 0)),
        "to_numpy": lambda x: x.to_numpy(),
    }
    for copy in copies.values():
        copy(small)                                     # loads what it needs
    size = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (size + (256 << 20), before[1]))
    counters = state.runtime.counters()
    for name, copy in copies.items():
        for buffer in (large, strided):
            try:
                copy(buffer)
            except MemoryError:
                print(name)
    assert state.runtime.counters() == counters, "something was enqueued"
    for copy in copies.values():
        copy(small)
    assert numpy.from_dlpack(small, device="cpu").tolist() == [7] * 64
    resource.setrlimit(resource.RLIMIT_AS, before)
    assert state.runtime.bytes_outstanding == (1 << 30) + 64
    del large, strided, small, buffer
    state.runtime.reap_pending()
    assert state.runtime.bytes_outstanding == 0, "a block is held"
""")


@pytest.mark.simulator
@pytest.mark.skipif(_driver.BUILD in ("asan", "tsan"), reason="the address space of a sanitizer has no limit")
def test_a_copy_for_which_there_is_no_host_memory():
    pytest.importorskip("numpy", minversion="2.1")
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=os.environ | ENVIRONMENT, capture_output=True, text=True,
                          timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split() == [name for name in ("numpy", "plain", "versioned", "to_numpy") for _ in range(2)]
