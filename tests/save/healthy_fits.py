"Fits in which nothing spikes: warm-up, restarts of schedules, GANs, small batches, losses below 0"

import torch, torch.nn.functional as F
from torch import nn

from trainer_nb.all import GradAccum, GradClip, Learner, LRScheduler, OneCycle, WarmupCosine

def _points(g, n=512, d=8, classes=4):
    x = torch.randn(n, d, generator=g)
    y = (x @ torch.randn(d, classes, generator=g) + .5*torch.randn(n, classes, generator=g)).argmax(1)
    return x, y

def _mlp(d=8, out=4, norm=False):
    layers = [nn.Linear(d, 32), *([nn.BatchNorm1d(32)] if norm else []), nn.ReLU(), nn.Dropout(.1), nn.Linear(32, out)]
    return nn.Sequential(*layers)

class _Rnn(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb, self.rnn, self.out = nn.Embedding(20, 16), nn.GRU(16, 32, batch_first=True), nn.Linear(32, 20)
    def forward(self, x): return self.out(self.rnn(self.emb(x))[0]).transpose(1, 2)

def classes(g, hook, **kwargs):
    return Learner(_mlp(), _points(g), loss_fn=F.cross_entropy, hooks=hook, **{'lr': 3e-3, 'bs': 16, **kwargs})

def tiny_batches(g, hook): return classes(g, hook, bs=1)

def few_batches(g, hook): return classes(g, hook, bs=128, lr=.01)

def momentum(params, lr): return torch.optim.SGD(params, lr, momentum=.9)

def sgd(g, hook): return classes(g, [*hook, GradClip(1.)], optim=momentum, lr=.05)

def accumulated(g, hook): return classes(g, [*hook, GradAccum(4)], bs=4)

def one_cycle(g, hook): return classes(g, [*hook, OneCycle(.03)])

def warm_up(g, hook): return classes(g, [*hook, WarmupCosine()], lr=.01)

def restarts(g, hook):
    sched = LRScheduler(lambda opt: torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(opt, 50))
    return classes(g, [*hook, sched], optim=momentum, lr=.2)

def regression(g, hook):
    x, _ = _points(g)
    y = x.square().sum(1, keepdim=True)
    return Learner(_mlp(out=1, norm=True), (x, y), loss_fn=F.mse_loss, lr=1e-2, bs=8, hooks=hook)

def language(g, hook):
    x = (torch.randint(20, (512, 1), generator=g) + torch.arange(17)*torch.randint(1, 3, (512, 1), generator=g)) % 20
    return Learner(_Rnn(), (x[:, :-1], x[:, 1:]), loss_fn=F.cross_entropy, lr=3e-3, bs=8, hooks=hook)

def likelihood(g, hook):        # its loss falls below 0
    x, _ = _points(g)
    def loss(pred, targ):
        mean, logvar = pred.chunk(2, 1)
        return ((targ - mean)**2/logvar.exp() + logvar).mean()
    y = x[:, :1] + .1*torch.randn(512, 1, generator=g)
    return Learner(_mlp(out=2), (x, y), loss_fn=loss, lr=3e-3, bs=16, hooks=hook)

def gan(g, hook):
    real = torch.randn(512, 2, generator=g)*.3 + 1
    model = nn.ModuleDict({'g': nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 2)),
                           'd': nn.Sequential(nn.Linear(2, 32), nn.LeakyReLU(.2), nn.Linear(32, 1))})
    def step(batch, learn):
        d, fake = learn.model['d'], learn.model['g'](torch.randn(len(batch[0]), 4))
        yield 'd', F.softplus(-d(batch[0])).mean() + F.softplus(d(fake.detach())).mean()
        yield 'g', F.softplus(-d(fake)).mean()
    optim = {k: torch.optim.Adam(model[k].parameters(), 1e-3, betas=(.5, .99)) for k in 'dg'}
    return Learner(model, (real,), train_step=step, optim=optim, bs=16, hooks=hook)

KINDS = [classes, tiny_batches, few_batches, sgd, accumulated, one_cycle, warm_up, restarts, regression, language,
         likelihood, gan]

def fit(i, hook):
    "Run the fit of number `i`; return its learner"
    torch.manual_seed(i)
    make, g = KINDS[i % len(KINDS)], torch.Generator().manual_seed(i)
    learn = make(g, [hook])
    learn.remove_hook('Display')
    learn.fit(max_steps=120 if make is accumulated else 600)
    return learn
