"""PyTorch's profiler around a loop.  It uses CUPTI as the check does, which there can be one of: one has to yield.

Right: one stream; the profiler sees the calls on the host in any case.
"""
import os

import torch
from torch.profiler import ProfilerActivity, profile

DEVICE = os.environ.get("ZOO_DEVICE", "cuda")

model = torch.nn.Linear(256, 256).to(DEVICE)
activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if DEVICE == "cuda" else [])]
with profile(activities=activities, profile_memory=True, record_shapes=True) as profiler:
    for _ in range(5):
        model(torch.rand(64, 256, device=DEVICE)).sum().backward()
seen = {row.key: row.count for row in profiler.key_averages()}
print("linear layers:", seen["aten::linear"], "random inputs:", seen["aten::rand"])
