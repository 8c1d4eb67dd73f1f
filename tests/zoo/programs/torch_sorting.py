"""Sorting and choosing: sort, topk, unique, nonzero, kthvalue, median, randperm, searchsorted.

Right: one stream; sizes of results come back to the host in the middle.
"""
import os

import torch

DEVICE = os.environ.get("ZOO_DEVICE", "cuda")

right = 0
for size in (100, 5000, 100_000):
    values = torch.randperm(size, device=DEVICE)
    ordered = torch.arange(size, device=DEVICE)
    right += torch.equal(values.sort().values, ordered) + torch.equal(values[values.argsort()], ordered)
    right += torch.equal(values.topk(10).values, ordered.flip(0)[:10]) + torch.equal((values % 7).unique(), ordered[:7])
    right += ((values % 3) == 0).nonzero().numel() == (size + 2) // 3
    right += values.kthvalue(5).values.item() == 4
    right += values.median().item() == (size - 1) // 2
    right += torch.equal(torch.searchsorted(ordered, values), values)
print("right:", right, "of 24")
