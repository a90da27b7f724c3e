"The plot's sentence about overfitting, on real fits: silent at each epoch of 100 healthy ones, heard in most overfits"
from collections import Counter

import pytest, torch, torch.nn.functional as F
from torch import nn

from trainer_nb.draw.plot import best_epoch
from trainer_nb.all import EMA, LambdaHook, Learner, OneCycle, TensorLoader

pytestmark = pytest.mark.soak

def alarms(model, data, loss_fn, *, valid=256, lr=3e-3, hooks=(), optim=torch.optim.Adam, wd=0., n_epochs=25):
    "Train on all rows but the last ones, and return the epochs after which the plot would speak of overfitting"
    train, rest = [o[:-valid] for o in data], [o[-valid:] for o in data]
    found = []
    def look(learn):
        _, said = best_epoch(learn.history.plot_data())
        found.extend(f'epoch {learn.state.epoch}: {words}' for words in said[1:])
    learn = Learner(model, TensorLoader(*train, bs=32, shuffle=True), TensorLoader(*rest, bs=256), loss_fn=loss_fn,
                    optim=lambda ps: optim(ps, lr, weight_decay=wd), hooks=[*hooks, LambdaHook(after_epoch=look)],
                    display=False)
    learn.fit(n_epochs)
    return found

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
    def __init__(self, n, h):
        super().__init__()
        self.emb, self.rnn, self.out = nn.Embedding(n, h), nn.GRU(h, h, batch_first=True), nn.Linear(h, n)
    def forward(self, x): return self.out(self.rnn(self.emb(x))[0])

def per_token(pred, targ): return F.cross_entropy(pred.flatten(0, 1), targ.flatten())
def itself(x): return x, x

HEALTHY = {     # much data for the model, or a model too small to learn rows by heart
    'line': lambda: alarms(nn.Linear(8, 4), blobs(1500), F.cross_entropy, lr=.01),
    'flipped labels': lambda: alarms(nn.Linear(8, 4), blobs(1500, flip=.4), F.cross_entropy, lr=.01),
    'small validation set': lambda: alarms(mlp(8, 8, 4), blobs(1500), F.cross_entropy, valid=32),
    'curve': lambda: alarms(mlp(2, 32, 1), curve(2000), F.mse_loss),
    'curve without noise': lambda: alarms(mlp(2, 32, 32, 1), curve(2000, 0.), F.mse_loss, lr=.01),
    'separable': lambda: alarms(mlp(8, 16, 4), blobs(1500, spread=.2), F.cross_entropy, lr=.01),
    'high rate': lambda: alarms(mlp(2, 32, 1, act=nn.Tanh), curve(2000), F.mse_loss, lr=.2, optim=torch.optim.SGD),
    'dropout and decay': lambda: alarms(mlp(8, 64, 4, p=.5), blobs(800, spread=1.5), F.cross_entropy, wd=.01,
                                        optim=torch.optim.AdamW, lr=1e-3),
    'pictures': lambda: alarms(cnn(4), pictures(1200, 1.), F.cross_entropy),
    'one cycle': lambda: alarms(cnn(4), pictures(1200, 1.), F.cross_entropy, hooks=[OneCycle(.02)],
                                optim=torch.optim.SGD),
    'average': lambda: alarms(mlp(2, 32, 1), curve(2000), F.mse_loss, hooks=[EMA(.98)], lr=.01),
    'autoencoder': lambda: alarms(mlp(8, 3, 8), itself(blobs(1500)[0]), F.mse_loss, lr=.01),
    'language': lambda: alarms(Recurrent(12, 12), texts(800), per_token, lr=.005),
    'huber': lambda: alarms(mlp(2, 16, 1), curve(2000, 1.), F.smooth_l1_loss, lr=.01),
}

OVERFIT = {     # little data, noisy, for a big model
    'curve': lambda: alarms(mlp(2, 256, 256, 1), curve(256 + 24, .5), F.mse_loss, n_epochs=80),
    'blobs': lambda: alarms(mlp(8, 256, 256, 4), blobs(256 + 48, spread=1.5), F.cross_entropy),
    'flipped labels': lambda: alarms(mlp(8, 256, 256, 4), blobs(256 + 100, flip=.4), F.cross_entropy),
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

def test_healthy_fits_raise_no_false_alarm():
    assert not [o for o in found(HEALTHY, 100) if o[2]]

def test_overfits_are_found():
    silent = Counter(name for name, _, o in found(OVERFIT, 30) if not o)
    assert silent.total() <= 3, silent
