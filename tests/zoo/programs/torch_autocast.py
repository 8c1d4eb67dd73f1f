"""Mixed precision: autocast to float16, and a GradScaler that looks for infinite gradients on the device.

Right: one stream.
"""
import os

import torch
from torch import nn

DEVICE = os.environ.get("ZOO_DEVICE", "cuda")

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 256), nn.LayerNorm(256), nn.GELU(), nn.Linear(256, 64)).to(DEVICE)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler(DEVICE, init_scale=256.0)
data = torch.rand(128, 64, device=DEVICE)
losses = []
for step in range(20):
    with torch.autocast(DEVICE, torch.float16):
        loss = nn.functional.mse_loss(model(data), data)
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    if step == 10:
        model[0].weight.grad[0, 0] = torch.inf          # this step is left out
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 10.0)
    scaler.step(optimizer)
    scaler.update()
    losses.append(loss.item())
print("the loss fell:", losses[-1] < losses[0], "scale:", scaler.get_scale())
