"Learn to learn: an inner step of each task, and gradients through it (Finn et al. 2017)"
import torch, torch.nn.functional as F
from torch import nn
from torch.func import functional_call

from trainer_nb.all import Learner

N_EPOCHS, N_BATCHES, INNER_LR = 2, 6, .05

def make_model(): return nn.Sequential(nn.Linear(1, 12), nn.Tanh(), nn.Linear(12, 1))

def sine_tasks(n):
    "Inputs and values of `n` sine waves, to adapt with and to be tested on: (n, 10, 1) each"
    height, phase = torch.rand(n, 1, 1)*4 + .1, torch.rand(n, 1, 1)*3.14
    x = torch.rand(n, 20, 1)*10 - 5
    y = height*torch.sin(x + phase)
    return x[:, :10], y[:, :10], x[:, 10:], y[:, 10:]

class Tasks:
    def __len__(self): return N_BATCHES
    def __iter__(self): return (sine_tasks(4) for _ in range(N_BATCHES))

def adapted_loss(model, x, y, test_x, test_y):
    "Of a task, after a step on it"
    params = dict(model.named_parameters())
    loss = F.mse_loss(model(x), y)
    grads = torch.autograd.grad(loss, tuple(params.values()), create_graph=True)
    fast = {k: p - INNER_LR*g for (k, p), g in zip(params.items(), grads)}
    return F.mse_loss(functional_call(model, fast, test_x), test_y)

def adam(params): return torch.optim.Adam(params, lr=1e-2)

# The loop by hand

def plain():
    torch.manual_seed(0)
    model = make_model()
    opt = adam(model.parameters())
    losses = []
    for i in range(N_EPOCHS*N_BATCHES):
        tasks = sine_tasks(4)
        loss = torch.stack([adapted_loss(model, *task) for task in zip(*tasks)]).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        losses.append(loss.item())
    return model, {'train_loss': losses}

# With a Learner

def step(batch, learn):
    return {'loss': torch.stack([adapted_loss(learn.model, *task) for task in zip(*batch)]).mean()}

def learner(**kwargs):
    torch.manual_seed(0)
    return Learner(make_model(), Tasks(), train_step=step, optim=adam, **kwargs)
