"""Training in the background: `python benchmarks/runs.py [rounds]`

The median time of a batch with `learn.start`, compared with `learn.fit` in a fresh process, both with one thread: a
run also writes its record, its status and its output. They take turns. Then the time from the call to the first batch
that a window can see, with one process and with two.
"""
import subprocess, sys, tempfile
from statistics import median
from time import perf_counter, sleep

import torch
import torch.nn.functional as F
from torch import nn

import plain
from trainer_nb.all import Learner

N = 200     # batches of an epoch
SIZES = {'64 units': (64, 24), '1024 units': (1024, 8)}      # → units, epochs; steps of 0.5 ms, and of 4
WARM = 2    # epochs that do not count
torch.set_num_threads(1)


def made(name):
    torch.manual_seed(0)
    n, x = SIZES[name][0], torch.randn(64*N, 64)
    model = nn.Sequential(nn.Linear(64, n), nn.ReLU(), nn.Linear(n, n), nn.ReLU(), nn.Linear(n, 1))
    return Learner(model, (x, x[:, :1]), loss_fn=F.mse_loss, bs=64, device='cpu', display=False)

def fit(name): print(*made(name).fit(SIZES[name][1]).epochs['time_s'])

def in_foreground(name):
    "Median seconds of an epoch of `fit`, in a fresh process"
    code = plain.program(f'runs.fit({name!r})')
    return median([float(o) for o in subprocess.check_output([sys.executable, '-c', code]).split()][WARM:])

def in_background(name):
    "The same of a run"
    with tempfile.TemporaryDirectory() as home:
        return median(made(name).start(SIZES[name][1], folder=f'{home}/a').wait().epochs['time_s'][WARM:])


def until_first_batch(n_procs):
    "Seconds until `start` returns, and until its record has a batch"
    with tempfile.TemporaryDirectory() as home:
        learn, start = made('64 units'), perf_counter()
        run = learn.start(200, folder=f'{home}/a', n_procs=n_procs)
        returned = perf_counter() - start
        while not run.history.n_steps: sleep(.005)
        seen = perf_counter() - start
        run.stop()
        run.wait()
    return returned, seen

def main(rounds):
    passes = {}
    for name in SIZES:
        passes |= {f'`fit`, {name}': lambda name=name: in_foreground(name),
                   f'`start`, {name}': lambda name=name: in_background(name)}
    times = plain.in_turn(passes, rounds, warm=0, clock=lambda f: f())
    n = max(rounds//2, 1)
    until = {k: [median(o) for o in zip(*(until_first_batch(k) for _ in range(n)))] for k in (1, 2)}
    return times, until


if __name__ == '__main__':
    rounds, found = plain.argument(3), []
    plain.heading(f'{rounds} rounds')
    plain.quiet(lambda: found.append(main(rounds)))()      # without the views
    times, until = found[0]
    plain.table(times, lambda name: f'`fit`, {name.partition(", ")[2]}', 'a batch', 'ms', 1e3/N)
    print('\n| call | returns, s | first batch, s |\n| --- | ---: | ---: |')
    for k, (returned, first) in until.items(): print(f'| `start(n_procs={k})` | {returned:.2f} | {first:.2f} |')
