"""The learning-rate finder, its cost and its advice: `python benchmarks/lr_find.py [rounds]`

100 steps, one thread, batches that are ready in memory: our time beside that of 100 training steps by hand plus one
copy of the state, which take turns in one process. Then six small problems: a plain loop trains each for four epochs
at 13 rates, from 1e-5 to 10, and at the rate that each rule finds on the curve of `lr_find()`. A figure is the best
valid_loss at the rule's rate divided by the best one of the grid, the median over three seeds: 1 is as good as the
best of 13 trials. `lr_find` is its default suggestion: `minimum`, or `valley` where that is past the lowest loss.
"""
import copy, math, warnings
from functools import partial
from statistics import median

import torch
import torch.nn.functional as F
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits, load_wine
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import plain
from trainer_nb.all import Learner
from trainer_nb.show.lr_find import RULES

N_STEPS, N_EPOCHS, GRID = 100, 4, [10**(k/2) for k in range(-10, 3)]
torch.set_num_threads(1)
warnings.simplefilter('ignore')


def searches(width, bs):
    "(by hand, ours)"
    torch.manual_seed(0)
    batches = DataLoader([(torch.randn(bs, 64), torch.randint(10, (bs,))) for _ in range(N_STEPS)], batch_size=None)
    model = nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10))
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    learn = Learner(model, batches, loss_fn=F.cross_entropy, optim=opt, device='cpu', display=False)
    learn.fit(1)       # so that the optimizer has a state
    def by_hand():
        state, losses = copy.deepcopy([model.state_dict(), opt.state_dict()]), []
        for i, (xb, yb) in enumerate(batches):
            opt.param_groups[0]['lr'] = 1e-7*1e6**(i/(N_STEPS - 1))
            loss = F.cross_entropy(model(xb), yb)
            loss.backward()
            opt.step()
            opt.zero_grad()
            losses.append(loss.detach())
        torch.stack(losses).tolist()
        model.load_state_dict(state[0])
        opt.load_state_dict(state[1])
    return by_hand, lambda: learn.lr_find(end=.1, stop_div=False)


def rows(load, is_number):
    "Shuffled rows of a data set, standardized: ((x, y) for training, (x, y) of a quarter for validation)"
    x, y = load(return_X_y=True)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(1))
    x, y = torch.tensor(x, dtype=torch.float32)[order], torch.tensor(y)[order]
    x = (x - x.mean(0))/(x.std(0) + 1e-3)
    if is_number: y = ((y - y.mean())/y.std()).float()[:, None]
    n = 3*len(x)//4
    return (x[:n], y[:n]), (x[n:], y[n:])

def mlp(*sizes, act=nn.ReLU, norm=None):
    layers = []
    for a, b in zip(sizes[:-2], sizes[1:-1]): layers += [nn.Linear(a, b), *([norm(b)] if norm else []), act()]
    return nn.Sequential(*layers, nn.Linear(*sizes[-2:]))

SGD, AdamW, CE, MSE = torch.optim.SGD, torch.optim.AdamW, F.cross_entropy, F.mse_loss
momentum = partial(SGD, momentum=.9)
# name → (data, model, loss, optimizer, batch size)
PROBLEMS = {
    'digits, MLP, SGD': (load_digits, lambda: mlp(64, 64, 10), CE, SGD, 32),
    'digits, MLP with BatchNorm, AdamW': (load_digits, lambda: mlp(64, 64, 64, 10, norm=nn.BatchNorm1d), CE, AdamW, 32),
    'digits, deep tanh MLP, momentum': (load_digits, lambda: mlp(64, *[48]*5, 10, act=nn.Tanh), CE, momentum, 32),
    'breast cancer, MLP, momentum': (load_breast_cancer, lambda: mlp(30, 32, 2), CE, momentum, 16),
    'wine, linear, SGD': (load_wine, lambda: mlp(13, 3), CE, SGD, 8),
    'diabetes, regression, AdamW': (load_diabetes, lambda: mlp(10, 32, 1), MSE, AdamW, 16),
}


def made(name, seed):
    data, model, loss_fn, optim, bs = PROBLEMS[name]
    train, valid = rows(data, loss_fn is MSE)
    torch.manual_seed(seed)
    return model(), DataLoader(TensorDataset(*train), bs, shuffle=True, drop_last=True), valid, loss_fn, optim


def trained(name, seed, lr):
    "The best valid_loss"
    model, dl, (x, y), loss_fn, optim = made(name, seed)
    opt, best = optim(model.parameters(), lr=lr), math.inf
    for _ in range(N_EPOCHS):
        plain.one_pass(dl, model, opt, lambda xb, yb: loss_fn(model(xb), yb))
        model.eval()
        with torch.no_grad(): v = loss_fn(model(x), y).item()
        if math.isfinite(v): best = min(best, v)
    return best


def measured(name, seed):  # (rule → ratio, ratios of the grid's rates in the good range)
    model, dl, valid, loss_fn, optim = made(name, seed)
    learn = Learner(model, dl, loss_fn=loss_fn, optim=optim, lr=1e-3, device='cpu', display=False)
    curve = learn.lr_find()
    if curve.why: return {}, []
    grid = {lr: trained(name, seed, lr) for lr in GRID}
    best, (low, high) = min(grid.values()), curve.good_range
    rates = {**curve.suggestions, 'lr_find': curve.suggestion}
    return ({k: trained(name, seed, lr)/best for k, lr in rates.items()},
            [v/best for lr, v in grid.items() if low <= lr <= high])


def row(*cells): return f'| {" | ".join(cells)} |'

def text(ratio): return f'{ratio:.2f}' if ratio < 100 else '> 100'


if __name__ == '__main__':
    rounds, seeds, names = plain.argument(8), 3, ['lr_find', *RULES]
    plain.heading(f'{rounds} rounds')
    passes = {}
    for width, bs in (64, 32), (512, 64), (1024, 64):
        passes[f'MLP of {width}, by hand'], passes[f'MLP of {width}'] = searches(width, bs)
    plain.table(plain.in_turn(passes, rounds), lambda name: f'{name.removesuffix(", by hand")}, by hand', 'search')
    print()
    print(row('problem', *names), '| --- |' + ' ---: |'*len(names), sep='\n')
    runs = []
    for name in PROBLEMS:
        found = [o for seed in range(seeds) if (o := measured(name, seed))[0]]
        print(row(name, *(text(median(o[k] for o, _ in found)) if found else '' for k in names)), flush=True)
        runs += found
    every = {k: sorted(o[k] for o, _ in runs) for k in names}
    print(row('**median**', *(text(median(o)) for o in every.values())))
    for most in 1.25, 2: print(row(f'**at most {most:g}**', *(f'{sum(v <= most for v in o)}' for o in every.values())))
    inside = [v for _, o in runs for v in o]
    print(f'\n{len(runs)} of {seeds*len(PROBLEMS)} curves have suggestions. In their good ranges, '
          f'{sum(v <= 1.5 for v in inside)/len(inside):.0%} of the grid\'s rates are within 1.5 of the best.')
