"""Training in the background: `python benchmarks/runs.py [rounds]`

The median time of an epoch with `learn.start`, compared with `learn.fit` in a fresh process, both with one thread: a
run also writes its record, its status and its output. Each round trains once each way, and the next one in the other
order; a ratio is that of a round, with median and quartiles. Then the time from the call to the first batch that a
window can see, with one process and with two, compared with `launch`, which forks.
"""
import platform, subprocess, sys, tempfile
from pathlib import Path
from statistics import median, quantiles
from time import perf_counter, sleep

import torch
import torch.nn.functional as F
from torch import nn

from plain import quiet
from trainer_nb.all import LambdaHook, Learner

N = 200     # batches of an epoch
SIZES = {'small, 64 units': (64, 24), 'medium, 1024 units': (1024, 8)}      # → units, epochs; steps of 0.5 ms, and of 4
WARM = 2    # epochs that do not count
FIT = 'import sys; sys.path.insert(0, {!r}); import runs; print(*runs.fitted({!r}))'


def made(name):
    torch.set_num_threads(1)
    torch.manual_seed(0)
    n, x = SIZES[name][0], torch.randn(64*N, 64)
    model = nn.Sequential(nn.Linear(64, n), nn.ReLU(), nn.Linear(n, n), nn.ReLU(), nn.Linear(n, 1))
    return Learner(model, (x, x[:, :1]), loss_fn=F.mse_loss, bs=64, device='cpu', display=False)

def fitted(name): return made(name).fit(SIZES[name][1]).epochs['time_s']

def in_foreground(name):
    "Median seconds of an epoch of `fit`, in a fresh process"
    code = FIT.format(str(Path(__file__).parent), name)
    out = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, check=True).stdout
    return median([float(o) for o in out.split()][WARM:])

def in_background(name):
    "The same of a run"
    with tempfile.TemporaryDirectory() as home:
        return median(made(name).start(SIZES[name][1], folder=f'{home}/a').wait().epochs['time_s'][WARM:])

def in_pairs(name, rounds):
    "[(seconds of `fit`, seconds of `start`)], in turns"
    pairs = []
    for i in range(rounds):
        if i % 2: b, a = in_background(name), in_foreground(name)
        else: a, b = in_foreground(name), in_background(name)
        pairs.append((a, b))
    return pairs


def until_first_batch(n_procs):
    "Seconds until `start` returns, and until its record has a batch"
    with tempfile.TemporaryDirectory() as home:
        learn, start = made('small, 64 units'), perf_counter()
        run = learn.start(200, folder=f'{home}/a', n_procs=n_procs)
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


def main(rounds, out):
    def say(text): print(text, file=out, flush=True)
    say(f'torch {torch.__version__}, Python {platform.python_version()}, {platform.machine()}, {rounds} rounds\n')
    say('| model | `fit`, ms per batch | `start`, ms per batch | longer | quartiles |\n'
        '| --- | ---: | ---: | ---: | ---: |')
    for name in SIZES:
        pairs = in_pairs(name, rounds)
        a, b = (median(o)/N*1000 for o in zip(*pairs))
        low, mid, high = quantiles([100*(b/a - 1) for a, b in pairs], n=4, method='inclusive')
        say(f'| {name} | {a:.3f} | {b:.3f} | {mid:+.1f} % | {low:+.1f} to {high:+.1f} % |')
    one, two = ([until_first_batch(n) for _ in range(max(rounds//2, 1))] for n in (1, 2))
    launched = median(until_launched() for _ in range(max(rounds//2, 1)))
    say('\n| call | returns, s | first batch, s |\n| --- | ---: | ---: |')
    for name, seen in ('start', one), ('start(n_procs=2)', two):
        say(f'| `{name}` | {median(o[0] for o in seen):.2f} | {median(o[1] for o in seen):.2f} |')
    say(f'| `launch(2)` | | {launched:.2f} |')


if __name__ == '__main__':
    rounds, out = max(int(sys.argv[1]) if len(sys.argv) > 1 else 6, 2), sys.stdout
    quiet(lambda: main(rounds, out))()      # without the views
