"""Triton: a kernel on one stream reads what a slow stream wrote.  The tensors are PyTorch's.

    python examples/kernels/triton_kernel.py               # right
    python examples/kernels/triton_kernel.py --wrong       # without the `use`

Each round has a tensor of its own, which is dropped while the kernel that reads it is still queued.
"""
import contextlib
import sys

import xlogmem

xlogmem.enable("torch")                                 # before PyTorch starts CUDA
import torch
import triton
import triton.language as tl

WRONG = "--wrong" in sys.argv
ROUNDS, COUNT, WIDTH, CYCLES = 1000, 1 << 16, 256, 200_000


@triton.jit
def fill(x, value, width: tl.constexpr):
    place = tl.program_id(0) * width + tl.arange(0, width)
    tl.store(x + place, tl.full((width,), value, tl.int32))


@triton.jit
def compare(x, value, unequal, width: tl.constexpr):
    place = tl.program_id(0) * width + tl.arange(0, width)
    tl.atomic_add(unequal + value, tl.sum((tl.load(x + place) != value).to(tl.int32)))


producer, consumer = torch.cuda.Stream(), torch.cuda.Stream()
unequal = torch.zeros(ROUNDS, dtype=torch.int32, device="cuda")
torch.cuda.synchronize()
for number in range(ROUNDS):
    with torch.cuda.stream(producer):
        x = torch.empty(COUNT, dtype=torch.int32, device="cuda")
        torch.cuda._sleep(CYCLES)                       # it is slow
        fill[(COUNT // WIDTH,)](x, number, WIDTH)
    protected = contextlib.nullcontext() if WRONG else xlogmem.use(consumer, read=x, read_write=unequal)
    with torch.cuda.stream(consumer), protected:        # after `fill`; and `x` is freed after `compare`
        compare[(COUNT // WIDTH,)](x, number, unequal, WIDTH)
torch.cuda.synchronize()

wrong = int((unequal > 0).sum())
print(f"{ROUNDS - wrong} of {ROUNDS} rounds right, {wrong} wrong")
sys.exit((wrong > 0) != WRONG)
