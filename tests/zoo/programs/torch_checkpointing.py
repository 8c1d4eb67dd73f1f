"""Activation checkpointing: what the backward pass needs is computed again, with the same random numbers.

Right: one stream; gradients are those without checkpoints.
"""
import os

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

DEVICE = os.environ.get("ZOO_DEVICE", "cuda")

torch.manual_seed(0)
model = nn.Sequential(*[nn.Sequential(nn.Linear(128, 128), nn.Dropout(0.2), nn.Tanh()) for _ in range(6)]).to(DEVICE)
data = torch.rand(64, 128, device=DEVICE, requires_grad=True)
gradients = []
for forward in (model, lambda x: checkpoint(model, x, use_reentrant=False),
                lambda x: checkpoint_sequential(model, 3, x, use_reentrant=False)):
    torch.manual_seed(1)
    model.zero_grad()
    forward(data).square().mean().backward()
    gradients.append(model[0][0].weight.grad.clone())
print("the same:", [torch.allclose(gradients[0], one, atol=1e-6) for one in gradients])
