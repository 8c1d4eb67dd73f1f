"""Triton's first tutorial: two vectors are added by blocks, the last of which is only partly full.

Right: one stream; a mask keeps to the sizes, most of which do not fill their last block.
"""
import os

import torch
import triton
import triton.language as tl

DEVICE = os.environ.get("ZOO_DEVICE", "cuda")


@triton.jit
def add(x, y, total, count, WIDTH: tl.constexpr):
    place = tl.program_id(0) * WIDTH + tl.arange(0, WIDTH)
    inside = place < count
    tl.store(total + place, tl.load(x + place, mask=inside) + tl.load(y + place, mask=inside), mask=inside)


right = 0
for count in (1, 98_432, 1000, 1024, 70_001):
    x, y = torch.rand(count, device=DEVICE), torch.rand(count, device=DEVICE)
    total = torch.empty_like(x)
    add[(triton.cdiv(count, 1024),)](x, y, total, count, WIDTH=1024)
    right += torch.equal(total, x + y)
print("right:", right, "of 5")
