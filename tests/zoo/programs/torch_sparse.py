"""Sparse matrices in COO and CSR: products by cuSPARSE, coalescing, and gradients.

Right: one stream; the products are those of the dense matrices.
"""
import os
import warnings

import torch

DEVICE = os.environ.get("ZOO_DEVICE", "cuda")
warnings.filterwarnings("ignore", "Sparse CSR tensor support")

torch.manual_seed(0)
right = 0
for size in (20, 200, 1000):
    dense = torch.rand(size, size, device=DEVICE).sub(0.9).relu()
    other = torch.rand(size, 8, device=DEVICE)
    expected = dense @ other
    coordinates = dense.to_sparse().requires_grad_()
    product = torch.sparse.mm(coordinates, other)
    product.sum().backward()
    right += torch.allclose(product, expected, atol=1e-4)
    right += torch.allclose(dense.to_sparse_csr() @ other, expected, atol=1e-4)
    twice = torch.sparse_coo_tensor(torch.tensor([[0, 0], [1, 1]]), torch.ones(2), (size, size), device=DEVICE)
    right += twice.coalesce().values().item() == 2
print("right:", right, "of 9")
