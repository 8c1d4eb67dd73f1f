"""Layer norm as an autograd function of two Triton kernels; the second adds weights' gradients up by atomics.

Right: one stream; results and gradients are PyTorch's.
"""
import os

import torch
import triton
import triton.language as tl

DEVICE = os.environ.get("ZOO_DEVICE", "cuda")


@triton.jit
def forward(x, weight, y, means, spreads, columns, WIDTH: tl.constexpr):
    row, place = tl.program_id(0), tl.arange(0, WIDTH)
    inside = place < columns
    values = tl.load(x + row * columns + place, mask=inside, other=0.0)
    mean = tl.sum(values, 0) / columns
    centred = tl.where(inside, values - mean, 0.0)
    spread = 1 / tl.sqrt(tl.sum(centred * centred, 0) / columns + 1e-5)
    tl.store(y + row * columns + place, centred * spread * tl.load(weight + place, mask=inside), mask=inside)
    tl.store(means + row, mean)
    tl.store(spreads + row, spread)


@triton.jit
def backward(dy, x, weight, means, spreads, dx, dweight, columns, WIDTH: tl.constexpr):
    row, place = tl.program_id(0), tl.arange(0, WIDTH)
    inside = place < columns
    spread = tl.load(spreads + row)
    normed = tl.where(inside, (tl.load(x + row * columns + place, mask=inside) - tl.load(means + row)) * spread, 0.0)
    given = tl.load(dy + row * columns + place, mask=inside, other=0.0)
    weighted = given * tl.load(weight + place, mask=inside, other=0.0)
    shared = (tl.sum(weighted, 0) + normed * tl.sum(weighted * normed, 0)) / columns
    tl.store(dx + row * columns + place, (weighted - shared) * spread, mask=inside)
    tl.atomic_add(dweight + place, given * normed, mask=inside)


class LayerNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        y, means, spreads = torch.empty_like(x), *torch.empty(2, len(x), device=x.device)
        forward[(len(x),)](x, weight, y, means, spreads, x.shape[1], WIDTH=triton.next_power_of_2(x.shape[1]))
        ctx.save_for_backward(x, weight, means, spreads)
        return y

    @staticmethod
    def backward(ctx, dy):
        x, weight, means, spreads = ctx.saved_tensors
        dx, dweight = torch.empty_like(x), torch.zeros_like(weight)
        backward[(len(x),)](dy.contiguous(), x, weight, means, spreads, dx, dweight, x.shape[1],
                            WIDTH=triton.next_power_of_2(x.shape[1]))
        return dx, dweight


torch.manual_seed(0)
right = 0
for rows, columns in ((64, 100), (7, 256), (300, 1000)):
    x = torch.rand(rows, columns, device=DEVICE, requires_grad=True)
    weight = torch.rand(columns, device=DEVICE, requires_grad=True)
    factors = torch.rand(rows, columns, device=DEVICE)
    own, plain = LayerNorm.apply(x, weight), torch.nn.functional.layer_norm(x, (columns,), weight)
    right += torch.allclose(own, plain, atol=1e-4)
    gradients = [torch.autograd.grad((y * factors).sum(), (x, weight)) for y in (own, plain)]
    right += all(torch.allclose(a, b, rtol=1e-3, atol=1e-3) for a, b in zip(*gradients, strict=True))
print("right:", right, "of 6")
