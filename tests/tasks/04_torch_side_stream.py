import xlogmem

xlogmem.enable("torch")
import torch

host = torch.ones(1 << 16).pin_memory()
side = torch.cuda.Stream()
x = torch.empty(1 << 16, device="cuda")
with torch.cuda.stream(side), xlogmem.use(None, write=x):
    x.copy_(host, non_blocking=True)
y = x.clone()                                           # on the current stream, after the upload
