"""torch.cuda.MemPool: tensors from pools of their own, which PyTorch has on its own allocator alone.

Right: one stream; the pools end before the program.
"""
import torch

total = 0.0
for _ in range(2):
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        twos = torch.ones(1 << 20, device="cuda") * 2
        del twos
        twos = torch.full((1 << 20,), 2.0, device="cuda")
    total += (twos + torch.ones(1 << 20, device="cuda")).sum().item()
    del twos, pool
torch.cuda.empty_cache()
print("total:", total)
