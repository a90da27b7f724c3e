"""What the live display costs, in a real Jupyter kernel: `python benchmarks/display.py [seconds]`

The display's share of the wall time, for steps of 50 µs, 1 ms and 100 ms, by comparing fits with and without a
display. In the first second, pictures come at once; after it, drawing has a budget of 2 %, which does not count what
the kernel sends. Then the milliseconds of an update when many steps are already recorded.
"""
from bisect import bisect_left
from statistics import median
from time import perf_counter

import torch
from torch import nn

import plain
from plain import timed
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
    learn = Spin(nn.Linear(1, 1), [torch.zeros(1, 1)]*100, train_step=step, display=display, device='cpu')
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
        valid = {'valid_loss': .5, 'valid_accuracy': .9}
        h.valid_rows.append({'batch': h.n_steps, 'epoch': e, 'step': 0, **valid})
        h.add_epoch({'epoch': e, 'train_loss': .5, 'train_accuracy': .9, **valid, 'lr': 1e-3, 'time_s': 1.})
    return h


def updates(h):
    "(median seconds of an update of a live display of `h`, of the last picture)"
    screen, plot, times = Notebook(), Plot(0, 1), []
    def update(): screen.draw(Status('running'), plot.chart(h.plot_data(), 2*h.n_steps), h.html())
    update()
    for _ in range(50):
        h.columns.extend(10, {'train_loss': torch.rand(10), 'lr': [1e-3]*10})
        times.append(timed(update))
    def end(): screen.end(Status('done'), plot.final(h.plot_data()), h.html(), h.text())
    end()       # matplotlib is loaded
    return median(times), timed(end)


def main(seconds):
    shares(seconds)
    print('\n| recorded steps | one update, ms | last picture, ms |\n| ---: | ---: | ---: |')
    for n in 1_000, 100_000, 1_000_000:
        update, last = updates(recorded(n))
        print(f'| {n:,} | {1000*update:.2f} | {1000*last:.0f} |')


if __name__ == '__main__':
    plain.heading()
    print(plain.in_a_kernel(f'display.main({plain.argument(3.)})'))
