"""A pytest plugin that runs cuDF's own tests on tracked memory, on a GPU.

    PYTHONPATH=tests/helpers python -m pytest -p cudf_on_xlogmem -W ignore --import-mode=importlib FOLDER/groupby ...

FOLDER is python/cudf/cudf/tests of rapidsai/cudf, at the release that is installed.  After each test the resource has
to be ours still; at the end what the tests did is written to the folder that CUDF_ON_XLOGMEM names, one file for each
process.
"""
from __future__ import annotations

import gc
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import rmm.mr

import xlogmem
import xlogmem.cudf
from xlogmem.rmm import RuntimeMemoryResource, stack

rmm.mr.set_current_device_resource(rmm.mr.CudaAsyncMemoryResource())
xlogmem.cudf.enable(0)


@pytest.fixture(autouse=True)
def _on_xlogmem() -> Iterator[None]:
    yield
    assert any(isinstance(mr, RuntimeMemoryResource) for mr in stack(rmm.mr.get_current_device_resource())), \
        "the test replaced RMM's resource"


def pytest_sessionfinish(session: pytest.Session) -> None:
    folder = os.environ.get("CUDF_ON_XLOGMEM")
    runtime = xlogmem.get_runtime(0)
    gc.collect()
    runtime.reap_pending()
    if folder and runtime.counters()["allocations"]:    # not the process that only hands tests out
        seen = runtime.counters() | {"live_bytes": runtime.live_bytes, "pending_bytes": runtime.pending_bytes}
        Path(folder, f"counters-{os.getpid()}.json").write_text(json.dumps(seen))
