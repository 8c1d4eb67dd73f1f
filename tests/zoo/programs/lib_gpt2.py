"""A GPT-2 of transformers with random weights: trained on lengths that change, then it generates with a cache.

Right: one stream.
"""
import os
import time

import torch
from transformers import GPT2Config, GPT2LMHeadModel

DEVICE, STEPS = os.environ.get("ZOO_DEVICE", "cuda"), int(os.environ.get("ZOO_STEPS", 9))
# Its steps take 20 ms and more where time is measured.
WIDTH, LAYERS, BATCH, LENGTH = (768, 12, 8, 512) if "ZOO_STEPS" in os.environ else (128, 3, 4, 64)

torch.manual_seed(0)
config = GPT2Config(vocab_size=512, n_positions=1024, n_embd=WIDTH, n_layer=LAYERS, n_head=4)
model = GPT2LMHeadModel(config).to(DEVICE)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
losses = []
for step in range(STEPS):
    if step == STEPS // 3:
        losses[-1].item()
        begin = time.perf_counter()
    tokens = torch.arange(LENGTH + 8 * (step % 5), device=DEVICE).expand(BATCH, -1) % 512
    with torch.autocast(DEVICE, torch.bfloat16):
        loss = model(input_ids=tokens, labels=tokens, use_cache=False).loss
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.detach())
last = losses[-1].item()
print(f"step_ms: {(time.perf_counter() - begin) / (STEPS - STEPS // 3) * 1e3:.3f}")
model.eval()
prompt = torch.arange(8, device=DEVICE).expand(2, -1)
written = model.generate(prompt, max_new_tokens=16, do_sample=True, top_k=20, pad_token_id=0)
print("the loss fell:", last < losses[0].item(), "written:", tuple(written.shape))
