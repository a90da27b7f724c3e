"""Which rule of lr_find suggests the better rate: `python benchmarks/lr_rules.py [seeds]`

Twenty small problems. A plain loop trains each for four epochs at 13 rates, from 1e-5 to 10, and at the rate that
each rule finds on the curve of `lr_find()`. A figure is the best valid_loss at the rule's rate divided by the best one
of the grid, the median over the seeds: 1 is as good as the best of 13 trials. `lr_find` is its default suggestion:
`minimum`, or `valley` where that is past the lowest loss.
"""
import math, platform, sys, warnings
from contextlib import redirect_stdout
from functools import partial
from io import StringIO
from statistics import median

import torch, torch.nn.functional as F
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits, load_wine
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from trainer_nb.all import Learner
from trainer_nb.show.lr_find import RULES

torch.set_num_threads(1)
warnings.simplefilter('ignore')


def halves(x, y, n_valid): return (x[:-n_valid], y[:-n_valid]), (x[-n_valid:], y[-n_valid:])


def digits(shape=(64,)):
    x, y = load_digits(return_X_y=True)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(1))
    return halves(torch.tensor(x, dtype=torch.float32)[order].view(-1, *shape)/16, torch.tensor(y)[order], 597)


def table(load, is_number=False):
    x, y = load(return_X_y=True)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(1))
    x, y = torch.tensor(x, dtype=torch.float32)[order], torch.tensor(y)[order]
    x = (x - x.mean(0))/x.std(0)
    if is_number: y = ((y - y.mean())/y.std()).float()[:, None]
    return halves(x, y, len(x)//4)


def teacher(n=2000, d=16):
    g = torch.Generator().manual_seed(2)
    x, a, b = torch.randn(n, d, generator=g), torch.randn(d, 8, generator=g), torch.randn(8, 1, generator=g)
    y = torch.tanh(x @ a/2) @ b + .1*torch.randn(n, 1, generator=g)
    return halves(x, y, 500)


def categories(n=3000):
    "Columns of ids; each id has a hidden effect"
    g = torch.Generator().manual_seed(3)
    x, effects = torch.randint(40, (n, 4), generator=g), torch.randn(4, 40, generator=g)
    score = sum(effects[i][x[:, i]] for i in range(4)) + effects[0][x[:, 0]]*effects[1][x[:, 1]]
    y = (score + .3*torch.randn(n, generator=g) > 0).float()
    return halves(x, y, 750)


def ratings(n=4000):
    g = torch.Generator().manual_seed(4)
    x = torch.stack([torch.randint(60, (n,), generator=g), torch.randint(80, (n,), generator=g)], 1)
    u, v = torch.randn(60, 4, generator=g), torch.randn(80, 4, generator=g)
    return halves(x, (u[x[:, 0]]*v[x[:, 1]]).sum(1) + .1*torch.randn(n, generator=g), 1000)


def text(n=1200, length=32):
    with redirect_stdout(StringIO()): import this
    codes = ''.join(this.d.get(c, c) for c in this.s)
    known = {c: i for i, c in enumerate(sorted(set(codes)))}
    ids = torch.tensor([known[c] for c in codes])
    starts = torch.randint(len(ids) - length - 1, (n,), generator=torch.Generator().manual_seed(5))
    rows = torch.stack([ids[i:i + length + 1] for i in starts])
    return halves(rows[:, :-1], rows[:, 1:], 300)


def sequences(n=1500, length=12):
    "Which of four marks came first?"
    x = torch.randint(8, (n, length), generator=torch.Generator().manual_seed(6))
    first = (x < 4).float().argmax(1)[:, None]
    return halves(x, torch.where((x < 4).any(1), x.gather(1, first)[:, 0], 0), 400)


def mlp(*sizes, act=nn.ReLU, norm=None):
    layers = []
    for i, (a, b) in enumerate(zip(sizes, sizes[1:])):
        layers.append(nn.Linear(a, b))
        if i < len(sizes) - 2: layers += [*([norm(b)] if norm else []), act()]
    return nn.Sequential(*layers)


def conv(norm=False):
    layers = []
    for a, b, stride in (1, 16, 1), (16, 32, 2), (32, 32, 2):
        layers += [nn.Conv2d(a, b, 3, stride, 1), *([nn.BatchNorm2d(b)] if norm and b != a else []), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10))


class Columns(nn.Module):
    def __init__(self):
        super().__init__()
        self.tables, self.head = nn.ModuleList(nn.Embedding(40, 8) for _ in range(4)), mlp(32, 32, 1)
    def forward(self, x): return self.head(torch.cat([t(x[:, i]) for i, t in enumerate(self.tables)], 1))[:, 0]


class Factors(nn.Module):
    def __init__(self):
        super().__init__()
        self.u, self.v = nn.Embedding(60, 8), nn.Embedding(80, 8)
    def forward(self, x): return (self.u(x[:, 0])*self.v(x[:, 1])).sum(1)


class Transformer(nn.Module):
    def __init__(self, n_ids, n_out, length, is_text):
        super().__init__()
        self.ids, self.places, self.is_text = nn.Embedding(n_ids, 32), nn.Embedding(length, 32), is_text
        layer = nn.TransformerEncoderLayer(32, 2, 64, 0., batch_first=True, norm_first=True)
        self.blocks, self.head = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(32, n_out)
    def forward(self, x):
        h = self.ids(x) + self.places.weight[:x.size(1)]
        if not self.is_text: return self.head(self.blocks(h).mean(1))
        return self.head(self.blocks(h, nn.Transformer.generate_square_subsequent_mask(x.size(1)))).transpose(1, 2)


class Recurrent(nn.Module):
    def __init__(self, cls):
        super().__init__()
        self.ids, self.cell, self.head = nn.Embedding(8, 16), cls(16, 32, batch_first=True), nn.Linear(32, 4)
    def forward(self, x): return self.head(self.cell(self.ids(x))[0][:, -1])


def twice(data): return [(x, x) for x, _ in data]

SGD, Adam, AdamW = torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW
momentum = partial(SGD, momentum=.9)
CE, MSE, BCE = F.cross_entropy, F.mse_loss, F.binary_cross_entropy_with_logits
# name → (data, model, loss, optimizer, batch size)
PROBLEMS = {
    'digits, MLP, SGD': (digits, lambda: mlp(64, 64, 10), CE, SGD, 32),
    'digits, MLP, Adam': (digits, lambda: mlp(64, 64, 10), CE, Adam, 32),
    'digits, MLP with BatchNorm, AdamW': (digits, lambda: mlp(64, 64, 64, 10, norm=nn.BatchNorm1d), CE, AdamW, 32),
    'digits, deep tanh MLP, momentum': (digits, lambda: mlp(64, *[48]*5, 10, act=nn.Tanh), CE, momentum, 32),
    'digits, linear, SGD': (digits, lambda: nn.Linear(64, 10), CE, SGD, 64),
    'digits, conv, momentum': (partial(digits, (1, 8, 8)), conv, CE, momentum, 32),
    'digits, conv, Adam': (partial(digits, (1, 8, 8)), conv, CE, Adam, 32),
    'digits, conv with BatchNorm, AdamW': (partial(digits, (1, 8, 8)), partial(conv, True), CE, AdamW, 32),
    'digits, autoencoder, Adam': (lambda: twice(digits()), lambda: mlp(64, 32, 8, 32, 64), MSE, Adam, 32),
    'teacher, regression, SGD': (teacher, lambda: mlp(16, 64, 1), MSE, SGD, 32),
    'teacher, regression, Adam': (teacher, lambda: mlp(16, 64, 1), MSE, Adam, 32),
    'diabetes, regression, AdamW': (partial(table, load_diabetes, True), lambda: mlp(10, 32, 1), MSE, AdamW, 16),
    'wine, MLP, momentum': (partial(table, load_wine), lambda: mlp(13, 32, 3), CE, momentum, 8),
    'breast cancer, MLP, AdamW': (partial(table, load_breast_cancer), lambda: mlp(30, 32, 2), CE, AdamW, 16),
    'categories, embeddings, Adam': (categories, Columns, BCE, Adam, 64),
    'categories, embeddings, momentum': (categories, Columns, BCE, momentum, 64),
    'ratings, factorization, AdamW': (ratings, Factors, MSE, AdamW, 64),
    'text, transformer, AdamW': (text, lambda: Transformer(45, 45, 32, True), CE, AdamW, 32),
    'sequences, transformer, Adam': (sequences, lambda: Transformer(8, 4, 12, False), CE, Adam, 32),
    'sequences, GRU, AdamW': (sequences, lambda: Recurrent(nn.GRU), CE, AdamW, 32),
}
GRID = [10**(k/2) for k in range(-10, 3)]


def made(name, seed):
    data, model, loss_fn, optim, bs = PROBLEMS[name]
    train, valid = data()
    torch.manual_seed(seed)
    dl = DataLoader(TensorDataset(*train), bs, shuffle=True, drop_last=True)
    return model(), dl, valid, loss_fn, optim


def trained(name, seed, lr, n_epochs=4):
    model, dl, (x, y), loss_fn, optim = made(name, seed)
    opt, best = optim(model.parameters(), lr=lr), math.inf
    for _ in range(n_epochs):
        model.train()
        for xb, yb in dl:
            loss_fn(model(xb), yb).backward()
            opt.step()
            opt.zero_grad()
        model.eval()
        with torch.no_grad(): v = loss_fn(model(x), y).item()
        if math.isfinite(v): best = min(best, v)
    return best


def measured(name, seed):  # (rule → ratio, rule → rate, ratios of the grid's rates in the good range)
    model, dl, valid, loss_fn, optim = made(name, seed)
    learn = Learner(model, dl, loss_fn=loss_fn, optim=optim, lr=1e-3, device='cpu', display=False)
    curve = learn.lr_find()
    if curve.why: return {}, {}, []
    grid = {lr: trained(name, seed, lr) for lr in GRID}
    best, (low, high) = min(grid.values()), curve.good_range
    rates = {**curve.suggestions, 'lr_find': curve.suggestion}
    return ({k: trained(name, seed, lr)/best for k, lr in rates.items()}, rates,
            [v/best for lr, v in grid.items() if low <= lr <= high])


def row(*cells): return f'| {" | ".join(cells)} |'


def text(ratio): return f'{ratio:.2f}' if ratio < 100 else '> 100'


if __name__ == '__main__':
    seeds = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    names, ranges, found = ['lr_find', *RULES], [], {}
    found = {name: [measured(name, seed) for seed in range(seeds)] for name in PROBLEMS}
    print(f'torch {torch.__version__}, Python {platform.python_version()}, {platform.machine()}, {seeds} seeds\n')
    print(row('problem', *names), '| --- |' + ' ---: |'*len(names), sep='\n')
    for name, runs in found.items():
        ratios = [o for o, _, _ in runs if o]
        print(row(name, *(text(median(o[k] for o in ratios)) if ratios else '' for k in names)))
    runs = [o for part in found.values() for o in part if o[0]]
    every = {k: sorted(o[k] for o, _, _ in runs) for k in names}
    print(row('**median**', *(text(median(o)) for o in every.values())))
    print(row('**nine of ten are below**', *(text(o[int(.9*len(o))]) for o in every.values())))
    for most in 1.25, 2: print(row(f'**at most {most:g}**', *(f'{sum(v <= most for v in o)}' for o in every.values())))
    inside = [v for *_, o in runs for v in o]
    print(f'\n{len(runs)} curves have suggestions, {seeds*len(PROBLEMS) - len(runs)} have none. In the good range of '
          f'a curve, {sum(v <= 1.5 for v in inside)/len(inside):.0%} of the grid\'s rates are within 1.5 of the best; '
          f'{sum(min(o) <= 1.5 for *_, o in runs if o)} ranges of {len(runs)} have one that is.')
