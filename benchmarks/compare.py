"""Comparing: `python benchmarks/compare.py [millions of batches] [seconds]`

Seconds from `compare` to its picture for one record of ten million batches, with and without the curves that a run
writes beside it; and the share of a core that a live comparison of eight runs takes, while another process appends to
their records.
"""
import json, os, platform, subprocess, sys, tempfile
from pathlib import Path
from time import perf_counter, sleep, thread_time

import torch

from trainer_nb.all import compare
from trainer_nb.runs.comparison import CompareView
from trainer_nb.runs.folder import RunFolder
from trainer_nb.runs.process import now_here

STEP = '{{"kind": "step", "batch": {b}, "epoch": 0, "train_loss": {v:.6f}, "lr": 0.001}}\n'
FEED = 'import sys; sys.path.insert(0, {!r}); import compare; compare.feed({!r}, {}, {})'


def make(path, state):
    folder = RunFolder(path)
    folder.make()
    folder.write('run.json', {'name': path.name, 'settings': {'lr': path.name}})
    folder.write('status.json', {'state': state, **now_here(), 'heartbeat': 4e9})
    return folder


def append(folder, start, n):
    "Append `n` batches to a record, and a validation"
    with open(folder.path/'record'/'log.jsonl', 'a') as f:
        for b in range(start + 1, start + n + 1): f.write(STEP.format(b=b, v=2/(1 + b/1e4) + .01*(b % 7)))
        f.write(json.dumps({'kind': 'valid', 'batch': b, 'step': b, 'valid_loss': 2/(1 + b/1e4)}) + '\n')


def feed(home, seconds, rate):
    "Be eight trainings of `rate` batches a second"
    folders, start, n = [RunFolder(o) for o in sorted(Path(home).iterdir())], perf_counter(), 0
    while perf_counter() < start + seconds:
        for folder in folders: append(folder, n, rate//5)
        n += rate//5
        sleep(.2)


def opened(path):
    "Seconds until the picture is there"
    start = perf_counter()
    compare(path).html()
    return perf_counter() - start


def live(home, seconds, rate=500):
    "(share of a core in the thread that draws, share of the wall time, updates) of a live comparison of eight runs"
    for i in range(8): append(make(Path(home)/f'run{i}', 'running'), 0, 1000)
    view = CompareView(compare(home))
    code = FEED.format(str(Path(__file__).parent), str(home), seconds, rate)
    process = subprocess.Popen([sys.executable, '-c', code])
    start, cpu = perf_counter(), thread_time()
    view.budget.opened = start
    view.drawn = counted = Counted(view.drawn)
    while process.poll() is None:
        if view.budget.first_s is None or view.budget.is_due: view._draw()
        sleep(view.tick_s)
    wall = perf_counter() - start
    return (thread_time() - cpu)/wall, view.budget.time_s/wall, counted.n, wall


class Counted:
    "A function that counts its calls"
    def __init__(self, f): self.f, self.n = f, 0
    def __call__(self):
        self.n += 1
        return self.f()


if __name__ == '__main__':
    millions = float(sys.argv[1]) if len(sys.argv) > 1 else 10.
    seconds = float(sys.argv[2]) if len(sys.argv) > 2 else 60.
    n = int(millions*1e6)
    print(f'torch {torch.__version__}, Python {platform.python_version()}, {os.cpu_count()} cores\n')
    with tempfile.TemporaryDirectory() as home:
        folder = make(Path(home)/'long', 'done')
        for start in range(0, n, 10**5): append(folder, start, min(10**5, n - start))
        size = (folder.path/'record'/'log.jsonl').stat().st_size
        first = opened(folder.path)
        compare(folder.path).sources[0].file.save(always=True)
        second = min(opened(folder.path) for _ in range(3))
        print(f'| {millions:g} million batches, {size/1e6:.0f} MB | s |\n| --- | ---: |')
        print(f'| no curves beside the record: read whole, once | {first:.1f} |')
        print(f'| with the curves that a run writes along | {second:.2f} |\n', flush=True)
    with tempfile.TemporaryDirectory() as home:
        cpu, wall, n, passed = live(Path(home), seconds)
        print(f'eight live runs at 500 batches a second, {passed:.0f} s: {100*cpu:.2f} % of a core in the thread that '
              f'draws, {100*wall:.2f} % of the wall time after the first second, {n} updates')
