"""Trainings that test_checkpoint.py stops, each in a process of its own: a line of JSON on stdin tells which, a line
on stdout how it ended. The program imports torch once, and forks for every line."""
import json, os, random, signal, sys, threading, time, traceback, warnings
from pathlib import Path

import numpy, torch, torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from common import Share, digest, problem
from trainer_nb.all import AMP, Checkpoint, GradAccum, Hook, Learner, SeededLoader, TrainingInterrupted, accuracy


class Noisy(TensorDataset):
    "Samples with noise from all three global generators"
    def __getitem__(self, i):
        x, y = super().__getitem__(i)
        return x + .1*(torch.rand(4) + random.random() + float(numpy.random.rand())), y

class StopAt(Hook):
    """At the `n`-th call of an event, counted over training and validation, ends the process,
    or lets something end the fit"""
    def __new__(cls, event=None, **kwargs): return super().__new__(type('StopAt', (cls,), {event: cls.count}))
    def __init__(self, event, n, kind): self.n, self.kind = n, kind
    def count(self, learn):
        self.n -= 1
        if self.n: return
        if self.kind == 'error': raise ZeroDivisionError('on purpose')
        os.kill(os.getpid(), {'kill': signal.SIGKILL, 'interrupt': signal.SIGINT}[self.kind])

def start(c, *hooks):
    # what is resumed had other weights and random numbers before
    seed = c.get('seed', 0) if 'folder' in c and any(Path(c['folder']).glob('*.pt')) else 0
    random.seed(seed)
    numpy.random.seed(seed)
    torch.manual_seed(seed)
    cls, data = SeededLoader if c.get('seeded') else DataLoader, Noisy if c.get('aug') else TensorDataset
    own = {'num_workers': c.get('workers', 0), 'persistent_workers': bool(c.get('persistent'))}
    dls = [cls(data(*problem(24, seed)), batch_size=bs, shuffle=True, **own) for seed, bs in ((1, 5), (2, 7))]
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Dropout(.5), nn.Linear(8, 3))
    if c.get('big'): model.register_buffer('big', torch.rand(c['big']))
    if c.get('accum'): hooks = GradAccum(2), *hooks
    if c.get('amp'): hooks = AMP(), *hooks
    return Learner(model, *dls, loss_fn=F.cross_entropy, lr=.01, metrics=[accuracy, Share()], hooks=hooks,
                   display=False)

def run(c):
    "Train, and return the code that the process ends with"
    hooks = [Checkpoint(c['folder'], every=c['every'], keep=2)]
    if stop := c.get('stop'): hooks.append(StopAt(**stop))
    learn = start(c, *hooks)
    warnings.simplefilter('error')
    warnings.filterwarnings('ignore', '.*numbers that they draw')        # here they draw none
    warnings.filterwarnings('ignore', 'This DataLoader will create')    # where there is one CPU
    if after := c.get('kill_after'): threading.Timer(after, os.kill, (os.getpid(), signal.SIGKILL)).start()
    try:
        learn.fit(c.get('n_epochs', 2), valid_every=c.get('valid_every'), valid_first=bool(c.get('valid_first')),
                  resume=True)
    except TrainingInterrupted: return 3
    except ZeroDivisionError: return 4
    if after: time.sleep(60)
    Path(c['folder'], 'digest').write_text(digest(learn))
    return 0

def main():
    torch.set_num_threads(1)
    start({}).fit(1)        # what torch imports at the first step is imported once
    for line in sys.stdin:
        if (pid := os.fork()) == 0:
            os.setsid()
            sys.stdout, code = open(os.devnull, 'w'), 1
            try: code = run(json.loads(line))
            except BaseException: traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(code)
        _, status = os.waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)

if __name__ == '__main__': main()
