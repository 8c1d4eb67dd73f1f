"""A sticky error loses the device."""
from __future__ import annotations

import pytest
from cuda.bindings import driver as cuda

from xlogmem import (
    DeviceLostError,
    DeviceRuntime,
    use,
)
from xlogmem._kernels import check


@pytest.mark.simulator
def test_a_sticky_error_loses_the_device(driver):
    runtime = DeviceRuntime()
    stream = runtime.acquire_stream()
    block, kept = runtime.allocate(64, stream), runtime.allocate(64, stream)
    other = DeviceRuntime()
    driver.fail("cuMemFreeAsync", code=700)
    with pytest.raises(DeviceLostError, match="CUDA_ERROR_ILLEGAL_ADDRESS"):
        block.free()
    assert runtime.lost
    assert not other.lost
    calls = sum(driver.all_calls().values())
    for call in (lambda: runtime.allocate(64, stream), lambda: use(stream, read=kept).preflight(), kept.free,
                 runtime.reap_pending, lambda: runtime.record_block_use(kept, stream),
                 lambda: runtime.adopt(1 << 40, 64)):
        with pytest.raises(DeviceLostError, match="lost to an earlier error"):
            call()
    assert sum(driver.all_calls().values()) == calls
    assert runtime.live_bytes == 128
    for ptr in (block.ptr, kept.ptr):                               # the simulated device lives on
        check(cuda.cuMemFreeAsync(ptr, stream.handle))
