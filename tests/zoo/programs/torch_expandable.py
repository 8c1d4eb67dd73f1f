"""Sequences of changing lengths with PYTORCH_ALLOC_CONF=expandable_segments:True: memory that is mapped piece by piece.

Right: one stream; segments grow, and are unmapped by empty_cache.
"""
import os

import torch
from torch import nn

DEVICE = os.environ.get("ZOO_DEVICE", "cuda")

torch.manual_seed(0)
model = nn.Sequential(nn.Embedding(100, 64), nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 100)).to(DEVICE)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
losses = []
for length in (64, 1000, 200, 3000, 17, 500, 4096, 64):
    tokens = torch.arange(length, device=DEVICE).expand(8, length) % 100
    loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
    if length == 3000 and DEVICE == "cuda":
        torch.cuda.empty_cache()
print("the loss fell:", losses[-1] < losses[0])
