"""Function transforms: per-sample gradients by vmap and grad, jacrev, jacfwd, hessian.

Right: one stream; derivatives are those of the formulas.
"""
import os

import torch
from torch.func import grad, hessian, jacfwd, jacrev, vmap

DEVICE = os.environ.get("ZOO_DEVICE", "cuda")

torch.manual_seed(0)
weights, data = torch.rand(16, device=DEVICE), torch.rand(8, 16, device=DEVICE)
per_sample = vmap(grad(lambda w, x: (w * x).sum().tanh()), (None, 0))(weights, data)
expected = (1 - (data @ weights).tanh() ** 2)[:, None] * data
right = [torch.allclose(per_sample, expected, atol=1e-5)]
for jacobian in (jacrev, jacfwd):
    right.append(torch.allclose(jacobian(torch.sin)(weights), weights.cos().diag(), atol=1e-6))
right.append(torch.allclose(hessian(lambda w: (w ** 3).sum())(weights), (6 * weights).diag(), atol=1e-5))
right.append(torch.allclose(vmap(torch.linalg.norm)(data), data.norm(dim=1)))
print("right:", sum(right), "of", len(right))
