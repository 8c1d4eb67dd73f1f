"""Quantised products: int8 matrices by _int_mm, with the scales of rows and columns.

Right: one stream; integers are exact.
"""
import os

import torch

DEVICE = os.environ.get("ZOO_DEVICE", "cuda")

torch.manual_seed(0)
right = 0
for rows, inner, columns in ((32, 32, 32), (64, 128, 256), (1024, 64, 32)):
    a = torch.randint(-128, 128, (rows, inner), dtype=torch.int8, device=DEVICE)
    b = torch.randint(-128, 128, (columns, inner), dtype=torch.int8, device=DEVICE)
    product = torch._int_mm(a, b.t())
    right += torch.equal(product.cpu(), a.cpu().int() @ b.cpu().int().t())
    scaled = product * torch.rand(rows, 1, device=DEVICE) * torch.rand(1, columns, device=DEVICE)
    right += bool(torch.isfinite(scaled).all())
print("right:", right, "of 6")
