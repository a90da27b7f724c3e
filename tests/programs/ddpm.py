"Points out of noise, with an average of the weights (Ho et al. 2020, arXiv 2006.11239)"
from copy import deepcopy

import torch, torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from trainer_nb.all import EMA, Learner

N_EPOCHS, T = 2, 20

class Denoiser(nn.Module):
    def __init__(self):
        super().__init__()
        self.time = nn.Embedding(T, 8)
        self.body = nn.Sequential(nn.Linear(10, 16), nn.SiLU(), nn.Linear(16, 2))

    def forward(self, x, t): return self.body(torch.cat([x, self.time(t)], 1))

class Diffusion(nn.Module):
    "The noise that is added, and the one that is found"
    def __init__(self):
        super().__init__()
        self.net = Denoiser()
        self.register_buffer('kept', torch.cumprod(1 - torch.linspace(1e-3, .2, T), 0))

    def forward(self, x):
        t, noise = torch.randint_like(x[:, 0], T).long(), torch.randn_like(x)
        kept = self.kept[t][:, None]
        return F.mse_loss(self.net(kept.sqrt()*x + (1 - kept).sqrt()*noise, t), noise)

def points(n, seed):
    return TensorDataset(torch.randn(n, 2, generator=torch.Generator().manual_seed(seed))*.1 + 1)

def loaders():
    return DataLoader(points(48, 1), batch_size=8, shuffle=True), DataLoader(points(24, 2), batch_size=8)

def adam(params): return torch.optim.Adam(params, lr=1e-2)

# The loop by hand

def plain():
    torch.manual_seed(0)
    model = Diffusion()
    ema = deepcopy(model)
    train_dl, valid_dl = loaders()
    opt = adam(model.parameters())
    losses, valid_losses = [], []
    for epoch in range(N_EPOCHS):
        for x, in train_dl:
            loss = model(x)
            opt.zero_grad()
            loss.backward()
            opt.step()
            with torch.no_grad():
                for p, q in zip(ema.parameters(), model.parameters()): p.lerp_(q, 1 - .9)
            losses.append(loss.item())
        with torch.no_grad():
            valid_losses.append(sum(ema(x).item() for x, in valid_dl)/len(valid_dl))
    return [model, ema], {'train_loss': losses, 'valid_loss': valid_losses}

# With a Learner

def step(batch, learn): return {'loss': learn.model(batch[0])}

def learner(**kwargs):
    torch.manual_seed(0)
    ema = EMA(.9, warmup=False, buffers='copy')
    return Learner(Diffusion(), *loaders(), train_step=step, optim=adam, hooks=[ema], **kwargs)

def result(learn): return learn.model, *([learn.ema.model] if learn.ema.model is not None else [])
