"""Collectives of one process that run on NCCL's stream while the program goes on: gather, scatter, broadcast.

Right: the program waits for the work before it reads the result.
nowait: it reads without.
"""
import sys

import torch
import torch.distributed as dist

VARIANT = sys.argv[1] if len(sys.argv) > 1 else "right"
COUNT = 1 << 20

dist.init_process_group("nccl", rank=0, world_size=1, device_id=torch.device("cuda", 0))
given, got = torch.zeros(COUNT, device="cuda"), torch.zeros(COUNT, device="cuda")
dist.broadcast(given, 0)
torch.cuda.synchronize()
right = 0
for number in range(8):
    given.fill_(float(number))
    work = dist.all_gather_into_tensor(got, given, async_op=True)  # first: nowait
    if VARIANT != "nowait":
        work.wait()
    copy = got.clone()  # then: nowait
    work.wait()
    right += bool((copy == number).all())
print("right:", right, "of 8")
dist.destroy_process_group()
