"""Attention in one Triton kernel: the softmax is taken block by block, and corrected as it goes.

Right: one stream; PyTorch's own attention agrees.
"""
import os

import torch
import triton
import triton.language as tl

DEVICE = os.environ.get("ZOO_DEVICE", "cuda")


@triton.jit
def attend(q, k, v, output, length, scale, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    head = tl.program_id(1) * length * WIDTH
    rows, wide = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), tl.arange(0, WIDTH)
    queries = tl.load(q + head + rows[:, None] * WIDTH + wide[None, :])
    largest = tl.full((BLOCK,), -float("inf"), tl.float32)
    weight, total = tl.zeros((BLOCK,), tl.float32), tl.zeros((BLOCK, WIDTH), tl.float32)
    for begin in range(0, length, BLOCK):
        columns = begin + tl.arange(0, BLOCK)
        keys = tl.load(k + head + columns[None, :] * WIDTH + wide[:, None])
        scores = tl.dot(queries, keys) * scale
        larger = tl.maximum(largest, tl.max(scores, 1))
        shares, correction = tl.exp(scores - larger[:, None]), tl.exp(largest - larger)
        values = tl.load(v + head + columns[:, None] * WIDTH + wide[None, :])
        total = total * correction[:, None] + tl.dot(shares.to(values.dtype), values)
        weight, largest = weight * correction + tl.sum(shares, 1), larger
    result = (total / weight[:, None]).to(output.dtype.element_ty)
    tl.store(output + head + rows[:, None] * WIDTH + wide[None, :], result)


torch.manual_seed(0)
right = 0
for heads, length, dtype in ((4, 128, torch.float32), (2, 512, torch.float32), (8, 256, torch.float16)):
    q, k, v = (torch.randn(1, heads, length, 64, device=DEVICE, dtype=dtype) for _ in range(3))
    output = torch.empty_like(q)
    attend[(length // 32, heads)](q, k, v, output, length, 64 ** -0.5, WIDTH=64, BLOCK=32)
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v)
    right += torch.allclose(output, expected, atol=2e-2)
print("right:", right, "of 3")
