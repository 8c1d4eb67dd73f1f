"""A transformer's encoder with a mask for padding, trained, and then in inference by its fused path.

Right: one stream; both paths agree.
"""
import os

import torch
from torch import nn

DEVICE = os.environ.get("ZOO_DEVICE", "cuda")

torch.manual_seed(0)
layer = nn.TransformerEncoderLayer(64, nhead=4, dim_feedforward=128, dropout=0.0, batch_first=True)
model = nn.TransformerEncoder(layer, num_layers=2, enable_nested_tensor=False).to(DEVICE)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
data = torch.rand(4, 32, 64, device=DEVICE)
padding = torch.arange(32, device=DEVICE) >= torch.tensor([32, 20, 11, 5], device=DEVICE)[:, None]
for _ in range(8):
    optimizer.zero_grad()
    model(data, src_key_padding_mask=padding)[~padding].square().mean().backward()
    optimizer.step()
slow = model(data, src_key_padding_mask=padding)[~padding]
model.eval()
with torch.inference_mode():
    fast = model(data, src_key_padding_mask=padding)[~padding]
print("both paths agree:", torch.allclose(slow, fast, atol=1e-3))
