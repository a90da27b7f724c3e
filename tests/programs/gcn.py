"Nodes of one graph, some with labels: an epoch is a step on all of it (Kipf & Welling 2016)"
import torch, torch.nn.functional as F
from torch import nn

from trainer_nb.all import Learner, accuracy

N_EPOCHS = 8

class GCN(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Linear(6, 8, bias=False), nn.Linear(8, 3, bias=False)

    def forward(self, x, adj):
        x = F.dropout(F.relu(adj @ self.conv1(x)), .3, self.training)
        return F.log_softmax(adj @ self.conv2(x), dim=1)

def graph():
    "Features, normalized adjacency, classes, and which nodes are for training and validation"
    g = torch.Generator().manual_seed(1)
    adj = ((torch.rand(30, 30, generator=g) < .1) | torch.eye(30, dtype=torch.bool)).float()
    adj = ((adj + adj.T) > 0).float()
    scale = adj.sum(1).rsqrt()
    x, order = torch.randn(30, 6, generator=g), torch.randperm(30, generator=g)
    rank = order.argsort()
    train, valid = rank < 12, (rank >= 12) & (rank < 20)
    return x, scale[:, None]*adj*scale, (adj @ x)[:, :3].argmax(1), train, valid

def adam(params): return torch.optim.Adam(params, lr=.02, weight_decay=5e-4)

def step(batch, learn):
    x, adj, y, mask = batch
    pred, targ = learn.model(x, adj)[mask], y[mask]
    return {'loss': F.nll_loss(pred, targ), 'pred': pred, 'targ': targ, 'n': mask.sum()}

def learner(**kwargs):
    torch.manual_seed(0)
    x, adj, y, train, valid = graph()
    return Learner(GCN(), [(x, adj, y, train)], [(x, adj, y, valid)], train_step=step, optim=adam,
                   metrics=[accuracy], **kwargs)
