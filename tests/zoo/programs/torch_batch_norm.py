"""Training with batch norm in NCHW: cuDNN clears its counters on a stream of its own, and then uses them on ours.

Right: one stream of the program; what the library does on others it orders itself.
"""
import os

import torch
from torch import nn

DEVICE = os.environ.get("ZOO_DEVICE", "cuda")

torch.manual_seed(0)
model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 32, 3, stride=2),
                      nn.BatchNorm2d(32), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 2)).to(DEVICE)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, foreach=False)
images = torch.rand(32, 3, 64, 64, device=DEVICE)
labels = (images[:, 0].mean((1, 2)) > images[:, 1].mean((1, 2))).long()
losses = []
for _ in range(30):
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(images), labels)
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
print("the loss fell:", losses[-1] < losses[0])
