"""PyTorch: batches are copied on a side stream, and dropped as soon as the work on them is queued.

    python examples/kernels/torch_prefetcher.py            # right
    python examples/kernels/torch_prefetcher.py --wrong    # without the `use`

The main stream waits for the copies, but the memory of a dropped batch does not wait for the main stream.  With
PyTorch's own allocator that takes `tensor.record_stream(main)`, once for each tensor and stream, and the memory comes
back only when the host, at a later allocation, finds that the main stream has got so far: see
https://github.com/pytorch/pytorch/issues/147168.  One `use` names the whole batch, and the copy that gets its memory
waits on the device.
"""
import contextlib
import sys

import xlogmem

xlogmem.enable("torch")                                 # before PyTorch starts CUDA
import torch

WRONG = "--wrong" in sys.argv
ROUNDS, KINDS, CYCLES = 1000, 16, 400_000
SIZES = {"images": 1 << 20, "labels": 1 << 10}

main, side = torch.cuda.current_stream(), torch.cuda.Stream()
hosts = [{name: torch.full((size,), kind, pin_memory=True) for name, size in SIZES.items()} for kind in range(KINDS)]


def upload(number):
    with torch.cuda.stream(side):
        return {name: tensor.to("cuda", non_blocking=True) for name, tensor in hosts[number % KINDS].items()}


def work_on(batch, number):
    """In place of a model: it is slow, and notes how many values are not those of this batch."""
    torch.cuda._sleep(CYCLES)
    for tensor in batch.values():
        unequal[number] += (tensor != number % KINDS).sum()


unequal = torch.zeros(ROUNDS, dtype=torch.int64, device="cuda")
batch = upload(0)
for number in range(ROUNDS):
    main.wait_stream(side)
    protected = contextlib.nullcontext() if WRONG else xlogmem.use(main, read=batch)
    with protected:                                     # `batch` is freed after `work_on`
        following = upload(number + 1)                  # meanwhile; after the `with` it would come after `work_on`
        work_on(batch, number)
    batch = following
torch.cuda.synchronize()

wrong = int((unequal > 0).sum())
print(f"{ROUNDS - wrong} of {ROUNDS} batches right, {wrong} wrong")
sys.exit((wrong > 0) != WRONG)
