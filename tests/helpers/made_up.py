"""Adopted memory at addresses that no driver has handed out, for tests of what xlogmem itself does with addresses."""
from __future__ import annotations

from typing import Any

from xlogmem import DeviceBlock, DeviceRuntime, sim


def adopt_anywhere(runtime: DeviceRuntime, address: Any, *arguments: Any, **options: Any) -> DeviceBlock:
    """`DeviceRuntime.adopt` while the driver cannot say what is at an address, so that any is taken."""
    sim.simulator().fail("cuPointerGetAttributes", code=1)
    return runtime.adopt(address, *arguments, **options)
