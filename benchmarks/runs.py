"""Training in the background: `python benchmarks/runs.py [rounds]`

The median time of an epoch, of `learn.start` against `learn.fit` in a process of its own, in turns; a run also writes
its record, its status and its output. And what passes from the call to the first batch that a window can see, with one
process and with two, against `launch`, which forks.
"""
import os, platform, subprocess, sys, tempfile
from pathlib import Path
from statistics import median
from time import perf_counter, sleep

import torch
import torch.nn.functional as F
from torch import nn

from trainer_nb.all import LambdaHook, Learner

EPOCHS = 12
SIZES = {'small, 64 units': 64, 'medium, 1024 units': 1024}     # steps of about 0.5 ms and of some ms
FIT = 'import sys; sys.path.insert(0, {!r}); import runs; print(*runs.made({!r}).fit({}).epochs["time_s"])'


def made(name):
    torch.set_num_threads(1)
    torch.manual_seed(0)
    n, x = SIZES[name], torch.randn(12_800, 64)
    model = nn.Sequential(nn.Linear(64, n), nn.ReLU(), nn.Linear(n, n), nn.ReLU(), nn.Linear(n, 1))
    return Learner(model, (x, x[:, :1]), loss_fn=F.mse_loss, bs=64, device='cpu', display=False)


def in_foreground(name):
    "Median seconds of an epoch of `fit`, in a fresh process"
    code = FIT.format(str(Path(__file__).parent), name, EPOCHS)
    out = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, check=True).stdout
    return median([float(o) for o in out.split()][2:])


def in_background(name, folder):
    return median(made(name).start(EPOCHS, folder=folder).wait().epochs['time_s'][2:])


def until_first_batch(folder, n_procs):
    "Seconds until `start` returns, and until its record has a batch"
    learn, start = made('small, 64 units'), perf_counter()
    run = learn.start(200, folder=folder, n_procs=n_procs)
    returned = perf_counter() - start
    while not run.history.n_steps: sleep(.005)
    seen = perf_counter() - start
    run.stop()
    run.wait()
    return returned, seen


def until_launched():
    "Seconds until `launch` has trained a batch"
    start, seen = perf_counter(), []
    first = LambdaHook(after_step=lambda learn: seen.append(perf_counter() - start) if not seen else None)
    made('small, 64 units').launch(2, max_steps=1, hooks=[first])
    return seen[0]


if __name__ == '__main__':
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    print(f'torch {torch.__version__}, Python {platform.python_version()}, {platform.machine()}, {rounds} rounds\n')
    print('| model | `fit`, ms per batch | `start`, ms per batch | longer |\n| --- | ---: | ---: | ---: |')
    with tempfile.TemporaryDirectory() as home, open(os.devnull, 'w') as quiet:
        out, sys.stdout = sys.stdout, quiet
        for name in SIZES:
            seen = [(in_foreground(name), in_background(name, f'{home}/{name}-{i}')) for i in range(rounds)]
            a, b = (median(o)/200*1000 for o in zip(*seen))
            ratio = median(b/a for a, b in seen)
            print(f'| {name} | {a:.3f} | {b:.3f} | {100*(ratio - 1):+.1f} % |', file=out, flush=True)
        launched = median(until_launched() for _ in range(rounds))
        one, two = ([until_first_batch(f'{home}/{n}-{i}', n) for i in range(rounds)] for n in (1, 2))
        sys.stdout = out
    print('\n| call | returns, s | first batch, s |\n| --- | ---: | ---: |')
    for name, seen in ('start', one), ('start(n_procs=2)', two):
        print(f'| `{name}` | {median(o[0] for o in seen):.2f} | {median(o[1] for o in seen):.2f} |')
    print(f'| `launch(2)` | | {launched:.2f} |')
