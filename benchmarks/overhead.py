"""What `Learner` costs per step: `python benchmarks/overhead.py [rounds]`

A tiny MLP (16 → 32 → 2), batches of 32 that are ready in a list, SGD, one thread. The variants and the raw loop
are interleaved in one process; a figure is the median over the rounds of the time of one pass, divided by its
steps.
"""
import platform, sys
from statistics import median

import torch
import torch.nn.functional as F

import plain
from plain import parts
from trainer_nb.all import Hook, Learner, accuracy

N_STEPS = 500
torch.set_num_threads(1)
torch.manual_seed(0)
batches = plain.batches(N_STEPS)


class NoOp(Hook):
    "Listens to what a busy hook listens to, and does nothing"
    def before_step(self, learn): pass
    def after_loss(self, learn): pass
    def after_backward(self, learn): pass
    def after_step(self, learn): pass


def ours(**kwargs):
    model, opt = parts()
    learn = Learner(model, batches, loss_fn=F.cross_entropy, optim=opt, **{'display': False, **kwargs})
    return lambda: learn.fit(1)


VARIANTS = {
    'raw loop': lambda: plain.by_hand(*parts(), batches),
    'bare': ours,
    'five no-op hooks': lambda: ours(hooks=[NoOp() for _ in range(5)]),
    'accuracy and history': lambda: ours(metrics=[accuracy]),
    'accuracy, history, default display': lambda: ours(metrics=[accuracy], display=True),
}


def measure(rounds):
    "Median µs per step of each variant, and its ratio to the raw loop's time in the same round"
    times = plain.in_turn({name: plain.quiet(make()) for name, make in VARIANTS.items()}, rounds + 1)
    times = {name: [t/N_STEPS*1e6 for t in ts[1:]] for name, ts in times.items()}       # the first round warms up
    base = times['raw loop']
    return {name: (median(ts), median(t/b for t, b in zip(ts, base))) for name, ts in times.items()}


if __name__ == '__main__':
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 40
    print(f'torch {torch.__version__}, Python {platform.python_version()}, {platform.machine()}, '
          f'1 thread, {rounds} rounds of {N_STEPS} steps\n')
    res = measure(rounds)
    base = res['raw loop'][0]
    print('| variant | µs per step | over raw, µs | × raw |\n| --- | ---: | ---: | ---: |')
    for name, (us, ratio) in res.items(): print(f'| {name} | {us:.1f} | {us - base:+.1f} | {ratio:.3f} |')
