"""Indexing: index_add, scatter, gather, masks, index_put with accumulation, where, take, cumsum.

Right: one stream.
"""
import os

import torch

DEVICE = os.environ.get("ZOO_DEVICE", "cuda")

total = 0
for size in (10, 300, 20_000):
    rows = torch.arange(size, device=DEVICE)
    table = torch.zeros(size, 4, dtype=torch.int64, device=DEVICE)
    table.index_add_(0, rows % 7, torch.ones_like(table))
    table.scatter_add_(0, (rows % 5)[:, None].expand(-1, 4), torch.ones_like(table))
    table[rows % 3] = table[rows % 3] + 1
    table.index_put_((rows % 2,), torch.ones(size, 4, dtype=torch.int64, device=DEVICE), accumulate=True)
    total += table.gather(1, rows[:, None] % 4).sum().item() + table[table > 2].sum().item()
    total += torch.where(table > 5, table, -1).sum().item() + table.cumsum(0)[-1, 0].item()
    total += table.take(rows % (4 * size)).sum().item() + table.masked_fill(table > 3, 0).sum().item()
print("total:", total)
