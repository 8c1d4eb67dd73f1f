"""torch_geometric's graph attention on one large graph: softmax over the edges of each node, dropout, a mask.

Right: one stream.
"""
import os

import torch
from torch_geometric.nn import GATv2Conv
from torch_geometric.utils import add_self_loops, dropout_edge, to_undirected

DEVICE = os.environ.get("ZOO_DEVICE", "cuda")

torch.manual_seed(0)
nodes = 2000
kinds = torch.arange(nodes, device=DEVICE) % 4
features = torch.nn.functional.one_hot(kinds, 16) + torch.rand(nodes, 16, device=DEVICE)
edges, _ = add_self_loops(to_undirected(torch.randint(0, nodes, (2, 8000), device=DEVICE)))
first, second = GATv2Conv(16, 8, heads=4).to(DEVICE), GATv2Conv(32, 4, heads=1).to(DEVICE)
optimizer = torch.optim.Adam([*first.parameters(), *second.parameters()], lr=0.01)
train = torch.rand(nodes, device=DEVICE) < 0.5
losses = []
for _ in range(12):
    kept, _ = dropout_edge(edges, p=0.1)
    answers = second(first(features, kept).relu(), kept)
    loss = torch.nn.functional.cross_entropy(answers[train], kinds[train])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
print("the loss fell:", losses[-1] < losses[0])
