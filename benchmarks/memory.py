"""How much memory training takes: `python benchmarks/memory.py [rounds]`

Peak and final resident memory of the fit in `digits.py`, over the raw loop, each time in a new process: without
a display, with the default display in a pipe, and in a Jupyter kernel, beside the raw loop in one. Then what a
million recorded batches add, and what it costs to record one.

`python benchmarks/memory.py loop 1000000` trains so many batches in one epoch, with a metric, without a display and
with the live one: memory should grow by 8 bytes for each recorded value, and by nothing else.
"""
import gc, json, os, platform, subprocess, sys
from contextlib import redirect_stdout
from io import StringIO
from itertools import repeat
from pathlib import Path
from statistics import median
from time import perf_counter

import torch

torch.set_num_threads(1)


def rss():
    "(now, at its peak), MiB"
    import psutil
    lines = Path('/proc/self/status').read_text().splitlines() if sys.platform == 'linux' else []
    peak = next((int(o.split()[1])/1024 for o in lines if o.startswith('VmHWM')), float('nan'))
    return psutil.Process().memory_info().rss/2**20, peak


def fit(kind):
    "Print what is resident after a fit, and was at its peak"
    import digits
    raw, dls = kind.startswith('raw'), digits.data()
    from digits import set_seed
    set_seed(0)
    with redirect_stdout(StringIO()):
        if raw: digits.raw(*dls)
        else: digits.ours(*(dls if 'tensors' in kind else digits.loaders(*dls)), display='display' in kind)
    print(json.dumps(rss()))


def raw_alone():
    "The raw loop in a process that never imports the library"
    code = Path(__file__).with_name('digits.py').read_text(encoding='utf-8')
    code = code.replace('from display import in_a_kernel\n',
                        '').replace('from trainer_nb.all import Learner, accuracy, set_seed\n', '')
    space = {'__name__': 'digits'}
    exec(compile(code, 'digits.py', 'exec'), space)
    dls = space['data']()
    with redirect_stdout(StringIO()): space['raw'](*dls)
    print(json.dumps(rss()))


def elsewhere(call, in_kernel):
    "What `call` prints in a process of its own, or in a kernel"
    if in_kernel:
        from display import in_a_kernel
        return json.loads(in_a_kernel(f'memory.{call}').splitlines()[-1])
    code = f'import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})\nimport memory\nmemory.{call}'
    return json.loads(subprocess.run([sys.executable, '-c', code], capture_output=True, text=True,
                                     check=True).stdout.splitlines()[-1])


VARIANTS = {
    'raw loop': ('raw_alone()', False),
    'ours, no display': ("fit('tensors')", False),
    'ours, display in a pipe': ("fit('tensors, display')", False),
    'ours, `DataLoader`, display in a pipe': ("fit('display')", False),
    'raw loop, in a kernel': ('raw_alone()', True),
    'ours, no display, in a kernel': ("fit('tensors')", True),
    'ours, display, in a kernel': ("fit('tensors, display')", True),
}


def fits(rounds):
    seen = {name: [elsewhere(*o) for _ in range(rounds)] for name, o in VARIANTS.items()}
    print('| digits, 10 epochs | resident at the end, MiB | over raw | at the peak, MiB | over raw |\n'
          '| --- | ---: | ---: | ---: | ---: |')
    for name, res in seen.items():
        base = seen['raw loop, in a kernel' if 'kernel' in name else 'raw loop']
        now, peak, now_raw, peak_raw = (median(o[i] for o in r) for r in (res, base) for i in (0, 1))
        print(f'| {name} | {now:.0f} | {now - now_raw:+.0f} | {peak:.0f} | {peak - peak_raw:+.0f} |')


def million(n=1_000_000, n_epochs=4):
    "Print MiB before and after `n` batches of a fit that only records, with a live plot; and the largest error"
    from trainer_nb.all import Learner
    losses = torch.rand(997)
    values = losses.unbind()
    class Recorder(Learner):
        def do_backward(self, loss): pass
        def do_opt_step(self): return True
    def step(batch, learn): return {'loss': values[learn.state.batch_idx % 997]}
    class Batches:
        def __len__(self): return n//n_epochs
        def __iter__(self): return iter([torch.zeros(1)]*len(self))
    learn = Recorder(torch.nn.Linear(1, 1), Batches(), train_step=step, display=False)
    learn.fit(max_steps=10_000)
    from trainer_nb.draw import Plot
    plot, before, n_before = Plot(), None, len(learn.history)
    plot.chart(learn.history.plot_data())
    gc.collect()
    before, start = rss()[0], perf_counter()
    for _ in range(n_epochs):
        learn.fit(1)
        plot.chart(learn.history.plot_data())
    took, after = perf_counter() - start, rss()[0]
    exact = float(losses.double()[torch.arange(n//n_epochs) % 997].mean())
    worst = max(abs(o - exact)/exact for o in learn.history.epochs['train_loss'][n_before:])
    print(json.dumps([before, after, worst, learn.history.n_steps, took/n*1e6]))


def recording(n=2560, rounds=50):
    "µs that losses and learning rates of a batch cost, copies to the host included"
    from trainer_nb.loop.columns import Accumulator, Columns
    losses, times = torch.rand(997).unbind(), []
    for _ in range(rounds):
        columns = Columns()
        accumulator, start = Accumulator([], 'cpu', columns), perf_counter()
        for i in range(n): accumulator.add({'loss': losses[i % 997].item()}, {}, 32, 32, {}, {'lr': 1e-3})
        for name in columns.names(): columns.fetch(name)
        times.append((perf_counter() - start)/n*1e6)
    return min(times), median(times)


def endless(n, display=False):
    "Print MiB and the number of recorded values after a fifth and after all of the `n` batches of one epoch"
    from trainer_nb.all import LambdaHook, Learner, accuracy
    batch, seen = (torch.rand(8, 4), torch.randint(3, (8,))), []
    class Endless:
        def __iter__(self): return repeat(batch)
    def look(learn):
        if learn.history.n_steps not in (n//5, n): return
        gc.collect()
        seen.append((rss()[0], sum(map(len, learn.history.columns.values.values()))))
    Learner(torch.nn.Linear(4, 3), Endless(), loss_fn=torch.nn.functional.cross_entropy, metrics=accuracy,
            hooks=LambdaHook(after_step=look), device='cpu', display=display).fit(max_steps=n)
    print(json.dumps(seen))


def loop(n):
    os.environ['MALLOC_MMAP_THRESHOLD_'] = '65536'      # else glibc keeps what arrays leave behind as they grow
    print(f'| one epoch of {n:,} batches | MiB after a fifth | MiB at the end | values between | bytes for a value |\n'
          '| --- | ---: | ---: | ---: | ---: |')
    for name, display in {'no display': False, 'display, in a kernel': True}.items():
        (before, n_before), (after, n_after) = elsewhere(f'endless({n}, {display})', display)
        n_values = n_after - n_before
        print(f'| {name} | {before:.0f} | {after:.0f} | {n_values:,} | {(after - before)*2**20/n_values:.1f} |')


if __name__ == '__main__':
    if sys.argv[1:2] == ['loop']:
        loop(int(sys.argv[2]))
        sys.exit()
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    print(f'torch {torch.__version__}, Python {platform.python_version()}, {platform.machine()}, '
          f'1 thread, {rounds} rounds\n')
    fits(rounds)
    before, after, worst, n, us = elsewhere('million()', False)
    print(f'\n{n:,} recorded batches, the last million of them: {after - before:+.0f} MiB; '
          f'largest relative error of an epoch\'s loss {worst:.1e}; '
          f'{us:.1f} µs for a step of a fit that only records')
    low, mid = recording()
    print(f'To record a batch (loss, weight, learning rate), and to fetch it: {mid:.2f} µs, at best {low:.2f}')
