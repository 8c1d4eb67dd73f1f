"""Two Triton kernels on two streams: softmax of rows, then a product of the result with a matrix.

Right: the product waits for the softmax, and the next softmax for the product.
nowait: the product does not wait.  reuse: the softmax overwrites what the product still reads.
"""
import sys

import torch
import triton
import triton.language as tl

VARIANT = sys.argv[1] if len(sys.argv) > 1 else "right"
SIZE, BLOCK = 256, 32


@triton.jit
def softmax(x, y, columns, WIDTH: tl.constexpr):
    row, place = tl.program_id(0), tl.arange(0, WIDTH)
    inside = place < columns
    values = tl.load(x + row * columns + place, mask=inside, other=-float("inf"))
    values = tl.exp(values - tl.max(values, 0))
    tl.store(y + row * columns + place, values / tl.sum(values, 0), mask=inside)


@triton.jit
def matmul(a, b, c, size, SIDE: tl.constexpr):
    i, j = tl.program_id(0) * SIDE + tl.arange(0, SIDE), tl.program_id(1) * SIDE + tl.arange(0, SIDE)
    total = tl.zeros((SIDE, SIDE), tl.float32)
    for begin in range(0, size, SIDE):
        k = begin + tl.arange(0, SIDE)
        total += tl.dot(tl.load(a + i[:, None] * size + k[None, :]), tl.load(b + k[:, None] * size + j[None, :]))
    tl.store(c + i[:, None] * size + j[None, :], total)


torch.manual_seed(0)
inputs = [torch.rand(SIZE, SIZE, device="cuda") * k for k in range(1, 7)]
weights, middle, product = (torch.rand(SIZE, SIZE, device="cuda") for _ in range(3))
first, second = torch.cuda.Stream(), torch.cuda.Stream()
torch.cuda.synchronize()
for values in inputs:
    if VARIANT != "reuse":
        first.wait_stream(second)
    with torch.cuda.stream(first):
        softmax[(SIZE,)](values, middle, SIZE, WIDTH=SIZE)  # first: nowait  # then: reuse
    if VARIANT != "nowait":
        second.wait_stream(first)
    with torch.cuda.stream(second):
        matmul[2 * (SIZE // BLOCK,)](middle, weights, product, SIZE, SIDE=BLOCK)  # then: nowait  # first: reuse
torch.cuda.synchronize()
print("right:", torch.allclose(product, inputs[-1].softmax(1) @ weights, atol=1e-2))
