"""Build the PyTorch extension, and use it on a side stream while the current stream goes on to write its input.

Wrong where the extension does not declare what it reads and writes, right where it does.  Needs a GPU and a compiler.
"""
from pathlib import Path

import xlogmem

xlogmem.enable("torch")
import torch
from torch.utils.cpp_extension import load

ROWS, COLUMNS, ROUNDS = 4096, 16384, 20
extension = load("copy_torch", [str(Path(__file__).with_name("copy_torch.cpp"))],
                 extra_include_paths=[xlogmem.get_include()], extra_cflags=["-std=c++20"], with_cuda=True)
runtime = xlogmem.get_runtime(torch.cuda.current_device())
side = torch.cuda.Stream()


def wrong_results(declared: bool) -> int:
    x = torch.zeros(ROWS, COLUMNS, device="cuda")
    outs = [torch.empty_like(x) for _ in range(ROUNDS)]
    torch.cuda.synchronize()
    for value, out in enumerate(outs, 1):
        with xlogmem.use(None, write=x):                # on the current stream
            x.fill_(value)
        extension.cumulate(runtime, x, out, side.stream_id, declared)
    torch.cuda.synchronize()
    return sum(bool((out[:, -1] != value * COLUMNS).any()) for value, out in enumerate(outs, 1))


for declared in (False, True):
    print("declared:" if declared else "not declared:", "wrong" if wrong_results(declared) else "right")
