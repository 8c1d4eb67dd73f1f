"""torch.cuda.make_graphed_callables in a training loop; a side stream downloads each output for a log.

Right: the side stream waits for the replay, and the next step for the download, for the output is one static tensor.
late: the download does not wait for the replay.
"""
import sys

import torch
from torch import nn

VARIANT = sys.argv[1] if len(sys.argv) > 1 else "right"

torch.manual_seed(0)
first = nn.Sequential(nn.Linear(64, 128), nn.GELU()).cuda()
second = nn.Linear(128, 4).cuda()
data, hidden = torch.randn(32, 64, device="cuda"), torch.randn(32, 128, device="cuda", requires_grad=True)
first = torch.cuda.make_graphed_callables(first, (data,))  # first: late
second = torch.cuda.make_graphed_callables(second, (hidden,))
optimizer = torch.optim.SGD([*first.parameters(), *second.parameters()], lr=0.1)
side, main = torch.cuda.Stream(), torch.cuda.current_stream()
logs, losses = [torch.empty(32, 128, pin_memory=True) for _ in range(10)], []
for log in logs:
    optimizer.zero_grad()
    hidden = first(data)  # first: late
    if VARIANT != "late":
        side.wait_stream(main)
    with torch.cuda.stream(side):
        log.copy_(hidden.detach(), non_blocking=True)  # then: late
    loss = second(hidden).square().mean()
    loss.backward()
    optimizer.step()
    main.wait_stream(side)
    losses.append(loss.detach().clone())
torch.cuda.synchronize()
print("the loss fell:", losses[-1].item() < losses[0].item())
