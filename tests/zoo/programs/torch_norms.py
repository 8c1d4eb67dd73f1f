"""Layers that normalise: layer, group, instance, RMS and local response norms, trained together.

Right: one stream; normed rows have mean 0 and variance 1.
"""
import os

import torch
from torch import nn

DEVICE = os.environ.get("ZOO_DEVICE", "cuda")

torch.manual_seed(0)
model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8), nn.InstanceNorm2d(8, affine=True),
                      nn.LocalResponseNorm(2), nn.Flatten(), nn.LayerNorm(8 * 14 * 14), nn.Linear(8 * 14 * 14, 32),
                      nn.RMSNorm(32)).to(DEVICE)
optimizer = torch.optim.RMSprop(model.parameters())
finite = 0
for batch in (4, 9, 1, 16):
    optimizer.zero_grad()
    output = model(torch.rand(batch, 3, 16, 16, device=DEVICE))
    (output ** 3).mean().backward()
    optimizer.step()
    finite += bool(torch.isfinite(model[0].weight.grad).all())
spread = nn.functional.layer_norm(torch.rand(50, 1000, device=DEVICE), (1000,)).var(1, correction=0)
print("finite:", finite, "of 4, normed:", torch.allclose(spread, torch.ones_like(spread), atol=1e-3))
