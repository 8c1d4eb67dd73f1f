"""PyTorch: the result of a replayed CUDA graph is read on another stream, which does not wait for the replay.

    xlogmem check --gpu -- python examples/races/gpu/torch_graph.py [--fixed]
"""
import sys

import torch

FIXED = "--fixed" in sys.argv

values = torch.zeros(1 << 16, device="cuda")
graph, main = torch.cuda.CUDAGraph(), torch.cuda.current_stream()
warm_up = torch.cuda.Stream()
warm_up.wait_stream(main)
with torch.cuda.stream(warm_up):
    for _ in range(3):
        values.add_(1)
main.wait_stream(warm_up)
with torch.cuda.graph(graph):
    result = values * 2 + 1
reader = torch.cuda.Stream()
graph.replay()
if FIXED:
    reader.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(reader):
    result.clone()
torch.cuda.synchronize()
