"""What a short epoch costs: `python benchmarks/epoch.py [rounds]`

A tiny MLP (16 → 32 → 2), 20 batches of 32 for training and 5 for validation, ready in a list; SGD, one thread,
50 epochs in a `fit`. The variants and the raw loop are interleaved in one process; a figure is the median over
the rounds of the time of an epoch. The second table is about the shortest epochs, of 2 batches for training and 1 for
validation, from different loaders, each beside a raw loop over the same batches, 400 epochs in a `fit`.
"""
import platform, sys
from statistics import median, quantiles

import torch
import torch.nn.functional as F

import plain
from overhead import batches
from plain import parts
from trainer_nb.all import Learner, TensorLoader, accuracy

N_EPOCHS = 50
train, valid = batches[:20], batches[20:25]


def raw(train=train, valid=valid, n_epochs=N_EPOCHS, with_accuracy=False):
    "The loop that one would write, which tells the losses of an epoch at its end"
    model, opt = parts()
    def fit():
        for epoch in range(n_epochs):
            model.train()
            losses, n = torch.zeros(()), 0
            for xb, yb in train:
                loss = F.cross_entropy(model(xb), yb)
                loss.backward()
                opt.step()
                opt.zero_grad()
                losses += loss.detach()*len(xb)
                n += len(xb)
            model.eval()
            valid_losses, right, n_valid = torch.zeros(()), torch.zeros(()), 0
            with torch.no_grad():
                for xb, yb in valid:
                    pred = model(xb)
                    valid_losses += F.cross_entropy(pred, yb)*len(xb)
                    if with_accuracy: right += (pred.argmax(1) == yb).sum()
                    n_valid += len(xb)
            print(epoch, losses.item()/n, valid_losses.item()/n_valid, right.item()/n_valid)
    return fit


def ours(train=train, valid=valid, n_epochs=N_EPOCHS, **kwargs):
    model, opt = parts()
    learn = Learner(model, train, valid, loss_fn=F.cross_entropy, optim=opt, **{'display': False, **kwargs})
    return lambda: learn.fit(n_epochs)


VARIANTS = {
    'raw loop': raw,
    'raw loop with validation accuracy': lambda: raw(with_accuracy=True),
    'bare': ours,
    'accuracy': lambda: ours(metrics=[accuracy]),
    'accuracy, default display': lambda: ours(metrics=[accuracy], display=True),
}


class Plain:
    "An iterable of which nobody knows whether it draws random numbers"
    def __init__(self, batches): self.batches = batches
    def __len__(self): return len(self.batches)
    def __iter__(self): return iter(self.batches)


x, y = (torch.cat(o) for o in zip(*batches[:3]))
def by_rows(): return TensorLoader(x[:64], y[:64], bs=32), TensorLoader(x[64:], y[64:], bs=32)

LOADERS = {     # two batches for training, and one for validation
    'a list': lambda: (batches[:2], batches[2:3]),
    'an object with `__iter__`': lambda: (Plain(batches[:2]), Plain(batches[2:3])),
    'rows of tensors': by_rows,
}
N_SHORT = 400
SHORT = {}
for name, make in LOADERS.items():
    SHORT[f'raw loop over {name}'] = lambda make=make: raw(*make(), N_SHORT)
    SHORT[name] = lambda make=make: ours(*make(), N_SHORT)


def measure(variants, rounds, n_epochs):
    "Milliseconds per epoch of each variant, by round"
    times = plain.in_turn({name: plain.quiet(make()) for name, make in variants.items()}, rounds + 1)
    return {name: [t/n_epochs*1e3 for t in ts[1:]] for name, ts in times.items()}       # the first round warms up


def table(times, base):
    "Print the figures beside those of `base(name)`, the name of a raw loop"
    print('| variant | ms per epoch | quartiles | over raw, µs | × raw |\n| --- | ---: | ---: | ---: | ---: |')
    for name, ts in times.items():
        low, _, high = quantiles(ts, n=4)
        pairs = [*zip(ts, times[base(name)])]
        print(f'| {name} | {median(ts):.3f} | {low:.3f}–{high:.3f} | '
              f'{1e3*median(t - b for t, b in pairs):+.0f} | {median(t/b for t, b in pairs):.3f} |')


if __name__ == '__main__':
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    print(f'torch {torch.__version__}, Python {platform.python_version()}, {platform.machine()}, '
          f'1 thread, {rounds} rounds of {N_EPOCHS} and of {N_SHORT} epochs\n')
    table(measure(VARIANTS, rounds, N_EPOCHS), lambda name: 'raw loop')
    print()
    table(measure(SHORT, rounds, N_SHORT), lambda name: f'raw loop over {name.removeprefix("raw loop over ")}')
