"""Comparing, and what live views cost: `python benchmarks/compare.py [seconds]`

Seconds from `compare` to its picture for one record of ten million batches. Then live views in a Jupyter kernel, with
widgets, while another process appends to the records: the seconds between two updates, and the share of a core, beside
a cell that computes (of the thread that draws) and beside one that sleeps (of the whole kernel).
"""
import json, subprocess, sys, tempfile
from array import array
from base64 import b64encode
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from time import perf_counter, sleep, time

from jupyter_client.manager import start_new_kernel

import plain
from plain import timed
from trainer_nb.all import compare
from trainer_nb.runs.folder import RunFolder
from trainer_nb.runs.engine import now_here

VIEW = '''import json, time
from trainer_nb.all import attach, compare
from trainer_nb.runs.live import LiveCell
at = []
def counted(f): return lambda *args: (at.append(time.perf_counter()), f(*args))[1]
LiveCell.draw = counted(LiveCell.draw)
if {n} > 1:
    shown = compare({home!r})
    shown.show()
    thread = shown.view.thread
else:
    shown = attach({home!r} + '/run0')
    shown.show()
    thread = shown._view.thread
time.sleep(5)'''
LOOK = '''clock = time.pthread_getcpuclockid(thread.ident)
def clocks(): return time.perf_counter(), time.clock_gettime(clock), time.process_time()
start = clocks()
at[:] = start[:1]
while time.perf_counter() < start[0] + {seconds}: sum(range(10**5)) if {busy} else time.sleep(.2)
wall, drawing, whole = (b - a for a, b in zip(start, clocks()))
gaps = [b - a for a, b in zip(at, at[1:])] or [{seconds}]
print(json.dumps([gaps, drawing/wall, whole/wall]))'''

def make(path, state):
    folder = RunFolder(path)
    folder.make()
    folder.write('run.json', {'name': path.name, 'settings': {'lr': path.name}, 'n_metrics': 0})
    beat(folder, state)
    return folder


def beat(folder, state='running'):
    "Write the status, as a training does each second"
    folder.write('status.json', {'state': state, **now_here(), 'heartbeat': time(), 'batch': 1000, 'end': 10**6})


def column(values): return b64encode(array('d', values)).decode()


def append(folder, start, n):
    "Append an epoch of `n` batches to a record"
    e, end = start//n, start + n
    columns = {'train_loss': column(2/(1 + b/1e4) + .01*(b % 7) for b in range(start + 1, end + 1)),
               'lr': column([.001]*n)}
    row = {'valid_loss': 2/(1 + end/1e4)}
    rows = [{'kind': 'steps', 'batch': start + 1, 'after': [e, e, 0], 'columns': columns},
            {'kind': 'valid', 'batch': end, 'step': end, **row},
            {'kind': 'epoch', 'batch': end, 'epoch': e, 'train_loss': 2/(1 + end/1e4), **row, 'time_s': 1.}]
    with open(folder.path/'record'/'log.jsonl', 'a') as f: f.write(''.join(json.dumps(o) + '\n' for o in rows))


def feed(home, rate, each):
    "Be trainings of `rate` batches a second, and epochs of `each`, until the parent ends this process"
    folders, n = [RunFolder(o) for o in sorted(Path(home).iterdir())], each*(1000//each)
    while True:
        start = perf_counter()
        for folder in folders:
            append(folder, n, each)
            beat(folder)
        n += each
        sleep(max(start + each/rate - perf_counter(), 0))


def records(n):
    "The first line, for `n` batches"
    with tempfile.TemporaryDirectory() as home:
        folder = make(Path(home)/'long', 'done')
        for start in range(0, n, 10**5): append(folder, start, min(10**5, n - start))
        size = (folder.path/'record'/'log.jsonl').stat().st_size
        took = timed(lambda: compare(folder.path)._repr_html_())
        print(f'{n/1e6:g} million batches, {size/1e6:.0f} MB: {took:.1f} s\n', flush=True)


@contextmanager
def kernel():
    "A function that runs a cell in a new kernel and returns the JSON that it prints, if any"
    manager, client = start_new_kernel(extra_arguments=['--log-level=ERROR'])
    def run(code):
        said = []
        def take(o):
            if o['msg_type'] == 'stream' and o['content']['name'] == 'stdout': said.append(o['content']['text'])
        reply = client.execute_interactive(code, allow_stdin=True, timeout=300, output_hook=take)['content']
        if reply['status'] != 'ok': raise RuntimeError('\n'.join(reply['traceback']))
        lines = ''.join(said).splitlines()
        return json.loads(lines[-1]) if lines else None
    try: yield run
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def live(n, seconds, rate=100, each=100):
    "A row of the table: of `n` live runs"
    with tempfile.TemporaryDirectory() as home, kernel() as run:
        for i in range(n):
            folder = make(Path(home)/f'run{i}', 'running')
            for start in range(0, 1000, each): append(folder, start, each)
        feeder = subprocess.Popen([sys.executable, '-c', plain.program(f'compare.feed({home!r}, {rate}, {each})')])
        try:
            run(VIEW.format(n=n, home=home))
            (gaps, drawing, _), (calm, _, whole) = [run(LOOK.format(seconds=seconds, busy=o)) for o in (1, 0)]
        finally:
            feeder.kill()
            feeder.wait()
    what = f'`compare` of {n} live runs' if n > 1 else 'one live run'
    print(f'| {what} | {median(gaps):.2f} | {max(gaps):.2f} | {drawing:.2%} | {median(calm):.2f} | {whole:.2%} |',
          flush=True)


if __name__ == '__main__':
    seconds = plain.argument(12.)
    plain.heading()
    records(10**7)
    print('| view | s between updates, busy cell | most | core | s between updates, quiet cell | core, whole kernel |')
    print('| --- | ---: | ---: | ---: | ---: | ---: |', flush=True)
    for n in 1, 3, 8, 20: live(n, seconds)
