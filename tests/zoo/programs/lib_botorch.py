"""botorch: a Gaussian process is fitted, and expected improvement says where to look next, by L-BFGS from the host.

Right: one stream; each step of the optimizer fetches the gradient.
"""
import os
import warnings

import torch
from botorch.acquisition import LogExpectedImprovement
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from botorch.optim import optimize_acqf
from gpytorch.mlls import ExactMarginalLogLikelihood

DEVICE = os.environ.get("ZOO_DEVICE", "cuda")
warnings.filterwarnings("ignore")

torch.manual_seed(0)
places = torch.rand(12, 2, dtype=torch.float64, device=DEVICE)
bounds = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.float64, device=DEVICE)
for _ in range(2):
    values = -((places - 0.4) ** 2).sum(1, keepdim=True)
    model = SingleTaskGP(places, values)
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model), optimizer_kwargs={"options": {"maxiter": 20}})
    following, _ = optimize_acqf(LogExpectedImprovement(model, values.max()), bounds, q=1, num_restarts=2,
                                 raw_samples=16, options={"maxiter": 10})
    places = torch.cat([places, following])
print("places:", tuple(places.shape), "inside:", bool(((places >= 0) & (places <= 1)).all()))
