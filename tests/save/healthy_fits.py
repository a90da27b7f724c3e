"""Fits in which nothing spikes, all different: task, size of the model, activation, optimizer, rate, schedule, batches

`fit(i, hook)` draws all of it from the number i. Tasks take turns, so 100 numbers in a row hold each of them twelve
times or more; one is adversarial.
"""
import random

import torch, torch.nn.functional as F
from torch import nn

from trainer_nb.all import GradAccum, GradClip, Learner, LRScheduler, OneCycle, WarmupCosine

N = 512     # samples

class Draws:
    "What one fit is made of"
    def __init__(self, i):
        torch.manual_seed(i)
        self.rand, self.g = random.Random(i), torch.Generator().manual_seed(i)
        self.act, self.width = self.rand.choice([nn.ReLU, nn.GELU, nn.Tanh, nn.SiLU]), self.rand.choice([16, 32, 64])

    def points(self, n=N, d=8): return torch.randn(n, d, generator=self.g)

    def mlp(self, d=8, out=4):
        layers = []
        for _ in range(self.rand.choice([1, 1, 2])):
            norm = self.rand.choice([nn.Identity, nn.LayerNorm])(self.width)
            layers += [nn.Linear(d, self.width), norm, self.act(), nn.Dropout(self.rand.choice([0., .1, .3]))]
            d = self.width
        return nn.Sequential(*layers, nn.Linear(d, out))

def classes(o):
    x = o.points()
    y = (x @ torch.randn(8, 4, generator=o.g) + .5*torch.randn(N, 4, generator=o.g)).argmax(1)
    return o.mlp(), (x, y), nn.CrossEntropyLoss(label_smoothing=o.rand.choice([0., .1]))

def regression(o):
    x = o.points()
    return o.mlp(out=1), (x, x.square().sum(1, keepdim=True)), o.rand.choice([F.mse_loss, F.l1_loss, F.smooth_l1_loss])

def images(o):
    x = torch.randn(N, 1, 8, 8, generator=o.g)
    y = x.unflatten(2, (2, 4)).mean((1, 3, 4)).argmax(1)
    model = nn.Sequential(nn.Conv2d(1, 8, 3), nn.GroupNorm(2, 8), o.act(), nn.Conv2d(8, o.width, 3), o.act(),
                          nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(o.width, 2))
    return model, (x, y), F.cross_entropy

class _Rnn(nn.Module):
    def __init__(self, kind, width):
        super().__init__()
        self.emb, self.rnn, self.out = nn.Embedding(20, 16), kind(16, width, batch_first=True), nn.Linear(width, 20)
    def forward(self, x): return self.out(self.rnn(self.emb(x))[0]).transpose(1, 2)

def language(o):
    first, step = torch.randint(20, (N, 1), generator=o.g), torch.randint(1, 3, (N, 1), generator=o.g)
    x = (first + torch.arange(17)*step) % 20
    return _Rnn(o.rand.choice([nn.GRU, nn.LSTM]), o.width), (x[:, :-1], x[:, 1:]), F.cross_entropy

class _Attention(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.emb, self.place = nn.Embedding(10, width), nn.Parameter(torch.randn(12, width)*.1)
        self.layer, self.out = nn.TransformerEncoderLayer(width, 2, 2*width, .1, batch_first=True), nn.Linear(width, 10)
    def forward(self, x): return self.out(self.layer(self.emb(x) + self.place)).transpose(1, 2)

def reversing(o):
    x = torch.randint(10, (N, 12), generator=o.g)
    return _Attention(o.width), (x, x.flip(1)), F.cross_entropy

def likelihood(o):      # its loss falls below 0
    def loss(pred, targ):
        mean, logvar = pred.chunk(2, 1)
        return ((targ - mean)**2/logvar.exp() + logvar).mean()
    x = o.points()
    return o.mlp(out=2), (x, x[:, :1] + .1*torch.randn(N, 1, generator=o.g)), loss

class _VAE(nn.Module):
    def __init__(self, o):
        super().__init__()
        self.encode, self.decode = o.mlp(8, 8), o.mlp(4, 8)
    def forward(self, x):
        mean, logvar = self.encode(x).chunk(2, 1)
        return self.decode(mean + torch.randn_like(mean)*(.5*logvar).exp()), mean, logvar

def autoencoder(o):
    def loss(pred, targ):
        y, mean, logvar = pred
        return F.mse_loss(y, targ) - .05*(1 + logvar - mean.square() - logvar.exp()).mean()
    x = o.points(d=2) @ torch.randn(2, 8, generator=o.g)
    return _VAE(o), (x, x), loss

def gan(o):
    real = torch.randn(N, 2, generator=o.g)*.3 + 1
    model = nn.ModuleDict({'g': nn.Sequential(nn.Linear(4, o.width), o.act(), nn.Linear(o.width, 2)),
                           'd': nn.Sequential(nn.Linear(2, o.width), nn.LeakyReLU(.2), nn.Linear(o.width, 1))})
    def step(batch, learn):
        d, fake = learn.model['d'], learn.model['g'](torch.randn(len(batch[0]), 4))
        yield 'd', F.softplus(-d(batch[0])).mean() + F.softplus(d(fake.detach())).mean()
        yield 'g', F.softplus(-d(fake)).mean()
    return model, (real,), step

TASKS = [classes, regression, images, language, reversing, likelihood, autoencoder, gan]

def momentum(params, lr): return torch.optim.SGD(params, lr, momentum=.9)

OPTIMS = [(torch.optim.AdamW, 3e-3), (torch.optim.Adam, 3e-3), (momentum, .01), (torch.optim.SGD, .05),
          (torch.optim.RMSprop, 1e-3)]

ADAPTIVE = torch.optim.AdamW, torch.optim.Adam, torch.optim.RMSprop

def _scheduler(cls, *args): return LRScheduler(lambda opt: cls(opt, *args))

SCHEDULES = [lambda lr: [], lambda lr: [OneCycle(2*lr)], lambda lr: [WarmupCosine()],
             lambda lr: [_scheduler(torch.optim.lr_scheduler.CosineAnnealingWarmRestarts, 50)],
             lambda lr: [_scheduler(torch.optim.lr_scheduler.StepLR, 150, .3)]]

def fit(i, hook):
    "Run the fit of number `i`; return its learner"
    o, task = Draws(i), TASKS[i % len(TASKS)]
    model, data, loss = task(o)
    optim, lr = o.rand.choice(OPTIMS)
    lr, bs = lr*o.rand.choice([.3, 1., 1.5]), o.rand.choice([1, 4, 16, 64])
    if bs == 1: lr *= .3 if optim in ADAPTIVE else .1
    options = {'loss_fn': loss, 'optim': optim, 'lr': lr}
    if task is gan:
        optim = {k: torch.optim.Adam(model[k].parameters(), 1e-3, betas=(.5, .99)) for k in 'dg'}
        options = {'train_step': loss, 'optim': optim}
    hooks = [] if task is gan else o.rand.choice(SCHEDULES)(lr)
    n = o.rand.choice([1, 1, 4]) if bs == 4 and task is not gan else 1
    hooks += [GradClip(1.)]*o.rand.choice([0, 1]) + [GradAccum(n)]*(n > 1)
    learn = Learner(model, data, bs=bs, hooks=[hook, *hooks], display=False, **options)
    learn.fit(max_steps=400//n)
    learn.about = f'{task.__name__} bs={bs} lr={lr:.2g} {getattr(optim, "__name__", "")} {hooks}'
    return learn
