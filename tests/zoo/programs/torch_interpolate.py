"""Images are scaled, sampled at other places, pooled, padded and folded.

Right: one stream.
"""
import os

import torch
from torch.nn import functional as F

DEVICE = os.environ.get("ZOO_DEVICE", "cuda")

torch.manual_seed(0)
right = 0
for size in (8, 16, 50):
    image = torch.rand(2, 3, size, size, device=DEVICE, requires_grad=True)
    for mode in ("nearest", "bilinear", "bicubic", "area"):
        larger = F.interpolate(image, scale_factor=2, mode=mode)
        larger.mean().backward()
        right += larger.shape == (2, 3, 2 * size, 2 * size)
    grid = F.affine_grid(torch.eye(2, 3, device=DEVICE).expand(2, 2, 3), image.shape, align_corners=False)
    right += torch.allclose(F.grid_sample(image, grid, align_corners=False), image, atol=1e-4)
    right += torch.equal(F.max_unpool2d(*F.max_pool2d(image, 2, return_indices=True), 2).amax(), image.amax())
    right += torch.allclose(F.fold(F.unfold(image, 2, stride=2), (size, size), 2, stride=2), image)
    right += F.adaptive_avg_pool2d(F.pad(image, (1, 2, 3, 4), mode="reflect"), 3).shape == (2, 3, 3, 3)
print("right:", right, "of 24")
