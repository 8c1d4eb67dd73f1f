"""A captured graph that allocates, frees and allocates again inside: its second temporary may have the first's memory.

Right: a side stream fills the input after the replay before, and downloads the result after the replay.
late: the download does not wait for the replay.  early: the input is filled while the replay before still reads it.
"""
import sys

import torch

VARIANT = sys.argv[1] if len(sys.argv) > 1 else "right"
COUNT, ROUNDS = 1 << 20, 8

values = torch.zeros(COUNT, device="cuda")
side, main = torch.cuda.Stream(), torch.cuda.current_stream()
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    doubled = values * 2  # first: early
    more = doubled + 1
    del doubled
    squares = more * more
    del more
    result = squares - values  # first: late  # first: early
    del squares
inputs = [torch.full((COUNT,), float(k)).pin_memory() for k in range(ROUNDS)]
results = [torch.empty(COUNT, pin_memory=True) for _ in range(ROUNDS)]
for given, got in zip(inputs, results, strict=True):
    if VARIANT != "early":
        side.wait_stream(main)
    with torch.cuda.stream(side):
        values.copy_(given, non_blocking=True)  # then: early
    main.wait_stream(side)
    graph.replay()  # first: late  # first: early
    if VARIANT != "late" and VARIANT != "early":
        side.wait_stream(main)
    if VARIANT != "early":                              # whose side stream would be in order again
        with torch.cuda.stream(side):
            got.copy_(result, non_blocking=True)  # then: late
torch.cuda.synchronize()
print("right:", sum(bool((got == (2 * k + 1) ** 2 - k).all()) for k, got in enumerate(results)), "of", ROUNDS)
