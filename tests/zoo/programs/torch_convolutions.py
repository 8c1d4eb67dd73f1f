"""Convolutions of three dimensions, transposed, grouped, dilated and in channels_last, with their gradients.

Right: one stream; cuDNN and cuBLAS take workspaces from PyTorch's allocator.
"""
import os

import torch
from torch import nn

DEVICE = os.environ.get("ZOO_DEVICE", "cuda")

torch.manual_seed(0)
right = 0
for layer, shape, result in (
        (nn.Conv3d(2, 4, 3), (2, 2, 8, 8, 8), (2, 4, 6, 6, 6)),
        (nn.ConvTranspose2d(4, 8, 3, stride=2), (2, 4, 16, 16), (2, 8, 33, 33)),
        (nn.Conv2d(16, 32, 3, groups=4, dilation=2), (4, 16, 20, 20), (4, 32, 16, 16)),
        (nn.Conv1d(8, 8, 5, padding="same", groups=8), (3, 8, 100), (3, 8, 100))):
    layer = layer.to(DEVICE)
    for _ in range(3):
        data = torch.rand(shape, device=DEVICE, requires_grad=True)
        output = layer(data)
        output.square().mean().backward()
        right += output.shape == result and data.grad.shape == shape
last = nn.Conv2d(8, 16, 3).to(DEVICE, memory_format=torch.channels_last)
image = torch.rand(4, 8, 32, 32, device=DEVICE)
with torch.no_grad():
    right += torch.allclose(last(image.to(memory_format=torch.channels_last)), last(image), atol=1e-2)
print("right:", right, "of 13")
