"""The parts of an RMM resource."""
from __future__ import annotations

from collections.abc import Iterator

import rmm.mr

__all__ = ["stack"]


def stack(mr: rmm.mr.DeviceMemoryResource) -> Iterator[rmm.mr.DeviceMemoryResource]:
    """A resource and all resources below it."""
    yield mr
    for lower in (getattr(mr, "upstream_mr", None), *getattr(mr, "bin_mrs", ())):
        if lower is not None:
            yield from stack(lower)
