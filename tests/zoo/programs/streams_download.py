"""A double-buffered download: while one result travels to the host, the next one is made.

Right: the download waits for the result, the next result for the download, and the host for both.
early: the download does not wait for the result.  overwrite: a result is replaced while it is still downloaded.
"""
import sys

import torch

VARIANT = sys.argv[1] if len(sys.argv) > 1 else "right"
COUNT, ROUNDS = 1 << 20, 12

main, side = torch.cuda.current_stream(), torch.cuda.Stream()
base = torch.ones(COUNT, device="cuda")
slots = [torch.zeros(COUNT, device="cuda") for _ in range(2)]
hosts = [torch.zeros(COUNT, pin_memory=True) for _ in range(2)]
fetched = [torch.cuda.Event() for _ in range(2)]
torch.cuda.synchronize()
right = 0
for number in range(ROUNDS + 1):
    if number < ROUNDS:
        slot, ready = slots[number % 2], torch.cuda.Event()
        if VARIANT != "overwrite":
            main.wait_event(fetched[number % 2])
        slot.copy_(base * number)  # then: overwrite  # first: early
        ready.record()
        with torch.cuda.stream(side):
            if VARIANT != "early":
                side.wait_event(ready)
            hosts[number % 2].copy_(slot, non_blocking=True)  # then: early  # first: overwrite
            fetched[number % 2].record()
    if number > 0 and VARIANT == "right":               # the host looks at the one before meanwhile
        fetched[(number - 1) % 2].synchronize()
        right += bool((hosts[(number - 1) % 2] == number - 1).all())
torch.cuda.synchronize()
print("right:", right, "of", ROUNDS)
