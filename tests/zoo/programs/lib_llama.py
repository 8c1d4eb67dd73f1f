"""A Llama of transformers with grouped heads and gradient checkpointing: trained, then it generates in three ways.

Right: one stream.
"""
import os

import torch
from transformers import LlamaConfig, LlamaForCausalLM, get_cosine_schedule_with_warmup

DEVICE = os.environ.get("ZOO_DEVICE", "cuda")

torch.manual_seed(0)
config = LlamaConfig(vocab_size=512, hidden_size=128, intermediate_size=256, num_hidden_layers=3, num_attention_heads=4,
                     num_key_value_heads=2, max_position_embeddings=256)
model = LlamaForCausalLM(config).to(DEVICE)
model.gradient_checkpointing_enable()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
schedule = get_cosine_schedule_with_warmup(optimizer, 1, 20)
tokens = torch.arange(96, device=DEVICE).expand(4, -1)
losses = []
for _ in range(6):
    loss = model(input_ids=tokens, labels=tokens, use_cache=False).loss
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    schedule.step()
    losses.append(loss.item())
model.eval()
model.gradient_checkpointing_disable()
prompt = torch.arange(8, device=DEVICE).expand(2, -1)
ways = ({"do_sample": True, "top_p": 0.9}, {"num_beams": 3}, {"do_sample": False})
lengths = [model.generate(prompt, max_new_tokens=12, min_new_tokens=12, pad_token_id=0, **way).shape[1] for way in ways]
print("the loss fell:", losses[-1] < losses[0], "lengths:", lengths)
