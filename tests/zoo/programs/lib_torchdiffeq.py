"""torchdiffeq: an equation whose solution is known, with steps that adapt, and gradients by the adjoint method.

Right: one stream; whether a step is accepted comes back to the host each time.
"""
import os

import torch
from torchdiffeq import odeint, odeint_adjoint

DEVICE = os.environ.get("ZOO_DEVICE", "cuda")


class Decay(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.rate = torch.nn.Parameter(torch.tensor(1.0, device=DEVICE))

    def forward(self, _, value):
        return -self.rate * value


decay, times = Decay(), torch.linspace(0, 1, 20, device=DEVICE)
begin = torch.ones(100, device=DEVICE)
errors = [(odeint(decay, begin, times, method=method)[-1] - torch.tensor(-1.0).exp()).abs().max().item()
          for method in ("dopri5", "rk4", "adaptive_heun")]
odeint_adjoint(decay, begin, times)[-1].mean().backward()
print("errors:", [error < 1e-3 for error in errors], "gradient:", round(decay.rate.grad.item(), 2))
