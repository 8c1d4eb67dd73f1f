"""An EmbeddingBag with offsets, with sparse gradients, and a table of weights by SparseAdam.

Right: one stream; sums of bags are those of the rows.
"""
import os

import torch
from torch import nn

DEVICE = os.environ.get("ZOO_DEVICE", "cuda")

torch.manual_seed(0)
bags = nn.EmbeddingBag(1000, 16, mode="sum", sparse=True).to(DEVICE)
optimizer = torch.optim.SparseAdam(bags.parameters(), lr=0.01)
right = 0
for count in (5, 40, 3, 200):
    indices = torch.randint(0, 1000, (count * 4,), device=DEVICE)
    output = bags(indices, torch.arange(0, count * 4, 4, device=DEVICE))
    right += torch.allclose(output, bags.weight[indices].reshape(count, 4, 16).sum(1), atol=1e-5)
    optimizer.zero_grad()
    output.square().sum().backward()
    optimizer.step()
print("right:", right, "of 4")
