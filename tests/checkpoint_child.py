"""Trainings that test_checkpoint.py stops, each in a process of its own: a line of JSON on stdin tells which, a line
on stdout how it ended

The program imports torch once, and forks for every line. A process writes each batch into `log`: what it was, its
sample ids, its loss.
"""
import json, os, random, signal, sys, threading, time, traceback, warnings
from contextlib import nullcontext
from pathlib import Path

import numpy, torch, torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

from common import digest, problem
from trainer_nb.all import Checkpoint, GradAccum, Hook, Learner, SeededLoader, TrainingInterrupted, accuracy


class Noisy(Dataset):
    "The small problem, with noise from all three global generators, and the samples' ids"
    def __init__(self, n, seed, aug):
        self.x, self.y = problem(n, seed)
        self.aug = aug
    def __len__(self): return len(self.x)
    def __getitem__(self, i):
        noise = .1*(torch.rand(4) + random.random() + float(numpy.random.rand())) if self.aug else 0
        return self.x[i] + noise, i, self.y[i]

class Spread:
    "A metric with a state that is no mean"
    def reset(self): self.low, self.high, self.seen = torch.tensor(torch.inf), torch.tensor(-torch.inf), []
    def update(self, pred, targ):
        self.low, self.high = torch.minimum(self.low, pred.min()), torch.maximum(self.high, pred.max())
        self.seen = [*self.seen, len(targ)]
    def compute(self): return self.high - self.low + len(self.seen)

class Log(Hook):
    def __init__(self, path): self.path = path
    def after_step(self, learn):
        s = learn.state
        key = f'{s.epoch} {s.batch_idx} ' + ('train' if learn.training else f'valid {learn.valid_idx}')
        with open(self.path, 'a') as f: f.write(f'{key}: {learn.batch[1].tolist()} {learn.loss.item().hex()}\n')

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
    def step(batch, learn):
        x, _, y = batch
        with torch.autocast('cpu', torch.bfloat16) if c.get('amp') else nullcontext(): pred = learn.model(x)
        return {'loss': F.cross_entropy(pred.float(), y), 'pred': pred, 'targ': y}
    cls, own = SeededLoader if c.get('seeded') else DataLoader, {'num_workers': c.get('workers', 0)}
    if c.get('persistent'): own['persistent_workers'] = True
    dls = [cls(Noisy(24, seed, c.get('aug')), batch_size=bs, shuffle=True, **own) for seed, bs in ((1, 5), (2, 7))]
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Dropout(.5), nn.Linear(8, 3))
    if c.get('big'): model.register_buffer('big', torch.rand(c['big']))
    if c.get('accum'): hooks = GradAccum(2), *hooks
    return Learner(model, *dls, train_step=step, lr=.01, metrics=[accuracy, Spread()], hooks=hooks, display=False)

def run(c):     # its code at the end
    hooks = [Checkpoint(c['folder'], every=c['every'], keep=2), Log(c['log'])]
    if stop := c.get('stop'): hooks.append(StopAt(**stop))
    learn = start(c, *hooks)
    warnings.simplefilter('error')
    warnings.filterwarnings('ignore', '.*has persistent workers')       # these samples draw nothing
    warnings.filterwarnings('ignore', 'This DataLoader will create')    # where there is one CPU
    if after := c.get('kill_after'): threading.Timer(after, os.kill, (os.getpid(), signal.SIGKILL)).start()
    try:
        learn.fit(c.get('n_epochs', 2), valid_every=c.get('valid_every'), valid_first=bool(c.get('valid_first')),
                  resume=True)
    except TrainingInterrupted: return 3
    except ZeroDivisionError: return 4
    if after: time.sleep(60)
    Path(c['log'] + '.digest').write_text(digest(learn))
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
