"""scaled_dot_product_attention in float32 and bfloat16, causal or with a mask, forward and backward.

Right: one stream; the fused kernels agree with the plain formula.
"""
import math
import os

import torch
from torch.nn.functional import scaled_dot_product_attention

DEVICE = os.environ.get("ZOO_DEVICE", "cuda")

torch.manual_seed(0)
right = 0
for dtype, length in ((torch.float32, 128), (torch.bfloat16, 128), (torch.float32, 77), (torch.bfloat16, 512)):
    q, k, v = (torch.randn(2, 4, length, 64, device=DEVICE, dtype=dtype).requires_grad_() for _ in range(3))
    future = torch.ones(length, length, dtype=torch.bool, device=DEVICE).triu(1)
    weights = (q.float() @ k.float().mT / math.sqrt(64)).masked_fill(future, -math.inf).softmax(-1)
    for arguments in ({"is_causal": True}, {"attn_mask": ~future}):
        output = scaled_dot_product_attention(q, k, v, **arguments)
        output.float().square().mean().backward()
        right += torch.allclose(output.float(), weights @ v.float(), atol=0.05)
print("right:", right, "of 8")
