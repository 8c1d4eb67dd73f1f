"""A GRU in both directions over packed sequences of different lengths, with dropout between its layers.

Right: one stream of the program.
"""
import os

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

DEVICE = os.environ.get("ZOO_DEVICE", "cuda")

torch.manual_seed(0)
model = nn.GRU(32, 64, num_layers=2, dropout=0.1, bidirectional=True, batch_first=True).to(DEVICE)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
right = 0
for lengths in ([20, 17, 9, 3], [12, 12, 1], [30], [8, 7, 6, 5, 4]):
    packed = pack_padded_sequence(torch.rand(len(lengths), max(lengths), 32, device=DEVICE), lengths, batch_first=True)
    output, seen = pad_packed_sequence(model(packed)[0], batch_first=True)
    optimizer.zero_grad()
    output.square().mean().backward()
    optimizer.step()
    right += seen.tolist() == lengths and output.shape == (len(lengths), max(lengths), 128)
print("batches:", right, "of 4")
