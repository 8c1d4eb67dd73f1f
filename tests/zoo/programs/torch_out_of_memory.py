"""More memory is requested than there is; the program catches the error, and goes on with less.

Right: one stream; what failed has left nothing behind.
"""
import torch

caught = 0
total = 0.0
for size in (1 << 44, 1 << 10, 1 << 43, 1 << 20):
    try:
        values = torch.ones(size, device="cuda")
    except torch.OutOfMemoryError:
        caught += 1
        torch.cuda.empty_cache()
        continue
    total += values.sum().item()
    del values
print("caught:", caught, "total:", total)
