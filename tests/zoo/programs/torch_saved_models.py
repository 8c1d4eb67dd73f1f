"""Models are copied, pickled, moved between host and device, and back, in the middle of training.

Right: one stream; copies that do not block are waited for before the host looks.
"""
import copy
import io
import os

import torch
from torch import nn

DEVICE = os.environ.get("ZOO_DEVICE", "cuda")

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 128)).to(DEVICE)
optimizer = torch.optim.Adam(model.parameters())
data = torch.rand(32, 128, device=DEVICE)
right = 0
for _ in range(4):
    optimizer.zero_grad()
    model(data).square().mean().backward()
    optimizer.step()
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
    file.seek(0)
    saved = torch.load(file, map_location=DEVICE)
    twin = copy.deepcopy(model)
    twin.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    host = model(data).to("cpu", non_blocking=True)
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    right += torch.equal(twin(data).cpu(), host) and torch.allclose(twin.cpu()(data.cpu()), host, atol=1e-3)
print("right:", right, "of 4")
