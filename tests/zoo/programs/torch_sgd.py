"""SGD on a chain of small layers, where the host is the limit: each step is about a hundred short launches.

Right: one stream does everything, in the order of the calls.
"""
import os
import time

import torch
from torch import nn

DEVICE, STEPS = os.environ.get("ZOO_DEVICE", "cuda"), int(os.environ.get("ZOO_STEPS", 30))

torch.manual_seed(0)
model = nn.Sequential(*[layer for _ in range(8) for layer in (nn.Linear(128, 128), nn.ReLU())]).to(DEVICE)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = torch.rand(64, 128, device=DEVICE)
losses = []
for step in range(STEPS):
    if step == STEPS // 3:                              # warm by now
        losses[-1].item()
        begin = time.perf_counter()
    optimizer.zero_grad()
    loss = (model(data) - data).square().mean()
    loss.backward()
    optimizer.step()
    losses.append(loss.detach())
last = losses[-1].item()
print(f"step_ms: {(time.perf_counter() - begin) / (STEPS - STEPS // 3) * 1e3:.3f}")
print("the loss fell:", last < losses[0].item())
