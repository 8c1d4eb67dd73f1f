"""A product with Triton's autotuner: each of its configurations is tried, timed and, at the end, one is kept.

Right: one stream; the trials write the same result again and again.
"""
import os

import torch
import triton
import triton.language as tl

DEVICE = os.environ.get("ZOO_DEVICE", "cuda")


@triton.autotune([triton.Config({"SIDE": side}, num_warps=warps) for side, warps in ((32, 2), (64, 4), (32, 4))],
                 key=["rows", "inner"])
@triton.jit
def matmul(a, b, c, rows, columns, inner, SIDE: tl.constexpr):
    i, j = tl.program_id(0) * SIDE + tl.arange(0, SIDE), tl.program_id(1) * SIDE + tl.arange(0, SIDE)
    total = tl.zeros((SIDE, SIDE), tl.float32)
    for begin in range(0, inner, SIDE):
        k = begin + tl.arange(0, SIDE)
        left = tl.load(a + i[:, None] * inner + k[None, :], mask=(i[:, None] < rows) & (k[None, :] < inner), other=0.0)
        right = tl.load(b + k[:, None] * columns + j[None, :], mask=(k[:, None] < inner) & (j[None, :] < columns),
                        other=0.0)
        total += tl.dot(left, right)
    tl.store(c + i[:, None] * columns + j[None, :], total, mask=(i[:, None] < rows) & (j[None, :] < columns))


torch.manual_seed(0)
right = 0
for rows, columns, inner in ((128, 128, 128), (100, 70, 33), (512, 256, 384)):
    a, b = torch.rand(rows, inner, device=DEVICE), torch.rand(inner, columns, device=DEVICE)
    c = torch.empty(rows, columns, device=DEVICE)
    matmul[lambda choice, m=rows, n=columns: (triton.cdiv(m, choice["SIDE"]), triton.cdiv(n, choice["SIDE"]))](
        a, b, c, rows, columns, inner)
    right += torch.allclose(c, a @ b, rtol=1e-2)
print("right:", right, "of 3")
