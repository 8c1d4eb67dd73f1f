"""More memory is requested than there is; the program catches the error, and goes on with less.

Right: one stream; what failed has left nothing behind.
"""
import torch

torch.cuda.set_per_process_memory_fraction(0.02)        # other programs need the rest
caught = 0
total = 0.0
for size in (1 << 31, 1 << 10, 1 << 30, 1 << 20):
    try:
        values = torch.ones(size, device="cuda")
    except torch.OutOfMemoryError:
        caught += 1
        torch.cuda.empty_cache()
        continue
    total += values.sum().item()
    del values
print("caught:", caught, "total:", total)
