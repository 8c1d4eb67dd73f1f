"""The other optimizers take turns on one model: momentum, RMSprop, Adagrad, NAdam, LBFGS with its line search.

Right: one stream.
"""
import os

import torch
from torch import nn

DEVICE = os.environ.get("ZOO_DEVICE", "cuda")

torch.manual_seed(0)
data = torch.rand(64, 8, device=DEVICE)
done = []
for make in (lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9, nesterov=True), torch.optim.RMSprop,
             torch.optim.Adagrad, torch.optim.NAdam,
             lambda p: torch.optim.LBFGS(p, max_iter=4, line_search_fn="strong_wolfe")):
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8)).to(DEVICE)
    optimizer = make(model.parameters())

    def closure(model=model, optimizer=optimizer):
        optimizer.zero_grad()
        loss = (model(data) - data).square().mean()
        loss.backward()
        return loss

    first = closure().item()
    for _ in range(5):
        optimizer.step(closure)
    done.append(closure().item() < first)
print("losses that fell:", sum(done), "of", len(done))
