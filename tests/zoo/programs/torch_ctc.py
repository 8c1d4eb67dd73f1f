"""The CTC loss, of targets in rows and of the same ones in a line.

Right: one stream; both agree.
"""
import os

import torch
from torch.nn.functional import ctc_loss

DEVICE = os.environ.get("ZOO_DEVICE", "cuda")

torch.manual_seed(0)
right = 0
for batch in (1, 4, 9):
    scores = torch.randn(50, batch, 20, device=DEVICE, requires_grad=True)
    targets = torch.randint(1, 20, (batch, 10), device=DEVICE)
    lengths = [torch.full((batch,), n) for n in (50, 10)]
    own = ctc_loss(scores.log_softmax(2), targets, *lengths)
    other = ctc_loss(scores.log_softmax(2), targets.flatten(), *lengths)
    (own + other).backward()
    right += torch.allclose(own, other, atol=1e-2) and bool(torch.isfinite(scores.grad).all())
print("right:", right, "of 3")
