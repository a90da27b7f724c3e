"""What `Accelerate` costs over a loop written by hand with torch's DDP: `python benchmarks/distributed.py [rounds]`

Two processes on the CPU, one thread each, gloo over loopback. An MLP (256 → 256 → 256 → 10, 0.13 M parameters)
on batches of 320 samples, 160 in each process, which takes about 5 ms a step; the data is a list in memory. The
variants are interleaved in the same two processes; a figure is the median over the rounds of the time of a fit of
one pass, divided by its steps. A fit compares the loss of its first batch with what one process computes: the
second row is without that (`check=False`).
"""
import gc, platform, sys
from statistics import median
from time import perf_counter

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from trainer_nb.all import Accelerate, Learner, accuracy
from trainer_nb.parallel.launch import forked

N_STEPS, BS = 1000, 320
torch.manual_seed(0)
batches = [(torch.randn(BS, 256), torch.randint(10, (BS,))) for _ in range(10)]*(N_STEPS//10)


def parts():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))
    return model, torch.optim.SGD(model.parameters(), lr=.01)

def by_hand():
    model, opt = parts()
    model, first = nn.parallel.DistributedDataParallel(model), dist.get_rank()*BS//2
    def one_pass():
        model.train()
        for xb, yb in batches:
            loss = F.cross_entropy(model(xb[first:first+BS//2]), yb[first:first+BS//2])
            loss.backward()
            opt.step()
            opt.zero_grad()
    return one_pass

def step(batch, learn):
    pred = learn.model(batch[0])
    return {'loss': F.cross_entropy(pred, batch[1]), 'pred': pred, 'targ': batch[1]}

def ours(check=True, **kwargs):
    model, opt = parts()
    learn = Learner(model, batches, loss_fn=None if 'train_step' in kwargs else F.cross_entropy, optim=opt,
                    display=False, hooks=[Accelerate(cpu=True, check=check)], **kwargs)
    return lambda: learn.fit(1)

VARIANTS = {'DDP by hand': by_hand, 'Accelerate, without comparison': lambda: ours(False), 'Accelerate': ours,
            'Accelerate, accuracy': lambda: ours(metrics=[accuracy]),
            'Accelerate, a step of its own': lambda: ours(train_step=step)}


def measure(rounds):
    "Median ms per step of each variant, and its ratio to the time by hand in the same round"
    passes = {name: make() for name, make in VARIANTS.items()}
    times = {name: [] for name in passes}
    for i in range(rounds + 1):
        order, k = [*passes.items()], i % len(passes)
        for name, one_pass in order[k:] + order[:k]:        # each in each place
            gc.collect()
            dist.barrier()
            start = perf_counter()
            one_pass()
            dist.barrier()
            if i: times[name].append((perf_counter() - start)/N_STEPS*1e3)     # the first round warms up
    base = times['DDP by hand']
    return {name: (median(ts), median(t/b for t, b in zip(ts, base))) for name, ts in times.items()}


if __name__ == '__main__':
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    print(f'torch {torch.__version__}, Python {platform.python_version()}, {platform.machine()}, '
          f'{rounds} rounds of {N_STEPS} steps\n', flush=True)
    print('| variant | ms per step | × by hand |\n| --- | ---: | ---: |')
    for name, (ms, ratio) in forked(lambda: measure(rounds), 2, 300).items():
        print(f'| {name} | {ms:.3f} | {ratio:.3f} |')
