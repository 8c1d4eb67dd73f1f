"""torch_geometric's GCN on batches of graphs, whose edges are summed by scatter and pooled by graph.

Right: one stream; batches are uploaded without waiting on the same one.
"""
import os

import torch
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GCNConv, global_mean_pool

DEVICE = os.environ.get("ZOO_DEVICE", "cuda")


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.last = GCNConv(16, 32), GCNConv(32, 32), torch.nn.Linear(32, 3)

    def forward(self, data):
        hidden = self.first(data.x, data.edge_index).relu()
        hidden = self.second(hidden, data.edge_index).relu()
        return self.last(global_mean_pool(hidden, data.batch))


torch.manual_seed(0)
graphs = [Data(x=torch.rand(40, 16) + k % 3, edge_index=torch.randint(0, 40, (2, 160)), y=torch.tensor([k % 3]))
          for k in range(64)]
model = Net().to(DEVICE)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
losses = []
for _ in range(4):
    for data in DataLoader(graphs, 16, shuffle=True, pin_memory=DEVICE == "cuda"):
        data = data.to(DEVICE, non_blocking=True)
        loss = torch.nn.functional.cross_entropy(model(data), data.y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
print("the loss fell:", sum(losses[-4:]).item() < sum(losses[:4]).item())
