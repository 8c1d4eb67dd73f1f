"""Counting: histc, bincount with and without weights, one_hot.

Right: one stream; all counts add up.
"""
import os

import torch

DEVICE = os.environ.get("ZOO_DEVICE", "cuda")

total = 0
for size in (999, 17, 200_000, 40):
    values = torch.arange(size, device=DEVICE) % 9
    total += torch.histc(values.float(), bins=9, min=0, max=8).sum().item()
    total += torch.bincount(values).sum().item() + torch.bincount(values, minlength=50).numel()
    total += torch.bincount(values, weights=values.double()).sum().item()
    total += torch.nn.functional.one_hot(values, 9).sum().item()
print("total:", total)
