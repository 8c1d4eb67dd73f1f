"""A preload that is wrong: it sets the plugin up before the worker's own plugins."""
from __future__ import annotations

from typing import Any

from xlogmem.dask import XlogmemPlugin


async def dask_setup(worker: Any) -> None:
    await worker.plugin_add(XlogmemPlugin(), catch_errors=False)
