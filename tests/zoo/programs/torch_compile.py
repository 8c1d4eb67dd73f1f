"""torch.compile with its default mode: Triton kernels by Inductor, forward, backward and the optimizer's step.

Right: one stream; compiled and plain agree.
"""
import copy
import os

import torch
from torch import nn

DEVICE = os.environ.get("ZOO_DEVICE", "cuda")

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.LayerNorm(256), nn.Linear(256, 16)).to(DEVICE)
twin = copy.deepcopy(model)
compiled = torch.compile(lambda x: nn.functional.cross_entropy(model(x), x[:, :16].argmax(1)))
optimizer, other = (torch.optim.SGD(one.parameters(), lr=0.01) for one in (model, twin))
agree = 0
for _ in range(8):
    data = torch.rand(32, 64, device=DEVICE)
    loss, plain = compiled(data), nn.functional.cross_entropy(twin(data), data[:, :16].argmax(1))
    optimizer.zero_grad()
    other.zero_grad()
    loss.backward()
    plain.backward()
    optimizer.step()
    other.step()
    agree += torch.allclose(loss, plain, atol=1e-3)
print("steps that agree:", agree, "of 8")
