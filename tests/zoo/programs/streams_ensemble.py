"""Four models are trained on four streams, with the same batch; the main stream takes the mean of what they say.

Right: each stream waits for the batch, the main stream for each of them, and record_stream keeps what others read.
noinput: the streams do not wait for the batch.  nojoin: the main stream does not wait for the answers.
"""
import sys

import torch
from torch import nn

VARIANT = sys.argv[1] if len(sys.argv) > 1 else "right"

torch.manual_seed(0)
models = [nn.Sequential(nn.Linear(128, 512), nn.ReLU(), nn.Linear(512, 4), nn.Softmax(1)).cuda() for _ in range(4)]
optimizers = [torch.optim.Adam(model.parameters()) for model in models]
streams, main = [torch.cuda.Stream() for _ in models], torch.cuda.current_stream()
torch.cuda.synchronize()
right = 0
for _ in range(8):
    batch = torch.rand(256, 128, device="cuda").mul_(2)  # first: noinput
    answers = []
    for model, optimizer, stream in zip(models, optimizers, streams, strict=True):
        if VARIANT != "noinput":
            stream.wait_stream(main)
        with torch.cuda.stream(stream):
            answer = model(batch)  # then: noinput  # first: nojoin
            optimizer.zero_grad()
            answer[:, 0].log().mean().neg().backward()
            optimizer.step()
            answers.append(answer.detach())
        batch.record_stream(stream)
    for stream, answer in zip(streams, answers, strict=True):
        if VARIANT != "nojoin":
            main.wait_stream(stream)
        answer.record_stream(main)
    mean = sum(answers) / 4  # then: nojoin
    right += abs(mean.sum().item() - 256) < 1e-2
torch.cuda.synchronize()
print("right:", right, "of 8")
