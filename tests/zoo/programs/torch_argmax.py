"""Softmax and argmax of rows whose lengths change, as at the end of a classifier.

Right: one stream.
"""
import os

import torch

DEVICE = os.environ.get("ZOO_DEVICE", "cuda")

found = []
for length in (30, 31, 1000, 5000, 32, 17):
    scores = torch.zeros(20, length, device=DEVICE)
    scores[torch.arange(20), torch.arange(20) % length] = 5.0
    probabilities = scores.softmax(1)
    found.append((probabilities.argmax(1).cpu() == torch.arange(20) % length).all().item())
    found.append(bool((scores.log_softmax(1).exp() - probabilities).abs().max().item() < 1e-6))
print("right:", sum(found), "of", len(found))
