"""Two graphs share a pool: the second reads what the first makes, and its temporaries have the first's old memory.

Right: both are replayed on one stream, in the order in which they were captured.
beside: the second is replayed on a stream that does not wait for the first.
"""
import sys

import torch

VARIANT = sys.argv[1] if len(sys.argv) > 1 else "right"
COUNT, ROUNDS = 1 << 20, 6

values = torch.zeros(COUNT, device="cuda")
torch.cuda.synchronize()
first, second = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
with torch.cuda.graph(first):
    values += 1  # first: beside
    halves = values / 2
    middle = halves * 4  # first: beside
    del halves
with torch.cuda.graph(second, pool=first.pool()):
    result = middle * 3 + values  # then: beside
main, other = torch.cuda.current_stream(), torch.cuda.Stream()
torch.cuda.synchronize()
results = []
for _ in range(ROUNDS):
    first.replay()  # first: beside
    if VARIANT == "beside":
        with torch.cuda.stream(other):
            second.replay()  # then: beside
        main.wait_stream(other)
    else:
        second.replay()
    results.append(result[::1000].clone())
torch.cuda.synchronize()
print("right:", sum(bool((got == 7 * (k + 1)).all()) for k, got in enumerate(results)), "of", ROUNDS)
