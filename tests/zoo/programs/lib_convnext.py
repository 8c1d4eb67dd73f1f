"""timm's ConvNeXt with mixup and label smoothing, clipped gradients and a schedule.

Right: one stream.
"""
import os

import timm
import torch
from timm.data import Mixup
from timm.loss import SoftTargetCrossEntropy

DEVICE = os.environ.get("ZOO_DEVICE", "cuda")

torch.manual_seed(0)
model = timm.create_model("convnext_atto", pretrained=False, num_classes=10, drop_path_rate=0.1).to(DEVICE)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-3, total_steps=6)
mixup, measure = Mixup(mixup_alpha=0.8, num_classes=10, label_smoothing=0.1), SoftTargetCrossEntropy()
finite = 0
for _ in range(6):
    images, labels = torch.rand(8, 3, 96, 96), torch.arange(8)
    if DEVICE == "cuda":
        images, labels = (tensor.pin_memory().to(DEVICE, non_blocking=True) for tensor in (images, labels))
    images, labels = mixup(images, labels)
    loss = measure(model(images), labels)
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    schedule.step()
    finite += bool(torch.isfinite(loss))
print("finite:", finite, "of 6")
