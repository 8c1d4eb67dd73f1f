"""torchvision's Faster R-CNN: proposals, non-maximum suppression and ROI align, whose sizes come back to the host.

Right: one stream.
"""
import os

import torch
from torchvision.models.detection import fasterrcnn_mobilenet_v3_large_320_fpn

DEVICE = os.environ.get("ZOO_DEVICE", "cuda")

torch.manual_seed(0)
model = fasterrcnn_mobilenet_v3_large_320_fpn(weights=None, weights_backbone=None, num_classes=5).to(DEVICE)
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
boxes = torch.tensor([[10.0, 10.0, 60.0, 60.0], [80.0, 30.0, 150.0, 140.0]], device=DEVICE)
targets = [{"boxes": boxes, "labels": torch.tensor([1, 3], device=DEVICE)} for _ in range(2)]
finite = 0
for _ in range(3):
    losses = model([torch.rand(3, 200, 240, device=DEVICE) for _ in range(2)], targets)
    loss = sum(losses.values())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    finite += bool(torch.isfinite(loss))
model.eval()
with torch.inference_mode():
    found = model([torch.rand(3, 200, 240, device=DEVICE)])
print("finite:", finite, "of 3, keys:", sorted(found[0]))
