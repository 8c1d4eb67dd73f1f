"""torch.compile(mode="reduce-overhead"): CUDA graphs that allocate, free and share a pool of PyTorch's own.

Right: one stream of the program; each step is marked, so that outputs of the last one may be overwritten.
"""
import os

import torch
from torch import nn

DEVICE = os.environ.get("ZOO_DEVICE", "cuda")

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 64)).to(DEVICE)
compiled = torch.compile(model, mode="reduce-overhead")
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
agree = 0
for _ in range(10):
    torch.compiler.cudagraph_mark_step_begin()
    data = torch.rand(32, 64, device=DEVICE)
    output = compiled(data)
    agree += torch.allclose(output, model(data), atol=1e-3)
    optimizer.zero_grad()
    output.square().mean().backward()
    optimizer.step()
print("steps that agree:", agree, "of 10")
