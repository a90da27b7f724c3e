"""What `Fingerprint` costs: `python benchmarks/fingerprint.py`

Milliseconds per training batch, one thread, AdamW, the fastest of five fits of 30 batches: without the hook, with every
batch recorded in memory, and with one batch in ten. Each fit begins with a description of what was set, which is not
counted. In brackets: times as long as without. The last column is the size of a record of one batch.
"""
import json
from time import perf_counter

import torch, torch.nn.functional as F
from torch import nn

from trainer_nb.all import Fingerprint, Hook, Learner
from trainer_nb.base import hashes

torch.set_num_threads(1)


class Clock(Hook):
    "Seconds from the first batch to the last"
    def before_epoch(self, learn): self.start = perf_counter()
    def after_epoch(self, learn): self.time_s = perf_counter() - self.start


def mlp(width, depth):
    layers = [o for _ in range(depth) for o in (nn.Linear(width, width), nn.ReLU())]
    return nn.Sequential(*layers, nn.Linear(width, 10))


def batch_ms(width, depth, hooks, n=30):
    torch.manual_seed(0)
    x, y = torch.randn(n*32, width), torch.arange(n*32) % 10
    clock = Clock()
    learn = Learner(mlp(width, depth), (x, y), loss_fn=F.cross_entropy, bs=32, display=False, hooks=[clock, *hooks])
    learn.fit(1)
    return 1000*clock.time_s/n


def fastest(*args): return min(batch_ms(*args[:-1], args[-1]()) for _ in range(5))


def hashed_gb_s():
    t = torch.randn(2**25)
    start = perf_counter()
    hashes([t])
    return t.nbytes/1e9/(perf_counter() - start)


if __name__ == '__main__':
    print(f'torch {torch.__version__}, hashes read {hashed_gb_s():.2f} GB/s\n')
    print('| parameters | layers | without | every batch | one in ten | bytes of a record |\n|---|---|---|---|---|---|')
    for width, depth in ((32, 2), (128, 20), (1024, 4)):
        n = sum(p.numel() for p in mlp(width, depth).parameters())
        times = [fastest(width, depth, f) for f in (tuple, lambda: [Fingerprint()], lambda: [Fingerprint(every=10)])]
        batch_ms(width, depth, [fp := Fingerprint()])
        size = sum(len(json.dumps(vars(o))) for o in fp.points.values())//30
        cells = [f'{times[0]:.2f} ms', *(f'{o:.2f} ms ({o/times[0]:.1f} ×)' for o in times[1:])]
        print(f'| {n:,} | {2*depth + 1} | ' + ' | '.join(cells) + f' | {size:,} |')
