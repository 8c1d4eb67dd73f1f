"""Adam in its foreach form: one kernel takes a table of many tensors by value, most of whose places are unused.

Right: one stream; what the unused places still hold are addresses that no kernel follows.
"""
import os

import torch
from torch import nn

DEVICE = os.environ.get("ZOO_DEVICE", "cuda")

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 8)).to(DEVICE)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01, foreach=True)
losses = []
for _ in range(40):
    data = torch.rand(16, 8, device=DEVICE)
    loss = (model(data) - data).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
print("the loss fell:", losses[-1] < losses[0])
