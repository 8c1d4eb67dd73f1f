"""PyTorch: on the driver's pool it lacks some features, of its own pool each piece is reported."""
from __future__ import annotations

import os
from types import ModuleType

from xlogmem.check.neighbours import torch_features

__all__ = ["prepare"]


def prepare(torch: ModuleType) -> None:
    """What counts is the pool that it has come up with: a program may have chosen it before the import."""
    backend = getattr(torch._C, "_cuda_getAllocatorBackend", None)
    if backend is None:                                 # built without CUDA
        return
    if backend() == "cudaMallocAsync" and "torch" in os.environ.get("XLOGMEM_CHECK_REPLACED", "").split(","):
        torch_features.prepare(torch)
