"""Triton: the result of a kernel is copied to the host on another stream, which does not wait for the kernel.

    xlogmem check --gpu -- python examples/races/gpu/triton_download.py [--fixed]
"""
import sys

import torch
import triton
import triton.language as tl

FIXED = "--fixed" in sys.argv
COUNT, WIDTH = 1 << 16, 256


@triton.jit
def add(x, y, total, count, width: tl.constexpr):
    place = tl.program_id(0) * width + tl.arange(0, width)
    inside = place < count
    tl.store(total + place, tl.load(x + place, mask=inside) + tl.load(y + place, mask=inside), mask=inside)


x, y, total = (torch.ones(COUNT, device="cuda") for _ in range(3))
host = torch.empty(COUNT, pin_memory=True)
torch.cuda.synchronize()
download = torch.cuda.Stream()
add[(COUNT // WIDTH,)](x, y, total, COUNT, width=WIDTH)
if FIXED:
    download.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(download):
    host.copy_(total, non_blocking=True)
torch.cuda.synchronize()
