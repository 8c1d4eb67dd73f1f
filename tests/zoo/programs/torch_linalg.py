"""Linear algebra by cuSOLVER and MAGMA: svd, eigh, qr, solve, inv, cholesky, lstsq, and batches of small matrices.

Right: one stream; the factors make the matrix again.  The libraries call the driver until the process has ended.
"""
import os

import torch
from torch.linalg import cholesky, eigh, inv, lstsq, qr, solve, svd

DEVICE = os.environ.get("ZOO_DEVICE", "cuda")

torch.manual_seed(0)
right = 0
for shape in ((8, 8), (64, 64), (3, 16, 16)):
    a = torch.rand(*shape, dtype=torch.float64, device=DEVICE)
    one = torch.eye(shape[-1], dtype=torch.float64, device=DEVICE)
    s = a @ a.mT + shape[-1] * one
    u, d, v = svd(a)
    values, vectors = eigh(s)
    q, r = qr(a)
    lower = cholesky(s)
    pairs = [((u * d[..., None, :]) @ v, a), ((vectors * values[..., None, :]) @ vectors.mT, s), (q @ r, a),
             (s @ solve(s, a), a), (s @ inv(s), one.expand(shape)), (lower @ lower.mT, s),
             (s @ lstsq(s, a).solution, a)]
    right += sum(torch.allclose(x, y) for x, y in pairs)
print("right:", right, "of 21")
