"""Results are copied into a table on a side stream, and dropped at once.

Right: the side stream waits for each result, and record_stream keeps it until it is copied.
nowait: the side stream does not wait.  norecord: results are freed while they are copied.
"""
import sys

import torch

VARIANT = sys.argv[1] if len(sys.argv) > 1 else "right"
COUNT, ROUNDS = 1 << 18, 16

main, side = torch.cuda.current_stream(), torch.cuda.Stream()
table = torch.zeros(ROUNDS, COUNT, device="cuda")
torch.cuda.synchronize()
for number in range(ROUNDS):
    result = torch.full((COUNT,), float(number), device="cuda").add_(1)  # first: nowait
    if VARIANT != "nowait":
        side.wait_stream(main)
    with torch.cuda.stream(side):
        table[number].copy_(result)  # then: nowait  # first: norecord
    if VARIANT != "norecord":
        result.record_stream(side)
    del result  # then: norecord
torch.cuda.synchronize()
print("right rows:", sum(bool((row == k + 1).all()) for k, row in enumerate(table.cpu())), "of", ROUNDS)
