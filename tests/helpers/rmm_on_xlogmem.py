"""A pytest plugin that runs RMM's own tests through `RuntimeMemoryResource`, on a GPU.

    PYTHONPATH=tests/helpers python -m pytest -p rmm_on_xlogmem -W ignore FOLDER/test_device_buffer.py ...

FOLDER is python/rmm/rmm/tests of rapidsai/rmm, at the release that is installed.  Each test begins with a runtime of
ours as RMM's current resource, and with ``rmm.mr.CudaMemoryResource`` giving one, so that the pools and adaptors that
the tests make stand on us too.  It has to end with nothing live in any of them.
"""
from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
import rmm
import rmm.mr

from xlogmem import DeviceRuntime
from xlogmem.rmm import RuntimeMemoryResource


@pytest.fixture(autouse=True)
def _through_xlogmem(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    runtimes: list[DeviceRuntime] = []

    def ours() -> RuntimeMemoryResource:
        runtimes.append(DeviceRuntime())
        return RuntimeMemoryResource(runtimes[-1])

    monkeypatch.setattr(rmm.mr, "CudaMemoryResource", ours)
    rmm.mr.set_current_device_resource(ours())
    yield
    rmm.reinitialize()
    gc.collect()
    for runtime in runtimes:
        runtime.reap_pending()
        assert runtime.live_bytes == 0, "the test left memory behind"
