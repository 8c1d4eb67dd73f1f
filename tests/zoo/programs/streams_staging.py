"""A training loop whose host writes each batch into one page-locked buffer, and looks at the loss one step late.

Right: the host waits for the upload before it writes into the buffer again, and for a loss before it reads it.
refill: it does not wait for the upload.  early: it does not wait for the download.
"""
import os
import sys
import time

import torch
from torch import nn

VARIANT = sys.argv[1] if len(sys.argv) > 1 else "right"
STEPS = int(os.environ.get("ZOO_STEPS", 12))
BATCH = 256

torch.manual_seed(0)
images, labels = torch.rand(2048, 3, 32, 32), torch.randint(0, 10, (2048,))
model = nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 64, 3), nn.ReLU(),
                      nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
buffers = torch.empty(BATCH, 3, 32, 32, pin_memory=True), torch.empty(BATCH, dtype=torch.int64, pin_memory=True)
losses = [torch.empty(1, pin_memory=True) for _ in range(2)]
uploaded, downloaded = torch.cuda.Event(), [torch.cuda.Event() for _ in range(2)]
total, begin = 0.0, time.perf_counter()


def fetch(step):
    if VARIANT != "early":
        downloaded[step % 2].synchronize()
    return float(losses[step % 2])  # then: early


for step in range(STEPS):
    at = step * BATCH % len(images)
    if VARIANT != "refill":
        uploaded.synchronize()
    buffers[0].copy_(images[at:at + BATCH])  # then: refill
    buffers[1].copy_(labels[at:at + BATCH])  # then: refill
    x, y = (buffer.to("cuda", non_blocking=True) for buffer in buffers)  # first: refill
    uploaded.record()
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses[step % 2].copy_(loss.detach(), non_blocking=True)  # first: early
    downloaded[step % 2].record()
    if step:
        total += fetch(step - 1)
    if step == STEPS // 3:                              # warm by now
        torch.cuda.synchronize()
        begin = time.perf_counter()
torch.cuda.synchronize()
print(f"step_ms: {(time.perf_counter() - begin) / (STEPS - STEPS // 3) * 1e3:.3f}")
print("mean loss as at random:", 2 < (total + fetch(STEPS - 1)) / STEPS < 3)
