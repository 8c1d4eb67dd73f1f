"""torchvision's ResNet in channels_last and bfloat16, trained with SGD: cuDNN, fused optimizer kernels, autocast.

Right: one stream.
"""
import os
import time

import torch
import torchvision

DEVICE, STEPS = os.environ.get("ZOO_DEVICE", "cuda"), int(os.environ.get("ZOO_STEPS", 9))
# Its steps take 20 ms and more where time is measured.
NAME, BATCH, SIZE = ("resnet50", 64, 224) if "ZOO_STEPS" in os.environ else ("resnet18", 16, 96)

torch.manual_seed(0)
model = getattr(torchvision.models, NAME)(num_classes=10).to(DEVICE, memory_format=torch.channels_last)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
images = torch.rand(BATCH, 3, SIZE, SIZE, device=DEVICE).to(memory_format=torch.channels_last)
labels = torch.arange(BATCH, device=DEVICE) % 10
losses = []
for step in range(STEPS):
    if step == STEPS // 3:
        losses[-1].item()
        begin = time.perf_counter()
    with torch.autocast(DEVICE, torch.bfloat16):
        loss = torch.nn.functional.cross_entropy(model(images), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.detach())
last = losses[-1].item()
print(f"step_ms: {(time.perf_counter() - begin) / (STEPS - STEPS // 3) * 1e3:.3f}")
model.eval()
with torch.inference_mode():
    print("finite:", last == last, "answers:", len(model(images).argmax(1).tolist()) == BATCH)
