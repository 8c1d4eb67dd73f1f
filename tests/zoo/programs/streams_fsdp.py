"""FSDP2 in one process: parameters are gathered and gradients reduced on streams of its own, in mixed precision.

Right: FSDP orders its streams; the program has one.
"""
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

torch.cuda.set_device(0)
dist.init_process_group("nccl", rank=0, world_size=1, device_id=torch.device("cuda", 0))
torch.manual_seed(0)
layers = [nn.TransformerEncoderLayer(256, 4, 512, dropout=0.0, batch_first=True) for _ in range(4)]
model = nn.Sequential(*layers, nn.Linear(256, 10)).cuda()
policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16)
for layer in model[:4]:
    fully_shard(layer, mp_policy=policy)
fully_shard(model, mp_policy=policy)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
data = torch.rand(8, 64, 256, device="cuda")
losses = []
for _ in range(6):
    loss = model(data).float().square().mean()
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    losses.append(loss.item())
print("the loss fell:", losses[-1] < losses[0])
dist.destroy_process_group()
