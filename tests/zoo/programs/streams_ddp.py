"""DistributedDataParallel over NCCL in one process: gradients in buckets, reduced on a stream of NCCL's own.

Right: PyTorch orders the buckets; the program waits for its own collective.
"""
import torch
import torch.distributed as dist
from torch import nn

dist.init_process_group("nccl", rank=0, world_size=1, device_id=torch.device("cuda", 0))
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 10)).cuda()
model = nn.parallel.DistributedDataParallel(model, device_ids=[0], bucket_cap_mb=1)
optimizer = torch.optim.AdamW(model.parameters(), fused=True)
data, labels = torch.rand(128, 256, device="cuda"), torch.arange(128, device="cuda") % 10
losses = []
for _ in range(10):
    loss = nn.functional.cross_entropy(model(data), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
ones = torch.ones(1 << 20, device="cuda")
work = dist.all_reduce(ones, async_op=True)
work.wait()
print("the loss fell:", losses[-1] < losses[0], "sum:", ones.sum().item())
dist.destroy_process_group()
