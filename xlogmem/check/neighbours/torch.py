"""PyTorch: on the driver's pool some features are missing, of its own pool each piece is reported."""
from __future__ import annotations

import os
from types import ModuleType

from xlogmem.check.neighbours import _torch_pool, pieces, torch_features, torch_pieces

__all__ = ["prepare"]


def prepare(torch: ModuleType) -> None:
    """What counts is the pool that it has come up with: a program may have chosen it before the import."""
    backend = getattr(torch._C, "_cuda_getAllocatorBackend", None)
    if backend is None:                                 # built without CUDA
        return
    if backend() == "native":
        torch_pieces.prepare(torch)
    elif "torch" in os.environ.get("XLOGMEM_CHECK_REPLACED", "").split(","):
        _torch_pool.watch_driver_pool(pieces.address())
        torch_features.prepare(torch)
