"""Operations over lists of tensors: 200 short ones, 50 long ones, lists that get shorter.

Right: one stream; a launch takes as many tensors as fit its table, and the rest of the table is old.
"""
import os

import torch

DEVICE = os.environ.get("ZOO_DEVICE", "cuda")

total = 0.0
for count, size in ((200, 100), (50, 100_000), (3, 7), (120, 1000), (1, 64)):
    ones = [torch.ones(size, device=DEVICE) for _ in range(count)]
    more = torch._foreach_add(ones, ones)
    torch._foreach_mul_(more, 2.0)
    torch._foreach_addcmul_(more, ones, ones)
    torch._foreach_copy_(ones, more)
    del more
    total += torch.stack(torch._foreach_norm(ones, ord=float("inf"))).sum().item()
    torch._foreach_zero_(ones)
    total += sum(one.sum().item() for one in ones)
print("total:", total)
