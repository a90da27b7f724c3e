"""What `Accelerate` costs over a loop written by hand with torch's DDP: `python benchmarks/distributed.py [rounds]`

Two processes on the CPU, one thread each, gloo over loopback. An MLP (256 → 256 → 256 → 10, 0.13 M parameters) on
batches of 320 samples, 160 in each process; the data is a list in memory. The variants take turns in the same two
processes; passes have 1,000 steps. A fit compares the loss of its first batch with what one process computes: the
second row is without that (`check=False`).
"""
import gc

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

import plain
from trainer_nb.all import Accelerate, Learner, accuracy
from trainer_nb.parallel.launch import forked

N_STEPS, BS = 1000, 320
torch.set_num_threads(1)
torch.manual_seed(0)
batches = [(torch.randn(BS, 256), torch.randint(10, (BS,))) for _ in range(10)]*(N_STEPS//10)


def parts():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))
    return model, torch.optim.SGD(model.parameters(), lr=.01)

def by_hand():
    model, opt = parts()
    rows = slice(dist.get_rank()*BS//2, (dist.get_rank() + 1)*BS//2)
    own = [(x[rows], y[rows]) for x, y in batches]
    model = nn.parallel.DistributedDataParallel(model)
    return lambda: plain.one_pass(own, model, opt)

def step(batch, learn):
    pred = learn.model(batch[0])
    return {'loss': F.cross_entropy(pred, batch[1]), 'pred': pred, 'targ': batch[1]}

def ours(check=True, loss_fn=F.cross_entropy, **kwargs):
    model, opt = parts()
    learn = Learner(model, batches, loss_fn=loss_fn, optim=opt, display=False,
                    hooks=[Accelerate(cpu=True, check=check)], **kwargs)
    return lambda: learn.fit(1)

def measured(rounds):
    passes = {'DDP by hand': by_hand(), 'Accelerate, without comparison': ours(False), 'Accelerate': ours(),
              'Accelerate, accuracy': ours(metrics=[accuracy]),
              'Accelerate, a step of its own': ours(loss_fn=None, train_step=step)}
    def before():
        gc.collect()
        dist.barrier()
    def clock(f): return plain.timed(lambda: (f(), dist.barrier()))
    return plain.in_turn(passes, rounds, before=before, clock=clock)


if __name__ == '__main__':
    rounds = plain.argument(4)
    plain.heading(f'{rounds} rounds')
    plain.table(forked(lambda: measured(rounds), 2, 600), lambda _: 'DDP by hand', 'a step', 'ms', 1e3/N_STEPS)
