"""Digits, 10 epochs, in a Jupyter kernel: `python benchmarks/digits.py [rounds]`

scikit-learn's digits (1,437 for training, 360 for validation), an MLP (64 → 64 → 10), AdamW, batches of 64,
validation with accuracy after each epoch, one thread. The raw loop is the textbook one, with a `DataLoader`;
ours is what you would type, with all defaults. They are interleaved in one kernel; a figure is the median over
the rounds of the time of a fit. The picture that stays in the notebook has a column of its own.
"""
import platform, sys
from contextlib import redirect_stdout
from functools import partial
from io import StringIO
from statistics import mean, median, quantiles
from time import perf_counter

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from display import in_a_kernel
from trainer_nb.all import Learner, accuracy, set_seed

N_EPOCHS, LR = 10, 3e-3
torch.set_num_threads(1)


def data():
    from sklearn.datasets import load_digits
    x, y = load_digits(return_X_y=True)
    x, y = torch.tensor(x, dtype=torch.float32)/16, torch.tensor(y)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    return [(x[part], y[part]) for part in (order[:1437], order[1437:])]

def make_model(): return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))

def loaders(train, valid):
    return (DataLoader(TensorDataset(*train), batch_size=64, shuffle=True),
            DataLoader(TensorDataset(*valid), batch_size=64))


class Quick:
    "Whole batches, cut out by hand"
    def __init__(self, x, y, shuffle): self.x, self.y, self.shuffle = x, y, shuffle
    def __iter__(self):
        order = torch.randperm(len(self.x)) if self.shuffle else slice(None)
        return zip(self.x[order].split(64), self.y[order].split(64))


def raw(train, valid, quick=False, **kwargs):
    "(seconds, of the last picture, accuracy)"
    start = perf_counter()
    model = make_model()
    opt = torch.optim.AdamW(model.parameters(), lr=LR, **kwargs)
    train_dl, valid_dl = (Quick(*train, True), Quick(*valid, False)) if quick else loaders(train, valid)
    for epoch in range(N_EPOCHS):
        model.train()
        for xb, yb in train_dl:
            loss = F.cross_entropy(model(xb), yb)
            loss.backward()
            opt.step()
            opt.zero_grad()
        model.eval()
        total, right, n = 0., 0, 0
        with torch.no_grad():
            for xb, yb in valid_dl:
                pred = model(xb)
                total += F.cross_entropy(pred, yb).item()*len(xb)
                right += (pred.argmax(1) == yb).sum().item()
                n += len(xb)
        print(epoch, total/n, right/n)
    return perf_counter() - start, 0., right/n


def ours(*dls, **kwargs):
    start = perf_counter()
    learn = Learner(make_model(), *dls, loss_fn=F.cross_entropy, lr=LR, metrics=[accuracy], **kwargs)
    learn.fit(N_EPOCHS)
    end = perf_counter()
    closed = learn.display.closed if learn.display else end       # what comes after it is the picture
    return closed - start, end - closed, learn.history.epochs['valid_accuracy'][-1]


VARIANTS = {
    'raw loop, `DataLoader`': raw,
    'raw loop, `DataLoader`, fused AdamW': lambda *dls: raw(*dls, fused=True),
    'raw loop, whole batches by hand': lambda *dls: raw(*dls, quick=True),
    'raw loop, whole batches by hand, fused AdamW': lambda *dls: raw(*dls, quick=True, fused=True),
    '**ours, all defaults**': ours,
    'ours, no display': lambda *dls: ours(*dls, display=False),
    'ours, fused AdamW': lambda *dls: ours(*dls, optim=partial(torch.optim.AdamW, fused=True)),
    'ours, `DataLoader`': lambda *dls: ours(*loaders(*dls)),
}


def table(rounds):
    dls, seen = data(), {name: [] for name in VARIANTS}
    for i in range(rounds + 2):
        for name, run in VARIANTS.items():
            set_seed(i)
            with redirect_stdout(StringIO()): res = run(*dls)
            if i >= 2: seen[name].append(res)       # the first two warm up
    base = [o[0] for o in seen['raw loop, `DataLoader`']]
    print('| variant | ms | quartiles | × raw | last picture, ms | accuracy, mean |\n'
          '| --- | ---: | ---: | ---: | ---: | ---: |')
    for name, res in seen.items():
        times, pictures, right = zip(*res)
        low, _, high = (1000*o for o in quantiles(times, n=4))
        picture = f'{1000*median(pictures):.0f}'*(max(pictures) > 1e-4)
        print(f'| {name} | {1000*median(times):.0f} | {low:.0f}–{high:.0f} | '
              f'{median(t/b for t, b in zip(times, base)):.2f} | {picture} | {mean(right):.4f} |')


if __name__ == '__main__':
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    print(f'torch {torch.__version__}, Python {platform.python_version()}, {platform.machine()}, '
          f'1 thread, {rounds} rounds\n')
    print(in_a_kernel(f'digits.table({rounds})'))
