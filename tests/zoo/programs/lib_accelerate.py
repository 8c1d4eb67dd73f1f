"""A loop by accelerate: it places the model, wraps the loader, scales gradients and gathers what the processes say.

Right: one stream.
"""
import os

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

ON_CPU = os.environ.get("ZOO_DEVICE", "cuda") == "cpu"

torch.manual_seed(0)
accelerator = Accelerator(mixed_precision="no" if ON_CPU else "fp16", gradient_accumulation_steps=2, cpu=ON_CPU)
model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 8))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
schedule = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=20)
loader = DataLoader(TensorDataset(torch.rand(256, 64), torch.arange(256) % 8), 32, pin_memory=not ON_CPU)
model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
seen, losses = 0, []
for _ in range(4):
    for data, labels in loader:
        with accelerator.accumulate(model):
            loss = nn.functional.cross_entropy(model(data), labels)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        seen += len(accelerator.gather_for_metrics(labels))
        losses.append(loss.detach())
print("labels:", seen, "the loss fell:", sum(losses[-8:]).item() < sum(losses[:8]).item())
