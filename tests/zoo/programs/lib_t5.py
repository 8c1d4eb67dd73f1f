"""A T5 of transformers: encoder, decoder, relative positions; trained, and then it translates by beams.

Right: one stream.
"""
import os

import torch
from transformers import T5Config, T5ForConditionalGeneration

DEVICE = os.environ.get("ZOO_DEVICE", "cuda")

torch.manual_seed(0)
config = T5Config(vocab_size=300, d_model=64, d_kv=16, d_ff=128, num_layers=2, num_heads=4, decoder_start_token_id=0)
model = T5ForConditionalGeneration(config).to(DEVICE)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
words = torch.arange(1, 49, device=DEVICE).repeat(4, 1)
mask = torch.ones_like(words)
losses = []
for _ in range(6):
    loss = model(input_ids=words, attention_mask=mask, labels=words[:, :20].contiguous()).loss
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
model.eval()
written = model.generate(words, attention_mask=mask, num_beams=2, max_new_tokens=10, min_new_tokens=10)
print("finite:", all(loss == loss for loss in losses), "written:", tuple(written.shape))
