"""sentence-transformers with a small BERT of random weights: sentences of different lengths become vectors.

Right: one stream; what comes back to the host is waited for.
"""
import os
import tempfile
from pathlib import Path

import torch
from sentence_transformers import SentenceTransformer, models, util
from transformers import BertConfig, BertModel, BertTokenizerFast

DEVICE = os.environ.get("ZOO_DEVICE", "cuda")

torch.manual_seed(0)
with tempfile.TemporaryDirectory() as folder:
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{k}" for k in range(100))]
    Path(folder, "vocab.txt").write_text("\n".join(words))
    BertTokenizerFast(vocab_file=str(Path(folder, "vocab.txt"))).save_pretrained(folder)
    BertModel(BertConfig(vocab_size=len(words), hidden_size=64, num_hidden_layers=2, num_attention_heads=4,
                         intermediate_size=128)).save_pretrained(folder)
    transformer = models.Transformer(folder, max_seq_length=64)
    model = SentenceTransformer(modules=[transformer, models.Pooling(64)], device=DEVICE)
sentences = [" ".join(f"w{(k * j) % 100}" for j in range(k + 2)) for k in range(40)]
vectors = model.encode(sentences, batch_size=8, convert_to_tensor=True, normalize_embeddings=True)
hits = util.semantic_search(vectors, vectors, top_k=1)
print("vectors:", tuple(vectors.shape), "found themselves:", sum(hit[0]["score"] > 0.999 for hit in hits))
