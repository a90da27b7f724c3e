"""What the live display costs, in a real Jupyter kernel: `python benchmarks/display.py [seconds]`

The display's share of the wall time, for steps of 50 µs, 1 ms and 100 ms, by comparing fits with and without a
display. In the first second, pictures come at once; after it, the budget of 2% holds.
Then the milliseconds of an update when many steps are already recorded, compared with a redraw by pyplot, as in
other trainers.
"""
import platform, sys
from bisect import bisect_left
from pathlib import Path
from statistics import median
from time import perf_counter

import torch
from torch import nn

from trainer_nb.all import History, Learner
from trainer_nb.draw import Plot
from trainer_nb.show import Notebook, Status

torch.set_num_threads(1)


class Spin(Learner):
    "A loop whose step takes as long as we like: nothing is computed"
    def do_backward(self, loss): pass
    def do_opt_step(self): return True


def fit(step_s, seconds, display):
    "(seconds of a step in the first second, after it, and the updates a second)"
    clock, loss = [], torch.tensor(1.)
    def step(batch, learn):
        clock.append(perf_counter())
        while perf_counter() < clock[-1] + step_s: pass
        return {'loss': loss}
    model = nn.Linear(1, 1)
    learn = Spin(model, [torch.zeros(1, 1)]*100, train_step=step, display=display, device='cpu')
    learn.fit(max_steps=max(int(seconds/step_s), 5))
    n = bisect_left(clock, clock[0] + 1)
    first, rest = (clock[n] - clock[0])/n, (clock[-1] - clock[n])/(len(clock) - n - 1)
    return first, rest, learn.display.budget.n/(clock[-1] - clock[0]) if display else None


def shares(seconds, rounds=7):
    print('| step | updates a second | share of the time | in the first second |')
    print('| --- | ---: | ---: | ---: |')
    for step_s, name in (50e-6, '50 µs'), (1e-3, '1 ms'), (.1, '100 ms'):
        runs = [(fit(step_s, seconds, 'html'), fit(step_s, seconds, False)) for _ in range(rounds)]
        first, rest = (median(1 - without[i]/shown[i] for shown, without in runs) for i in (0, 1))
        print(f'| {name} | {median(shown[-1] for shown, _ in runs):.1f} | {rest:.2%} | {first:.2%} |')


def recorded(n, n_epochs=10):
    "A history of `n` batches"
    h = History()
    for e in range(n_epochs):
        h.columns.extend(n//n_epochs, {'train_loss': torch.rand(n//n_epochs), 'lr': [1e-3]*(n//n_epochs)})
        h.valid_rows.append({'batch': h.n_steps, 'epoch': e, 'step': 0, 'valid_loss': .5, 'valid_accuracy': .9})
        h.add_epoch({'epoch': e, 'train_loss': .5, 'train_accuracy': .9, 'valid_loss': .5,
                     'valid_accuracy': .9, 'lr': 1e-3, 'time_s': 1.})
    return h


def timed(f):
    start = perf_counter()
    f()
    return 1000*(perf_counter() - start)


def updates(n_updates=50):
    print('\n| recorded steps | one update, ms | last picture, ms |\n| ---: | ---: | ---: |')
    histories = {n: recorded(n) for n in (1000, 100_000, 1_000_000)}
    shown, times = {n: (Notebook(), Plot(0, 1)) for n in histories}, {n: [] for n in histories}
    def update(n):
        (screen, plot), h = shown[n], histories[n]
        screen.draw(Status('running'), plot.chart(h.plot_data(), 2*n), h.html())
    def end(n):
        (screen, plot), h = shown[n], histories[n]
        screen.end(Status('done'), plot.final(h.plot_data()), h.html(), h.text())
    for n in histories: update(n)
    for _ in range(n_updates):
        for n, h in histories.items():
            h.columns.extend(10, {'train_loss': torch.rand(10), 'lr': [1e-3]*10})
            times[n].append(timed(lambda: update(n)))       # noqa: B023
    end(1000)       # matplotlib is loaded
    for n in histories: print(f'| {n:,} | {median(times[n]):.2f} | {timed(lambda: end(n)):.0f} |')      # noqa: B023


def pyplot(n=1000, n_updates=20):
    import matplotlib.pyplot as plt
    from IPython.display import display
    fig, ax = plt.subplots(figsize=(6, 4))
    handle, losses = display(fig, display_id=True), torch.rand(n).tolist()
    def redraw():
        ax.clear()
        ax.plot(losses)
        handle.update(fig)
    redraw()
    times = [timed(redraw) for _ in range(n_updates)]
    plt.close(fig)
    print(f'\nA redraw by pyplot, {n:,} points: {median(times):.0f} ms')


def in_a_kernel(call):
    "Run `call`, of a module beside this one, in a kernel; returns what it printed"
    import nbformat
    from nbclient import NotebookClient
    code = f'import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})\nimport {call.split(".")[0]}\n{call}'
    nb = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code)])
    NotebookClient(nb, timeout=None, kernel_name='python3').execute()
    return ''.join(o.text for o in nb.cells[0].outputs if o.output_type == 'stream')


def all_of_it(seconds):
    shares(seconds)
    updates()
    pyplot()


if __name__ == '__main__':
    print(f'torch {torch.__version__}, Python {platform.python_version()}, {platform.machine()}, 1 thread\n')
    print(in_a_kernel(f'display.all_of_it({float(sys.argv[1]) if len(sys.argv) > 1 else 5})'))
