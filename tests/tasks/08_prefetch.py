import xlogmem

xlogmem.enable("torch")
import torch
from torch.utils.data import DataLoader, TensorDataset

copies = torch.cuda.Stream()
results = []
batch = None
for following, in DataLoader(TensorDataset(torch.ones(64, 1000)), batch_size=16, pin_memory=True):
    if batch is not None:
        with xlogmem.use(None, read=batch):             # after its upload, on the device
            results.append(batch.clone())               # the model
    with torch.cuda.stream(copies):
        batch = following.to("cuda", non_blocking=True)
