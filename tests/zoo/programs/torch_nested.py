"""Nested tensors: sequences of different lengths in one tensor, padded and multiplied.

Right: one stream.
"""
import os
import warnings

import torch

DEVICE = os.environ.get("ZOO_DEVICE", "cuda")
warnings.filterwarnings("ignore", "The PyTorch API of nested tensors")

torch.manual_seed(0)
right = 0
for lengths in ((3, 5), (1, 9, 2, 7), (30, 2, 17)):
    pieces = [torch.rand(length, 8, device=DEVICE) for length in lengths]
    nested = torch.nested.nested_tensor(pieces)
    padded = nested.to_padded_tensor(0.0)
    right += padded.shape == (len(lengths), max(lengths), 8)
    right += all(torch.equal(row[:len(piece)], piece) for row, piece in zip(padded, pieces, strict=True))
    weights = torch.rand(8, 4, device=DEVICE)
    products = torch.nested.nested_tensor([piece @ weights for piece in pieces]).unbind()
    right += all(torch.allclose(a, b @ weights) for a, b in zip(products, nested.unbind(), strict=True))
print("right:", right, "of 9")
