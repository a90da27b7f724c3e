"What the benchmarks share: the loop that one would write, variants that take turns, and their table"
import gc, io, platform, sys
from contextlib import redirect_stdout
from pathlib import Path
from statistics import median, quantiles
from time import perf_counter

import torch
import torch.nn.functional as F
from torch import nn


def parts():
    "A tiny MLP, and its optimizer"
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 2))
    return model, torch.optim.SGD(model.parameters(), lr=.01)

def batches(n): return [(torch.randn(32, 16), torch.randint(2, (32,))) for _ in range(n)]

def one_pass(batches, model, opt, loss_of=None):
    "Train over `batches` as one would by hand; `loss_of(xb, yb)` stands for model and loss, once they are compiled"
    model.train()
    for xb, yb in batches:
        loss = F.cross_entropy(model(xb), yb) if loss_of is None else loss_of(xb, yb)
        loss.backward()
        opt.step()
        opt.zero_grad()


def argument(default): return type(default)(sys.argv[1]) if len(sys.argv) > 1 else default

def heading(what=''):
    "Print what was measured with: versions, threads and `what`"
    n = torch.get_num_threads()
    print(f'torch {torch.__version__}, Python {platform.python_version()}, {platform.machine()}, '
          f'{n} thread{"s"*(n > 1)}{what and ", "}{what}\n', flush=True)

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

def in_turn(passes, rounds, warm=1, before=gc.collect, clock=timed):
    "dict: name → `clock(pass)` by round; each function of `passes` runs once in a round, after `warm` further rounds"
    times = {name: [] for name in passes}
    for i in range(warm + rounds):
        for name, f in passes.items():
            before()
            seen = clock(f)
            if i >= warm: times[name].append(seen)
    return times

def table(times, base, what='variant', per='ms', scale=1e3):
    "Print `times` in `per`: lower quartile (a busy machine only adds), median, and the quartile × the row `base(name)`"
    print(f'| {what} | {per}, lower quartile | median | × by hand |\n| --- | ---: | ---: | ---: |')
    low = {name: quantiles(ts, n=4)[0] for name, ts in times.items()}
    for name, ts in times.items():
        cells = (f'{scale*o:.{2 if scale*o < 100 else 1}f}' for o in (low[name], median(ts)))
        print(f'| {name} | {" | ".join(cells)} | {low[name]/low[base(name)]:.3f} |', flush=True)

def program(call):
    "What runs `call`, of a module beside this one, in another process"
    return f'import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})\nimport {call.split(".")[0]}\n{call}'

def in_a_kernel(call):
    "Run `call`, of a module beside this one, in a kernel; returns what it printed"
    import nbformat
    from nbclient import NotebookClient
    nb = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(program(call))])
    NotebookClient(nb, timeout=None, kernel_name='python3').execute()
    return ''.join(o.text for o in nb.cells[0].outputs if o.output_type == 'stream')
