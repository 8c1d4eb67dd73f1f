"""PyTorch: a side stream reads what the current one writes, and its input is dropped while it reads.

    xlogmem check --gpu -- python examples/races/gpu/torch_side_stream.py [--fixed]
"""
import sys

import torch

FIXED = "--fixed" in sys.argv

main, side = torch.cuda.current_stream(), torch.cuda.Stream()
values, matrix = torch.ones(1 << 20, device="cuda"), torch.ones(256, 256, device="cuda")
doubled = values * 2
if FIXED:
    side.wait_stream(main)
with torch.cuda.stream(side):
    more, product = doubled + 1, matrix @ matrix
if FIXED:
    main.wait_stream(side)
del doubled
torch.zeros(1 << 20, device="cuda")                     # may have the same memory
torch.cuda.synchronize()
