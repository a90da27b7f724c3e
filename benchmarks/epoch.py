"""What a short epoch costs: `python benchmarks/epoch.py [rounds]`

A tiny MLP (16 → 32 → 2), 20 batches of 32 for training and 5 for validation, ready in a list; SGD, one thread,
50 epochs in a `fit`. The variants and the raw loop are interleaved in one process; a figure is the median over
the rounds of the time of an epoch.
"""
import platform, sys
from statistics import median, quantiles

import torch
import torch.nn.functional as F

import plain
from overhead import batches
from plain import parts
from trainer_nb.all import Learner, accuracy

N_EPOCHS = 50
train, valid = batches[:20], batches[20:25]


def raw(with_accuracy=False):
    "The loop that one would write, which tells the losses of an epoch at its end"
    model, opt = parts()
    def fit():
        for epoch in range(N_EPOCHS):
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


def ours(**kwargs):
    model, opt = parts()
    learn = Learner(model, train, valid, loss_fn=F.cross_entropy, optim=opt, **{'display': False, **kwargs})
    return lambda: learn.fit(N_EPOCHS)


VARIANTS = {
    'raw loop': raw,
    'raw loop with validation accuracy': lambda: raw(True),
    'bare': ours,
    'accuracy': lambda: ours(metrics=[accuracy]),
    'accuracy, default display': lambda: ours(metrics=[accuracy], display=True),
}


def measure(rounds):
    "Milliseconds per epoch of each variant, by round"
    times = plain.in_turn({name: plain.quiet(make()) for name, make in VARIANTS.items()}, rounds + 1)
    return {name: [t/N_EPOCHS*1e3 for t in ts[1:]] for name, ts in times.items()}       # the first round warms up


if __name__ == '__main__':
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    print(f'torch {torch.__version__}, Python {platform.python_version()}, {platform.machine()}, '
          f'1 thread, {rounds} rounds of {N_EPOCHS} epochs\n')
    times = measure(rounds)
    base = times['raw loop']
    print('| variant | ms per epoch | quartiles | over raw, µs | × raw |\n| --- | ---: | ---: | ---: | ---: |')
    for name, ts in times.items():
        low, _, high = quantiles(ts, n=4)
        print(f'| {name} | {median(ts):.2f} | {low:.2f}–{high:.2f} | '
              f'{1e3*median(t - b for t, b in zip(ts, base)):+.0f} | {median(t/b for t, b in zip(ts, base)):.3f} |')
