"The plot's sentence about overfitting, on real fits: silent at each epoch of healthy ones, heard in most overfits"
from collections import Counter

import pytest, torch, torch.nn.functional as F
from torch import nn

from trainer_nb.loop.reading import best_epoch, overfit_since
from trainer_nb.all import EMA, Hook, Learner, OneCycle, TensorLoader

class Alarms(Hook):
    "Note the epochs after which the plot would speak of overfitting"
    def __init__(self): self.found = []
    def after_epoch(self, learn):
        best = best_epoch(learn.history)
        if best is None: return
        if words := overfit_since(learn.history, best): self.found.append(f'epoch {learn.state.epoch}: {words}')

def alarms(model, data, loss_fn, *, valid=256, lr=3e-3, hooks=(), optim=torch.optim.Adam, wd=0., n_epochs=25):
    "Train on all rows but the last ones, and return the alarms"
    train, rest = [o[:-valid] for o in data], [o[-valid:] for o in data]
    seen = Alarms()
    learn = Learner(model, TensorLoader(*train, bs=32, shuffle=True), TensorLoader(*rest, bs=256), loss_fn=loss_fn,
                    optim=lambda ps: optim(ps, lr, weight_decay=wd), hooks=[*hooks, seen], display=False)
    learn.fit(n_epochs)
    return seen.found

def mlp(*sizes, act=nn.ReLU, p=0.):
    layers = []
    for a, b in zip(sizes, sizes[1:]): layers += [nn.Linear(a, b), act(), nn.Dropout(p)]
    return nn.Sequential(*layers[:-2])

# Data: (inputs, targets) of n rows

def curve(n, noise=.1):
    x = torch.rand(n, 2)*4 - 2
    return x, (torch.sin(2*x[:, :1])*x[:, 1:] + noise*torch.randn(n, 1))

def blobs(n, spread=1., flip=0., d=8):
    y = torch.randint(4, (n,))
    x = torch.eye(4, d)[y]*2 + spread*torch.randn(n, d)
    return x, torch.where(torch.rand(n) < flip, torch.randint(4, (n,)), y)

def pictures(n, noise=.5):
    y = torch.randint(4, (n,))
    x = noise*torch.randn(n, 1, 8, 8)
    for k, (i, j) in enumerate([(0, 0), (0, 4), (4, 0), (4, 4)]): x[y == k, :, i:i + 4, j:j + 4] += 1
    return x, y

def texts(n):
    "A Markov chain: each token depends on the one before"
    chain = torch.softmax(3*torch.randn(12, 12, generator=torch.Generator().manual_seed(1)), -1)
    x = [torch.randint(12, (n,))]
    for _ in range(8): x.append(torch.multinomial(chain[x[-1]], 1).squeeze(1))
    x = torch.stack(x, 1)
    return x[:, :-1], x[:, 1:]

# Models

def cnn(c):
    return nn.Sequential(nn.Conv2d(1, c, 3, 2, 1), nn.BatchNorm2d(c), nn.ReLU(), nn.Flatten(), nn.Linear(16*c, 4))

class Recurrent(nn.Module):
    def __init__(self, n, h=24):
        super().__init__()
        self.emb, self.rnn, self.out = nn.Embedding(n, h), nn.GRU(h, h, batch_first=True), nn.Linear(h, n)
    def forward(self, x): return self.out(self.rnn(self.emb(x))[0])

def per_token(pred, targ): return F.cross_entropy(pred.flatten(0, 1), targ.flatten())

HEALTHY = {     # much data for the model, or a model too small to learn rows by heart
    'line': lambda: alarms(nn.Linear(8, 4), blobs(1500), F.cross_entropy, lr=.01),
    'curve': lambda: alarms(mlp(2, 32, 1), curve(2000), F.mse_loss),
    'high rate': lambda: alarms(mlp(2, 32, 1, act=nn.Tanh), curve(2000), F.mse_loss, lr=.2, optim=torch.optim.SGD),
    'one cycle': lambda: alarms(cnn(4), pictures(1200, 1.), F.cross_entropy, hooks=[OneCycle(.02)],
                                optim=torch.optim.SGD),
    'average': lambda: alarms(mlp(2, 32, 1), curve(2000), F.mse_loss, hooks=[EMA(.98)], lr=.01),
    'language': lambda: alarms(Recurrent(12, 12), texts(800), per_token, lr=.005),
}

OVERFIT = {     # little data, noisy, for a big model
    'blobs': lambda: alarms(mlp(8, 256, 256, 4), blobs(256 + 48, spread=1.5), F.cross_entropy),
    'pictures': lambda: alarms(cnn(64), pictures(256 + 40, 2.), F.cross_entropy),
    'language': lambda: alarms(Recurrent(12, 96), texts(256 + 16), per_token, n_epochs=80),
}

def found(kinds, n):
    "The alarms of `n` fits: each kind in turn, each time with another seed"
    res = []
    for i in range(n):
        torch.manual_seed(i)
        name = [*kinds][i % len(kinds)]
        res.append((name, i, kinds[name]()))
    return res

@pytest.mark.soak
def test_healthy_fits_raise_no_false_alarm():
    assert not [o for o in found(HEALTHY, 60) if o[2]]

@pytest.mark.soak
def test_overfits_are_found():
    silent = Counter(name for name, _, o in found(OVERFIT, 18) if not o)
    assert sum(silent.values()) <= 2, silent
