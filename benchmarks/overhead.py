"""What `Learner` costs: `python benchmarks/overhead.py [rounds]`

A tiny MLP (16 → 32 → 2), batches of 32 that are ready in a list, SGD, one thread. Variants and the loop by hand take
turns in one process. First the time of a step, in passes of 500; then that of an epoch, of 20 batches for training and
5 for validation, or of 2 and 1 from different loaders. Then a pass over 20,000 samples of 16 numbers and a label,
shuffled, in batches of 64, without training: torch's loader reads a `TensorDataset` sample by sample; in a fit, the
same loader's rows are taken at once, with the same order and the same random numbers. Last, two hooks that record: a
step of an MLP of 331,530 parameters, with AdamW, whose batches `Fingerprint` records in memory; and one of a narrow and
a wide MLP (64 → width → width → 10), in batches of 64, whose losses `TrackSamples` keeps by sample.
"""
from collections import deque

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import plain
from plain import one_pass, parts, table
from trainer_nb.all import Fingerprint, Hook, Learner, TensorLoader, TrackSamples, accuracy
from trainer_nb.data import Pass

torch.set_num_threads(1)
torch.manual_seed(0)
ready = plain.batches(500)
train, valid = ready[:20], ready[20:25]


class NoOp(Hook):
    "Listens to what a busy hook listens to, and does nothing"
    def before_step(self, learn): pass
    def after_loss(self, learn): pass
    def after_backward(self, learn): pass
    def after_step(self, learn): pass


def ours(train, valid=None, n_epochs=1, **kwargs):
    model, opt = parts()
    learn = Learner(model, train, valid, loss_fn=F.cross_entropy, optim=opt, **{'display': False, **kwargs})
    return plain.quiet(lambda: learn.fit(n_epochs))

def by_hand(train):
    model, opt = parts()
    return lambda: one_pass(train, model, opt)

def with_validation(train, valid, n_epochs, with_accuracy=False):
    "The loop that one would write, which tells the losses of an epoch at its end"
    model, opt = parts()
    def fit():
        for epoch in range(n_epochs):
            model.train()
            total, n = torch.zeros(()), 0
            for xb, yb in train:
                loss = F.cross_entropy(model(xb), yb)
                loss.backward()
                opt.step()
                opt.zero_grad()
                total += loss.detach()*len(xb)
                n += len(xb)
            model.eval()
            valid_total, right, n_valid = torch.zeros(()), torch.zeros(()), 0
            with torch.no_grad():
                for xb, yb in valid:
                    pred = model(xb)
                    valid_total += F.cross_entropy(pred, yb)*len(xb)
                    if with_accuracy: right += (pred.argmax(1) == yb).sum()
                    n_valid += len(xb)
            print(epoch, total.item()/n, valid_total.item()/n_valid, right.item()/n_valid)
    return plain.quiet(fit)


def recorded(*hooks):
    torch.manual_seed(0)
    model = nn.Sequential(*[o for _ in range(20) for o in (nn.Linear(128, 128), nn.ReLU())], nn.Linear(128, 10))
    data = [(torch.randn(32, 128), torch.randint(10, (32,)))]*30
    learn = Learner(model, data, loss_fn=F.cross_entropy, display=False, hooks=hooks)
    return lambda: learn.fit(1)

def tracked(width, *hooks):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10))
    data = torch.randn(6400, 64), torch.randint(10, (6400,))
    learn = Learner(model, data, loss_fn=F.cross_entropy, display=False, hooks=hooks)
    return lambda: learn.fit(1)


if __name__ == '__main__':
    rounds = plain.argument(12)
    plain.heading(f'{rounds} rounds')
    steps = {'by hand': by_hand(ready), 'bare': ours(ready), 'accuracy': ours(ready, metrics=[accuracy]),
             'five hooks that do nothing': ours(ready, hooks=[NoOp() for _ in range(5)]),
             'accuracy, default display': ours(ready, metrics=[accuracy], display=True)}
    table(plain.in_turn(steps, 2*rounds), lambda _: 'by hand', 'a step', 'µs', 1e6/500)
    epochs = {'by hand': with_validation(train, valid, 50), 'bare': ours(train, valid, 50),
              'by hand, accuracy': with_validation(train, valid, 50, True),
              'accuracy': ours(train, valid, 50, metrics=[accuracy]),
              'accuracy, default display': ours(train, valid, 50, metrics=[accuracy], display=True)}
    print()
    table(plain.in_turn(epochs, rounds), lambda name: 'by hand, accuracy' if 'accuracy' in name else 'by hand',
          'an epoch', 'ms', 1e3/50)
    x, y = (torch.cat(o) for o in zip(*ready[:3]))
    loaders = {'a list': (ready[:2], ready[2:3]),
               'rows of tensors': (TensorLoader(x[:64], y[:64], bs=32), TensorLoader(x[64:], y[64:], bs=32))}
    short = {}
    for name, dls in loaders.items():
        short |= {f'{name}, by hand': with_validation(*dls, 400), name: ours(*dls, 400)}
    print()
    table(plain.in_turn(short, rounds), lambda name: f'{name.removesuffix(", by hand")}, by hand',
          'an epoch of 2 + 1 batches', 'µs', 1e6/400)
    x, y = torch.randn(20_000, 16), torch.randint(10, (20_000,))
    dl, rows = DataLoader(TensorDataset(x, y), 64, shuffle=True), TensorLoader(x, y, bs=64, shuffle=True)
    reads = {'`DataLoader`': lambda: deque(dl, 0), '`DataLoader`, in a fit': lambda: deque(Pass(dl), 0),
             '`TensorLoader`, in a fit': lambda: deque(Pass(rows), 0)}
    print()
    table(plain.in_turn(reads, rounds), lambda _: '`DataLoader`', 'to read a batch', 'µs', 1e6/len(dl))
    prints = {'without': recorded(), '`Fingerprint(every=10)`': recorded(Fingerprint(every=10)),
              '`Fingerprint()`': recorded(Fingerprint())}
    print()
    table(plain.in_turn(prints, max(rounds//4, 2)), lambda _: 'without', 'a recorded step', 'ms', 1e3/30)
    tracks = {f'{width} wide{", `TrackSamples`"*len(hooks)}': tracked(width, *hooks)
              for width in (64, 800) for hooks in ((), (TrackSamples(),))}
    print()
    table(plain.in_turn(tracks, 2*rounds), lambda name: name.partition(',')[0], 'a tracked step', 'µs', 1e6/100)
