"""Two layers of LSTM: cuDNN runs them on streams of its own, which it joins before it returns.

Right: one stream of the program.
"""
import os

import torch
from torch import nn

DEVICE = os.environ.get("ZOO_DEVICE", "cuda")

torch.manual_seed(0)
model = nn.LSTM(200, 200, num_layers=2).to(DEVICE)
finite = 0
for length in (35, 35, 35, 20, 7, 35):
    model.zero_grad()
    output, (hidden, _) = model(torch.rand(length, 20, 200, device=DEVICE))
    output.sum().backward()
    finite += bool(torch.isfinite(model.weight_hh_l1.grad).all()) and torch.allclose(output[-1], hidden[-1])
print("sequences:", finite, "of 6")
