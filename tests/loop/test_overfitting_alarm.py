"The plot's sentence about overfitting, on real fits: silent at each epoch of 100 healthy ones, heard in most overfits"
from collections import Counter

import pytest, torch, torch.nn.functional as F
from torch import nn

from trainer_nb.draw.plot import best_epoch
from trainer_nb.all import EMA, LambdaHook, Learner, OneCycle, TensorLoader

pytestmark = pytest.mark.soak

def alarms(model, data, loss_fn, *, valid=256, lr=3e-3, hooks=(), optim=torch.optim.Adam, n_epochs=25):
    "Train on all rows but the last ones, and return the epochs after which the plot would speak of overfitting"
    train, rest = [o[:-valid] for o in data], [o[-valid:] for o in data]
    found = []
    def look(learn):
        _, said = best_epoch(learn.history.plot_data())
        found.extend(f'epoch {learn.state.epoch}: {words}' for words in said[1:])
    learn = Learner(model, TensorLoader(*train, bs=32, shuffle=True), TensorLoader(*rest, bs=256), loss_fn=loss_fn,
                    optim=lambda ps: optim(ps, lr), hooks=[*hooks, LambdaHook(after_epoch=look)],
                    display=False)
    learn.fit(n_epochs)
    return found

def mlp(*sizes, p=0.):
    layers = []
    for a, b in zip(sizes, sizes[1:]): layers += [nn.Linear(a, b), nn.ReLU(), nn.Dropout(p)]
    return nn.Sequential(*layers[:-2])

def curve(n, noise=.1):
    x = torch.rand(n, 2)*4 - 2
    return x, (torch.sin(2*x[:, :1])*x[:, 1:] + noise*torch.randn(n, 1))

def blobs(n, spread=1., flip=0.):
    y = torch.randint(4, (n,))
    x = torch.eye(4, 8)[y]*2 + spread*torch.randn(n, 8)
    return x, torch.where(torch.rand(n) < flip, torch.randint(4, (n,)), y)

HEALTHY = {     # much data for the model, or a model too small to learn rows by heart
    'flipped labels': lambda: alarms(nn.Linear(8, 4), blobs(1500, flip=.4), F.cross_entropy, lr=.01),
    'small validation set': lambda: alarms(mlp(8, 8, 4), blobs(1500), F.cross_entropy, valid=32),
    'curve without noise': lambda: alarms(mlp(2, 32, 32, 1), curve(2000, 0.), F.mse_loss, lr=.01),
    'high rate': lambda: alarms(mlp(2, 32, 1), curve(2000), F.mse_loss, lr=.2, optim=torch.optim.SGD),
    'dropout': lambda: alarms(mlp(8, 64, 4, p=.5), blobs(800, spread=1.5), F.cross_entropy, lr=1e-3),
    'one cycle': lambda: alarms(mlp(8, 16, 4), blobs(1500), F.cross_entropy, hooks=[OneCycle(.02)]),
    'average': lambda: alarms(mlp(2, 32, 1), curve(2000), F.mse_loss, hooks=[EMA(.98)], lr=.01),
}

OVERFIT = {     # little data, noisy, for a big model
    'curve': lambda: alarms(mlp(2, 256, 256, 1), curve(256 + 24, .5), F.mse_loss, n_epochs=80),
    'flipped labels': lambda: alarms(mlp(8, 256, 256, 4), blobs(256 + 100, flip=.4), F.cross_entropy),
}

def found(kinds, n):
    "The alarms of `n` fits: each kind in turn, each time with another seed"
    res = []
    for i in range(n):
        torch.manual_seed(i)
        name = [*kinds][i % len(kinds)]
        res.append((name, i, kinds[name]()))
    return res

def test_healthy_fits_raise_no_false_alarm():
    assert not [o for o in found(HEALTHY, 100) if o[2]]

def test_overfits_are_found():
    silent = Counter(name for name, _, o in found(OVERFIT, 30) if not o)
    assert silent.total() <= 3, silent
