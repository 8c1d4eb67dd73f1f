"""Three streams in a ring of two buffers: one fills them, one squares, one sums, with events between them.

Right: each stream waits for the one before, a buffer is filled again after it was read, and record_stream keeps the
squares.  noevent: the sum does not wait.  norecord: squares are freed while they are summed.
overwrite: a buffer is filled again while it is still read (and the squares are kept, because PyTorch queries the events
of what it gets back after record_stream, and from the answer the host knows that the buffer has been read).
"""
import sys

import torch

VARIANT = sys.argv[1] if len(sys.argv) > 1 else "right"
COUNT, ROUNDS = 1 << 20, 16

filler, squarer, summer = (torch.cuda.Stream() for _ in range(3))
ring = [torch.zeros(COUNT, device="cuda") for _ in range(2)]
read = [torch.cuda.Event() for _ in ring]
sums = torch.zeros(ROUNDS, device="cuda")
kept = []
torch.cuda.synchronize()
for number in range(ROUNDS):
    slot, filled, squared = ring[number % 2], torch.cuda.Event(), torch.cuda.Event()
    with torch.cuda.stream(filler):
        if VARIANT != "overwrite" and number > 1:
            filler.wait_event(read[number % 2])
        slot.fill_(number + 1.0)  # then: overwrite
        filled.record()
    with torch.cuda.stream(squarer):
        squarer.wait_event(filled)
        squares = slot * slot  # first: overwrite  # first: noevent
        read[number % 2].record()
        squared.record()
    with torch.cuda.stream(summer):
        if VARIANT != "noevent":
            summer.wait_event(squared)
        sums[number] = squares.mean()  # then: noevent  # first: norecord
    if VARIANT == "overwrite":
        kept.append(squares)
    elif VARIANT != "norecord":
        squares.record_stream(summer)
    del squares  # then: norecord
torch.cuda.synchronize()
print("right means:", sum(value == (k + 1) ** 2 for k, value in enumerate(sums.tolist())), "of", ROUNDS)
