"Embeddings with an angular margin: the loss has parameters of its own (Deng et al. 2018, ArcFace)"
import math

import torch, torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from trainer_nb.all import Learner

N_EPOCHS = 2

class ArcFace(nn.Module):
    "Cross entropy of cosines to a learned direction for each class, the right one with a margin"
    def __init__(self, n_in=6, n_classes=4, margin=.3, scale=8.):
        super().__init__()
        self.weight = nn.Parameter(nn.init.xavier_normal_(torch.empty(n_classes, n_in)))
        self.margin, self.scale = margin, scale

    def forward(self, embeddings, labels):
        cosine = F.linear(F.normalize(embeddings), F.normalize(self.weight)).clamp(-1 + 1e-6, 1 - 1e-6)
        with_margin = torch.cos(cosine.acos() + self.margin)
        hard = torch.where(cosine > math.cos(math.pi - self.margin), with_margin, cosine)
        is_right = F.one_hot(labels, cosine.size(1)).bool()
        return F.cross_entropy(self.scale*torch.where(is_right, hard, cosine), labels)

def embedder():
    return nn.Sequential(nn.Linear(5, 16), nn.BatchNorm1d(16), nn.PReLU(), nn.Dropout(.2), nn.Linear(16, 6))

def faces(n, seed):
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(4, (n,), generator=g)
    return TensorDataset(torch.randn(n, 5, generator=g) + y[:, None], y)

def loaders():
    return DataLoader(faces(48, 1), batch_size=8, shuffle=True), DataLoader(faces(20, 2), batch_size=8)

# The loop by hand

def plain():
    torch.manual_seed(0)
    model, loss_fn = embedder(), ArcFace()
    train_dl, valid_dl = loaders()
    params = [*model.parameters(), *loss_fn.parameters()]
    opt = torch.optim.SGD(params, lr=.05, momentum=.9, weight_decay=5e-4)
    losses, valid_losses = [], []
    for epoch in range(N_EPOCHS):
        model.train()
        loss_fn.train()
        for x, y in train_dl:
            opt.zero_grad()
            loss = loss_fn(model(x), y)
            loss.backward()
            opt.step()
            losses.append(loss.item())
        model.eval()
        loss_fn.eval()
        total = 0.
        with torch.no_grad():
            for x, y in valid_dl: total += len(x)*loss_fn(model(x), y).item()
        valid_losses.append(total/len(valid_dl.dataset))
    return [model, loss_fn], {'train_loss': losses, 'valid_loss': valid_losses}

# With a Learner

def sgd(params): return torch.optim.SGD(params, lr=.05, momentum=.9, weight_decay=5e-4)

def learner(**kwargs):
    torch.manual_seed(0)
    return Learner(embedder(), *loaders(), loss_fn=ArcFace(), optim=sgd, **kwargs)

def result(learn): return learn.model, learn.loss_fn
