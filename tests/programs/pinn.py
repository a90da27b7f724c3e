"u'' = -π² sin πx on [0, 1]: a residual that needs gradients, in validation too (Raissi et al. 2019)"
import math

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from trainer_nb.all import Learner

N_EPOCHS = 3

def make_model():
    return nn.Sequential(nn.Linear(1, 12), nn.Tanh(), nn.Linear(12, 12), nn.Tanh(), nn.Linear(12, 1))

def residual(model, x):
    x = x.detach().requires_grad_()
    u = model(x)
    du, = torch.autograd.grad(u.sum(), x, create_graph=True)
    ddu, = torch.autograd.grad(du.sum(), x, create_graph=True)
    return ddu + math.pi**2*torch.sin(math.pi*x)

def loss_of(model, x):
    at_ends = model(torch.tensor([[0.], [1.]]))
    return residual(model, x).square().mean() + 10*at_ends.square().mean()

def points():
    x = torch.rand(48, 1, generator=torch.Generator().manual_seed(1))
    return DataLoader(TensorDataset(x), batch_size=12, shuffle=True)

def grid(): return torch.linspace(0, 1, 20)[:, None].split(10)

def adam(params): return torch.optim.Adam(params, lr=1e-2)

# The loop by hand

def plain():
    torch.manual_seed(0)
    model, dl = make_model(), points()
    opt = adam(model.parameters())
    losses, valid_losses = [], []
    for epoch in range(N_EPOCHS):
        for x, in dl:
            opt.zero_grad()
            loss = loss_of(model, x)
            loss.backward()
            opt.step()
            losses.append(loss.item())
        valid_losses.append(sum(loss_of(model, x).item() for x in grid())/2)
    return model, {'train_loss': losses, 'valid_loss': valid_losses}

# With a Learner

@torch.enable_grad()
def step(batch, learn): return {'loss': loss_of(learn.model, batch[0])}

def learner(**kwargs):
    torch.manual_seed(0)
    return Learner(make_model(), points(), [(x,) for x in grid()], train_step=step, optim=adam, **kwargs)
