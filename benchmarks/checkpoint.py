"""What a checkpoint costs: `python benchmarks/checkpoint.py [folder]`

How long a save blocks training, compared with `torch.save` and `fsync` in the loop. The state is one buffer of
that size, so a step costs nothing. For a resume, the time until the next batch is ready, by the number of
batches to skip, of 32 samples each; reading one costs about 1 ms.
"""
import os, sys, tempfile
from contextlib import closing, redirect_stdout
from pathlib import Path
from statistics import median
from time import perf_counter, sleep

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

import plain
from plain import timed
from trainer_nb.all import Checkpoint, LambdaHook, Learner, SeededLoader
from trainer_nb.data.passes import Pass

torch.set_num_threads(1)


class Big(nn.Module):
    "A small model that carries a large state"
    def __init__(self, n_bytes):
        super().__init__()
        self.lin = nn.Linear(16, 2)
        self.register_buffer('state', torch.rand(n_bytes//4))
    def forward(self, x): return self.lin(x)


def stalls(home, n_bytes, n_saves=5):
    "Seconds: the loop waits, the file is complete, `torch.save` takes; all medians"
    check, waits, totals = Checkpoint(home/'ours', keep=1), [], []
    def measure(learn):         # between two batches of a fit
        for _ in range(n_saves + 1):
            start = perf_counter()
            check.save(learn)
            waits.append(perf_counter() - start)
            check.finish()
            totals.append(perf_counter() - start)
    once = LambdaHook(before_epoch=lambda learn: learn.request(measure))
    learn = Learner(Big(n_bytes), (torch.rand(320, 16), torch.randint(2, (320,))), loss_fn=F.cross_entropy, lr=.01,
                    bs=32, hooks=[check, once], display=False)
    learn.fit(1)
    def by_hand():
        with open(home/'plain.pt', 'wb') as f:
            torch.save({'model': learn.model.state_dict(), 'opt': learn.opt.state_dict()}, f)
            f.flush()
            os.fsync(f.fileno())
    return median(waits[1:]), median(totals[1:]), median(timed(by_hand) for _ in range(n_saves))


class Slow(Dataset):
    def __len__(self): return 32*20_010
    def __getitem__(self, i):
        sleep(1e-3/32)
        return i


def resume_time(make_dl, n):
    "Seconds from an unread loader to its batch `n`"
    with closing(Pass(make_dl(Slow()))) as first:
        iter(first)
        first.n = n
        state = first.state_dict()
    with closing(Pass(make_dl(Slow()))) as second:
        second.load_state_dict(state)
        return timed(lambda: next(iter(second)))


def loader(cls, n): return lambda data: cls(data, batch_size=32, shuffle=True, num_workers=n)

LOADERS = {'DataLoader': loader(DataLoader, 0), 'SeededLoader, 2 workers': loader(SeededLoader, 2),
           'DataLoader, 2 workers (read again)': loader(DataLoader, 2)}

if __name__ == '__main__':
    plain.heading()
    print('| state | training waits, ms | the file is complete | `torch.save` in the loop |\n|---|---:|---:|---:|')
    with tempfile.TemporaryDirectory(dir=sys.argv[1] if len(sys.argv) > 1 else None) as home:
        for name, n_bytes in ('10 MB', 10**7), ('1 GB', 10**9):
            with redirect_stdout(sys.stderr): times = stalls(Path(home), n_bytes)
            print(f'| {name} | {" | ".join(f"{o*1000:,.1f}" for o in times)} |', flush=True)
    print(f'\n| batches to skip | {", ms | ".join(LOADERS)}, ms |\n|---|{"---:|"*len(LOADERS)}')
    for n in 0, 100, 1_000, 10_000:
        with redirect_stdout(sys.stderr): times = [resume_time(make_dl, n) for make_dl in LOADERS.values()]
        print(f'| {n:,} | {" | ".join(f"{o*1000:,.0f}" for o in times)} |', flush=True)
