"""gpytorch's exact Gaussian process: Cholesky factors or conjugate gradients of a kernel matrix, and a prediction.

Right: one stream.
"""
import os

import gpytorch
import torch
from gpytorch.kernels import RBFKernel, ScaleKernel

DEVICE = os.environ.get("ZOO_DEVICE", "cuda")

torch.manual_seed(0)
places = torch.linspace(0, 1, 400, device=DEVICE)
values = torch.sin(6 * places) + 0.05 * torch.randn(400, device=DEVICE)


class Process(gpytorch.models.ExactGP):
    def __init__(self, likelihood):
        super().__init__(places, values, likelihood)
        self.mean, self.kernel = gpytorch.means.ConstantMean(), ScaleKernel(RBFKernel())

    def forward(self, x):
        return gpytorch.distributions.MultivariateNormal(self.mean(x), self.kernel(x))


likelihood = gpytorch.likelihoods.GaussianLikelihood().to(DEVICE)
model = Process(likelihood).to(DEVICE)
optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
measure = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)
for _ in range(15):
    optimizer.zero_grad()
    measure(model(places), values).neg().backward()
    optimizer.step()
model.eval()
likelihood.eval()
with torch.no_grad():
    error = (likelihood(model(places)).mean - torch.sin(6 * places)).abs().mean().item()
print("mean error below 0.2:", error < 0.2)
