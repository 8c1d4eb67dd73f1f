"""peft's LoRA on a small Llama: only the added matrices are trained; afterwards they are merged into the weights.

Right: one stream; merged and unmerged models agree.
"""
import os

import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM

DEVICE = os.environ.get("ZOO_DEVICE", "cuda")

torch.manual_seed(0)
config = LlamaConfig(vocab_size=256, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
                     num_key_value_heads=4, max_position_embeddings=128)
lora = LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
model = get_peft_model(LlamaForCausalLM(config), lora).to(DEVICE)
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
tokens = torch.arange(64, device=DEVICE).expand(4, -1)
losses = []
for _ in range(8):
    loss = model(input_ids=tokens, labels=tokens).loss
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
model.eval()
with torch.no_grad():
    before = model(input_ids=tokens).logits
    after = model.merge_and_unload()(input_ids=tokens).logits
print("the loss fell:", losses[-1] < losses[0], "merged:", torch.allclose(before, after, atol=1e-3))
