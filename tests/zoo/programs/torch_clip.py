"""Gradients are clipped by their norm: a kernel over lists makes norms, and a second one cleans up after it.

Right: one stream.
"""
import os

import torch
from torch import nn

DEVICE = os.environ.get("ZOO_DEVICE", "cuda")

torch.manual_seed(0)
model = nn.Sequential(*[nn.Linear(32, 32) for _ in range(6)]).to(DEVICE)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
small = 0
for _ in range(20):
    optimizer.zero_grad()
    (100 * model(torch.rand(16, 32, device=DEVICE))).square().sum().backward()
    nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
    norm = torch.stack([p.grad.norm() for p in model.parameters()]).norm()
    small += norm.item() < 1.001
    optimizer.step()
print("clipped steps:", small, "of 20")
