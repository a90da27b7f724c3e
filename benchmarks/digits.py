"""Digits, 10 epochs, time and memory: `python benchmarks/digits.py [rounds]`

scikit-learn's digits (1,437 for training, 360 for validation), an MLP (64 → 64 → 10), AdamW, batches of 64, validation
with accuracy after each epoch, one thread. The loop by hand is the textbook one, with a `DataLoader`; ours is what you
would type, with all defaults. They take turns in a Jupyter kernel; a fit includes the picture that stays in the
notebook. Then resident memory after a fit and at its peak, each time in a new process, or in a kernel of its own.
Last, what a million recorded batches add, what it costs to record one, and how far the mean loss of an epoch is from
the exact one.
"""
import gc, json, subprocess, sys
from pathlib import Path
from statistics import mean, median
from time import perf_counter

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import plain

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


def by_hand(train_dl, valid_dl):
    model = make_model()
    opt = torch.optim.AdamW(model.parameters(), lr=LR)
    for epoch in range(N_EPOCHS):
        plain.one_pass(train_dl, model, opt)
        model.eval()
        total, right, n = 0., 0, 0
        with torch.no_grad():
            for xb, yb in valid_dl:
                pred = model(xb)
                total += F.cross_entropy(pred, yb).item()*len(xb)
                right += (pred.argmax(1) == yb).sum().item()
                n += len(xb)
        print(epoch, total/n, right/n)
    return right/n

def ours(*dls, **kwargs):
    from trainer_nb.all import Learner, accuracy
    learn = Learner(make_model(), *dls, loss_fn=F.cross_entropy, lr=LR, metrics=[accuracy], **kwargs)
    return learn.fit(N_EPOCHS).epochs['valid_accuracy'][-1]

VARIANTS = {        # each returns the accuracy
    'by hand, `DataLoader`': lambda *dls: by_hand(*loaders(*dls)),
    '**ours, all defaults**': ours,
    'ours, no display': lambda *dls: ours(*dls, display=False),
    'ours, `DataLoader`': lambda *dls: ours(*loaders(*dls)),
}


def times(rounds):
    dls, right = data(), {name: [] for name in VARIANTS}
    def variant(name):
        def run():
            torch.manual_seed(len(right[name]))
            right[name].append(VARIANTS[name](*dls))
        return plain.quiet(run)
    plain.table(plain.in_turn({name: variant(name) for name in VARIANTS}, rounds, warm=2),
                lambda _: 'by hand, `DataLoader`')
    print('\nMean accuracy:', ', '.join(f'{name.strip("*")} {mean(o):.4f}' for name, o in right.items()))


def rss():
    "(now, at its peak), MiB"
    import psutil
    lines = Path('/proc/self/status').read_text().splitlines() if sys.platform == 'linux' else []
    peak = next((int(o.split()[1])/1024 for o in lines if o.startswith('VmHWM')), float('nan'))
    return psutil.Process().memory_info().rss/2**20, peak

def memory(name):
    "Print what is resident after a fit, and was at its peak"
    dls = data()
    plain.quiet(lambda: VARIANTS[name](*dls))()
    print(json.dumps(rss()))

def elsewhere(call, in_kernel=False):
    "What `call` prints in a process of its own, or in a kernel"
    call = f'digits.{call}'
    if in_kernel: out = plain.in_a_kernel(call)
    else: out = subprocess.check_output([sys.executable, '-c', plain.program(call)], text=True)
    return json.loads(out.splitlines()[-1])

def memories(rounds):
    print('\n| | resident at the end, MiB | over by hand | at the peak, MiB | over by hand |\n'
          '| --- | ---: | ---: | ---: | ---: |')
    for where, is_kernel in ('in a pipe', False), ('in a kernel', True):
        base = None
        for name in 'by hand, `DataLoader`', 'ours, no display', '**ours, all defaults**':
            seen = [median(o) for o in zip(*(elsewhere(f'memory({name!r})', is_kernel) for _ in range(rounds)))]
            base = base or seen
            cells = ' | '.join(f'{o:.0f} | {o - b:+.0f}' for o, b in zip(seen, base))
            print(f'| {name}, {where} | {cells} |', flush=True)


def million(n=1_000_000, n_epochs=4):
    "Print MiB that `n` batches of a fit that only records add, µs for each, and the largest error of a mean"
    from display import Spin
    from trainer_nb.draw import Plot
    losses = torch.rand(997)
    values = losses.unbind()
    learn = Spin(nn.Linear(1, 1), [torch.zeros(1)]*(n//n_epochs), display=False, device='cpu',
                 train_step=lambda batch, learn: {'loss': values[learn.state.batch_idx % 997]})
    learn.fit(max_steps=10_000)
    plot, n_before = Plot(), len(learn.history)
    plot.chart(learn.history.plot_data())
    gc.collect()
    before, start = rss()[0], perf_counter()
    for _ in range(n_epochs):
        learn.fit(1)
        plot.chart(learn.history.plot_data())
    took = perf_counter() - start
    exact = float(losses.double()[torch.arange(n//n_epochs) % 997].mean())
    worst = max(abs(o - exact)/exact for o in learn.history.epochs['train_loss'][n_before:])
    print(json.dumps([rss()[0] - before, took/n*1e6, worst]))


if __name__ == '__main__':
    rounds = plain.argument(10)
    plain.heading(f'{rounds} rounds')
    print(plain.in_a_kernel(f'digits.times({rounds})'))
    memories(max(rounds//3, 1))
    mib, us, worst = elsewhere('million()')
    print(f'\nA million recorded batches: {mib:+.0f} MiB, {us:.1f} µs for a step that only records; '
          f'largest relative error of an epoch\'s loss {worst:.1e}')
