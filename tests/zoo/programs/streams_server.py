"""Three threads answer requests on streams of their own; the main stream adds the answers up.

Right: the main stream waits for each answer's event, and record_stream keeps the answer while it is read.
nowait: it does not wait.  norecord: answers are freed while they are read.
"""
import queue
import sys
import threading

import torch
from torch import nn

VARIANT = sys.argv[1] if len(sys.argv) > 1 else "right"
REQUESTS = 24

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 64)).cuda().eval()
torch.cuda.synchronize()
requests, answers = queue.Queue(), queue.Queue()


def serve():
    stream = torch.cuda.Stream()
    with torch.inference_mode(), torch.cuda.stream(stream):
        while (data := requests.get()) is not None:
            answer = model(data.to("cuda", non_blocking=True)).softmax(1)  # first: nowait
            ready = torch.cuda.Event()
            ready.record()
            answers.put((answer, ready))
            del answer


threads = [threading.Thread(target=serve) for _ in range(3)]
for thread in threads:
    thread.start()
for _ in range(REQUESTS):
    requests.put(torch.rand(64, 256).pin_memory())
total, main = torch.zeros(64, device="cuda"), torch.cuda.current_stream()
for _ in range(REQUESTS):
    answer, ready = answers.get()
    if VARIANT != "nowait":
        main.wait_event(ready)
    if VARIANT != "norecord":
        answer.record_stream(main)
    total += answer[0] + answer[1]  # then: nowait  # first: norecord
    del answer  # then: norecord
for _ in threads:
    requests.put(None)
for thread in threads:
    thread.join()
torch.cuda.synchronize()
print("probabilities:", round(total.sum().item(), 2))
