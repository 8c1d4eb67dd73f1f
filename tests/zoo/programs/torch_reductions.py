"""Reductions of shapes that change: whole, by rows, by columns, and ones that need a buffer between blocks.

Right: one stream.
"""
import os

import torch

DEVICE = os.environ.get("ZOO_DEVICE", "cuda")

total = 0
for size in (100, 7, 4096, 33, 1000, 250_000):
    values = torch.arange(size * 8, device=DEVICE).reshape(size, 8) % 5
    total += values.sum().item() + values.sum(0)[3].item() + values.sum(1).amax().item()
    total += values.amin(0).sum().item() + (values == 2).any(1).sum().item()
    spread = values.double().var(0).mean().item() + values.double().logsumexp(0).mean().item()
    assert 1 < spread < 20, spread
print("total:", total)
