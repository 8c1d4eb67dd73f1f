"""A small convolutional network in inference mode, batch after batch.

Right: one stream; each result is fetched before the next batch.
"""
import os

import torch
from torch import nn

DEVICE = os.environ.get("ZOO_DEVICE", "cuda")

torch.manual_seed(0)
model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 16, 3),
                      nn.BatchNorm2d(16), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 4))
model = model.to(DEVICE).eval()
answers = []
with torch.inference_mode():
    for batch in (4, 1, 16, 3, 8, 2):
        probabilities = model(torch.rand(batch, 3, 32, 32, device=DEVICE)).softmax(1)
        answers.append(len(probabilities.argmax(1).tolist()) == batch)
        answers.append(abs(probabilities.sum().item() - batch) < 1e-3)
print("right:", sum(answers), "of", len(answers))
