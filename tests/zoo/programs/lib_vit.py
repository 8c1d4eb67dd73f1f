"""timm's vision transformer in bfloat16 with timm's AdamW and an exponential mean of the weights.

Right: one stream.
"""
import os

import timm
import torch
from timm.optim import create_optimizer_v2
from timm.utils import ModelEmaV2

DEVICE = os.environ.get("ZOO_DEVICE", "cuda")

torch.manual_seed(0)
model = timm.create_model("vit_tiny_patch16_224", pretrained=False, num_classes=10).to(DEVICE)
optimizer, mean = create_optimizer_v2(model, "adamw", lr=1e-3), ModelEmaV2(model)
images, labels = torch.rand(8, 3, 224, 224, device=DEVICE), torch.arange(8, device=DEVICE)
losses = []
for _ in range(6):
    with torch.autocast(DEVICE, torch.bfloat16):
        loss = torch.nn.functional.cross_entropy(model(images), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    mean.update(model)
    losses.append(loss.item())
print("finite:", all(loss == loss for loss in losses))
