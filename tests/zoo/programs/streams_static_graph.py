"""A captured training step; a side stream copies each batch into the step's static input.

Right: the side stream waits for the replay before, and the replay for the copy.
overwrite: a batch is copied while the replay reads the one before.  nowait: the replay does not wait for the copy.
"""
import sys

import torch
from torch import nn

VARIANT = sys.argv[1] if len(sys.argv) > 1 else "right"

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 8)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
static, target = torch.zeros(128, 256, device="cuda"), torch.zeros(128, 8, device="cuda")
side, main = torch.cuda.Stream(), torch.cuda.current_stream()
side.wait_stream(main)
with torch.cuda.stream(side):                           # warm up, as PyTorch's documentation has it
    for _ in range(3):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(static), target).backward()
        optimizer.step()
main.wait_stream(side)
graph = torch.cuda.CUDAGraph()
optimizer.zero_grad()
with torch.cuda.graph(graph):
    loss = nn.functional.mse_loss(model(static), target)  # first: overwrite  # then: nowait
    loss.backward()  # first: overwrite  # then: nowait
    optimizer.step()
batches = [(torch.rand(128, 256).pin_memory(), torch.rand(128, 8).pin_memory()) for _ in range(10)]
losses = []
for batch in batches * 2:
    if VARIANT != "overwrite":
        side.wait_stream(main)
    with torch.cuda.stream(side):
        static.copy_(batch[0], non_blocking=True)  # then: overwrite  # first: nowait
        target.copy_(batch[1], non_blocking=True)  # then: overwrite  # first: nowait
    if VARIANT != "nowait":
        main.wait_stream(side)
    graph.replay()  # first: overwrite  # then: nowait
    losses.append(loss.clone())
torch.cuda.synchronize()
print("the loss fell:", losses[-1].item() < losses[0].item())
