"""What it takes to read tensors: `python benchmarks/loading.py [rounds]`

A pass over 20,000 samples of 16 float32 numbers and a label, shuffled, in batches of 64, without any training. The
loader of torch reads a `TensorDataset` sample by sample; a pass of this library over the same loader takes the rows of
a batch at once, with the same order and the same random numbers; a `TensorLoader` cuts batches out of larger blocks.
The ways are interleaved in one process; a figure is the median over the rounds.
"""
import platform, sys
from statistics import median

import torch
from torch.utils.data import DataLoader, TensorDataset

import plain
from trainer_nb.all import TensorLoader
from trainer_nb.data import Pass

x, y, BS = torch.randn(20_000, 16), torch.randint(10, (20_000,)), 64
dl, tensors = DataLoader(TensorDataset(x, y), BS, shuffle=True), TensorLoader(x, y, bs=BS, shuffle=True)


def read(make):
    def run():
        for batch in make(): pass
    return run


VARIANTS = {'`DataLoader`': lambda: dl, '`DataLoader`, in a fit': lambda: Pass(dl),
            '`TensorLoader`, in a fit': lambda: Pass(tensors)}

if __name__ == '__main__':
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    torch.set_num_threads(1)
    print(f'torch {torch.__version__}, Python {platform.python_version()}, {platform.machine()}, 1 thread, '
          f'{rounds} rounds\n')
    times = {name: ts[1:] for name, ts in plain.in_turn({k: read(f) for k, f in VARIANTS.items()}, rounds + 1).items()}
    base = times['`DataLoader`']
    print('| loader | µs per batch | times as fast |\n| --- | ---: | ---: |')
    for name, ts in times.items():
        print(f'| {name} | {median(ts)/len(dl)*1e6:.1f} | {median(b/t for t, b in zip(ts, base)):.1f} |')
