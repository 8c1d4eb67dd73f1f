"""Weights stay on the host; a side stream uploads a layer's while the one before computes, and they are dropped after.

Right: the layer waits for its weights, record_stream keeps them while it reads, the download waits for the result.
fetch: the layer does not wait.  drop: weights are freed while they are read.  early: the download does not wait.
"""
import sys

import torch

VARIANT = sys.argv[1] if len(sys.argv) > 1 else "right"
LAYERS, WIDTH = 8, 512

torch.manual_seed(0)
host = [(torch.rand(WIDTH, WIDTH).sub_(0.5).pin_memory(), torch.full((64, WIDTH), 0.5).pin_memory())
        for _ in range(LAYERS)]
side, main = torch.cuda.Stream(), torch.cuda.current_stream()


def fetch(number):
    with torch.cuda.stream(side):
        layer = [tensor.to("cuda", non_blocking=True) for tensor in host[number]]  # first: fetch  # then: drop
        ready = torch.cuda.Event()
        ready.record()
    return layer, ready


data = torch.rand(64, WIDTH, device="cuda")
answers = []
for _ in range(3):
    hidden = data
    following = fetch(0)
    for number in range(LAYERS):
        layer, ready = following
        following = fetch((number + 1) % LAYERS)
        if VARIANT != "fetch":
            main.wait_event(ready)
        hidden = torch.tanh(hidden @ layer[0] + layer[1])  # then: fetch  # first: drop  # first: early
        if VARIANT != "drop":
            layer[0].record_stream(main)
            layer[1].record_stream(main)
        del layer  # then: drop
    answer = torch.empty(64, WIDTH, pin_memory=True)
    with torch.cuda.stream(side):
        if VARIANT != "early":
            side.wait_stream(main)
        answer.copy_(hidden, non_blocking=True)  # then: early
        hidden.record_stream(side)
    answers.append(answer)
torch.cuda.synchronize()
print("the same each time:", [torch.equal(answer, answers[0]) for answer in answers])
