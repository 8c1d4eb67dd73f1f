"""A training loop whose batches a side stream uploads and normalises, one ahead.

Right: the main stream waits for the side stream, and record_stream keeps a batch until the main stream is done.
nowait: the main stream does not wait.  norecord: batches are freed while the main stream still reads them.
"""
import os
import sys
import time

import torch
from torch import nn

VARIANT = sys.argv[1] if len(sys.argv) > 1 else "right"
STEPS = int(os.environ.get("ZOO_STEPS", 12))


class Prefetcher:
    def __init__(self, batches):
        self.batches, self.stream = iter(batches), torch.cuda.Stream()
        self.load()

    def load(self):
        self.next = None
        for images, labels in self.batches:
            with torch.cuda.stream(self.stream):
                images = images.to("cuda", non_blocking=True)  # first: nowait
                labels = labels.to("cuda", non_blocking=True)  # first: nowait
                self.next = images.sub_(0.5).div_(0.25), labels  # first: nowait
            break

    def get(self):
        main = torch.cuda.current_stream()
        if VARIANT != "nowait":
            main.wait_stream(self.stream)
        batch = self.next
        if batch is not None and VARIANT != "norecord":
            for tensor in batch:
                tensor.record_stream(main)
        self.load()
        return batch


torch.manual_seed(0)
model = nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 64, 3), nn.ReLU(),
                      nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
pinned = [(torch.rand(64, 3, 64, 64).pin_memory(), torch.randint(0, 10, (64,)).pin_memory()) for _ in range(4)]
seen, total = 0, torch.zeros((), device="cuda")
feed = Prefetcher(pinned[step % 4] for step in range(STEPS))
batch, begin = feed.get(), time.perf_counter()
while batch is not None:
    loss = nn.functional.cross_entropy(model(batch[0]), batch[1])  # then: nowait
    optimizer.zero_grad()
    loss.backward()  # then: nowait
    optimizer.step()
    total, seen = total + loss.detach(), seen + 1
    del loss
    batch = feed.get()
    if seen == STEPS // 3:                              # warm by now
        torch.cuda.synchronize()
        begin = time.perf_counter()
mean = total.item() / seen
print(f"step_ms: {(time.perf_counter() - begin) / (STEPS - STEPS // 3) * 1e3:.3f}")
print("batches:", seen == STEPS, "mean loss as at random:", 2 < mean < 3)
