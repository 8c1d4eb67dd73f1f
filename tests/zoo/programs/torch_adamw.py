"""AdamW in its fused form, beside the plain one: a kernel updates all parameters, and gets tables of four kinds.

Right: one stream; both forms end with the same parameters.
"""
import copy
import os

import torch
from torch import nn

DEVICE = os.environ.get("ZOO_DEVICE", "cuda")

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 16)).to(DEVICE)
twin = copy.deepcopy(model)
pairs = [(model, torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)),
         (twin, torch.optim.AdamW(twin.parameters(), lr=1e-3, foreach=False))]
for _ in range(20):
    data = torch.rand(32, 16, device=DEVICE)
    for one, optimizer in pairs:
        optimizer.zero_grad()
        one(data).square().mean().backward()
        optimizer.step()
same = all(torch.allclose(a, b, atol=1e-5) for a, b in zip(model.parameters(), twin.parameters(), strict=True))
print("fused and plain agree:", same)
