"Small graphs, in batches that are one graph, as torch_geometric's (GIN: Xu et al. 2018)"
import torch, torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader

from programs import loop, mean, said
from trainer_nb.all import Learner, accuracy

N_EPOCHS = 2

class Batch:
    "Nodes of all graphs, edges between them, and the graph that each node is of"
    def __init__(self, samples):
        xs, edges, ys = zip(*samples)
        starts = torch.tensor([0, *map(len, xs)]).cumsum(0)
        self.x, self.y = torch.cat(xs), torch.stack(ys)
        self.edge_index = torch.cat([e + s for e, s in zip(edges, starts)], 1)
        self.batch = torch.repeat_interleave(torch.tensor([*map(len, xs)]))
        self.num_graphs = len(ys)

    def to(self, device):
        for k in 'x', 'y', 'edge_index', 'batch': setattr(self, k, getattr(self, k).to(device))
        return self

class GIN(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Sequential(nn.Linear(3, 12), nn.ReLU(), nn.Linear(12, 12))
        self.second, self.drop, self.out = nn.Linear(12, 12), nn.Dropout(.2), nn.Linear(12, 2)

    def forward(self, data):
        x, (source, target) = data.x, data.edge_index
        x = self.first(x + torch.zeros_like(x).index_add(0, target, x[source])).relu()
        x = self.second(x + torch.zeros_like(x).index_add(0, target, x[source])).relu()
        pooled = x.new_zeros(data.num_graphs, 12).index_add(0, data.batch, x)
        return self.out(self.drop(pooled))

def graphs(n, seed):
    g = torch.Generator().manual_seed(seed)
    def one():
        k = int(torch.randint(3, 7, (), generator=g))
        edges = torch.randint(k, (2, 2*k), generator=g)
        return torch.randn(k, 3, generator=g), edges, (edges[0] == edges[1]).any().long()
    return [one() for _ in range(n)]

def loaders():
    return (DataLoader(graphs(44, 1), 8, shuffle=True, collate_fn=Batch),
            DataLoader(graphs(20, 2), 8, collate_fn=Batch))

def adam(params): return torch.optim.Adam(params, lr=1e-2)

# The loop by hand

def plain():
    torch.manual_seed(0)
    model = GIN()
    train_dl, test_dl = loaders()
    opt = adam(model.parameters())
    def right(data): return (model(data).argmax(1) == data.y).sum().item()
    return model, said(loop(model, train_dl, opt, lambda data: F.cross_entropy(model(data), data.y),
                            after=lambda: {'valid_accuracy': mean(model, test_dl, right)}))

# With a Learner

def step(data, learn):
    pred = learn.model(data)
    return {'loss': F.cross_entropy(pred, data.y), 'pred': pred, 'targ': data.y}

def learner(**kwargs):
    torch.manual_seed(0)
    return Learner(GIN(), *loaders(), train_step=step, optim=adam, metrics=[accuracy], **kwargs)
