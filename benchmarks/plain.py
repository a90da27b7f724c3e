"What the benchmarks share: the loop that one would write, and variants that take turns"
import gc, io
from contextlib import redirect_stdout
from time import perf_counter

import torch
import torch.nn.functional as F
from torch import nn


def parts():
    "A tiny MLP, and its optimizer"
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 2))
    return model, torch.optim.SGD(model.parameters(), lr=.01)

def batches(n): return [(torch.randn(32, 16), torch.randint(2, (32,))) for _ in range(n)]


def by_hand(model, opt, batches, call=None):
    "The loop: a function that makes one pass; `call` stands for the model, once that is compiled"
    call = model if call is None else call
    def one_pass():
        model.train()
        for xb, yb in batches:
            loss = F.cross_entropy(call(xb), yb)
            loss.backward()
            opt.step()
            opt.zero_grad()
    return one_pass


def quiet(f):
    "`f`, whose output is dropped"
    def g():
        with redirect_stdout(io.StringIO()): f()
    return g

def timed(f):
    "Seconds that `f()` takes"
    start = perf_counter()
    f()
    return perf_counter() - start

def in_turn(passes, rounds, before=gc.collect):
    "dict: name → seconds in each round; in a round each function of `passes` runs once"
    times = {name: [] for name in passes}
    for _ in range(rounds):
        for name, one_pass in passes.items():
            before()
            times[name].append(timed(one_pass))
    return times
