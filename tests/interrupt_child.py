"""A training that test_interrupt.py interrupts with real signals: `interrupt_child.py n_workers n_fits`

It prints the number of batches, training and validation, and the digest of a fit that nobody interrupts. Then come
`n_fits` fits of the same kind. Each prints a line when it starts and after each batch, and waits in its last batch for
a line on stdin, which the parent writes when it has sent its signal: so the signal always comes during `fit`. In the
end it prints the digest after `resume`, and what was not in order at the interrupt.
"""
import json, random, signal, sys, time
from os import getpid

import numpy, psutil, torch

from common import digest, make_learner, shuffled
from trainer_nb.all import Hook, TrainingInterrupted, accuracy


class Tell(Hook):
    "Says when the fit starts and each batch; in batch `last` it waits until the signal was sent"
    def __init__(self, last=None): self.n, self.last = 0, last
    def before_fit(self, learn):
        if self.last: print('start', flush=True)
    def after_step(self, learn):
        self.n += 1
        if self.last: print('batch', flush=True)
        if self.n == self.last: self.wait()
    def wait(self):
        if self.last: assert sys.stdin.readline() == 'sent\n'
        self.last = None

def draw(): return random.random(), numpy.random.rand(), torch.rand(3)

def start(n_workers, tell):
    random.seed(0)
    numpy.random.seed(0)
    torch.manual_seed(0)
    train_dl, valid_dl = (shuffled(seed=seed, num_workers=n_workers) for seed in (1, 2))
    learn = make_learner(train_dl=train_dl, valid_dl=valid_dl, metrics=[accuracy], hooks=[tell])
    learn.model[1].eval()       # the user's own modes, which come back
    return learn

def children(): return set(psutil.Process(getpid()).children(recursive=True))

def has_left(before):
    "Do all processes that were not there `before` end within 5 s?"
    end = time.monotonic() + 5
    while (left := children() - before) and time.monotonic() < end: time.sleep(.01)
    return not left

def faults(learn, model, before):
    "What is not in order after an interrupt"
    s, h = learn.state, learn.history
    checks = {
        'workers': has_left(before),
        'batch': learn.batch is learn.pred is learn.loss is learn.result is None,
        'cancelled': learn.cancelled == 'interrupt',
        'model': learn.model is model and [m.training for m in model] == [True, False, True, True],
        'handler': signal.getsignal(signal.SIGINT) is signal.default_int_handler,
        'gradients': all(p.grad is None for p in model.parameters()),
        'counters': s.optimizer_step == 5*s.epoch + s.batch_idx
        and s.samples_seen == 24*s.epoch + min(5*s.batch_idx, 24),
        'history': len(h.steps['train_loss'] if h.n_steps else ()) == s.optimizer_step and len(h) == s.epoch,
    }
    return [name for name, ok in checks.items() if not ok]

def main(n_workers, n_fits):
    before, plain = children(), Tell()
    learn = start(n_workers, plain)
    learn.fit(2, valid_every=2)
    print(plain.n, digest(learn), flush=True)
    for _ in range(n_fits):
        tell, wrong = Tell(last=plain.n), ['was not interrupted']
        learn = start(n_workers, tell)
        model = learn.model
        try: learn.fit(2, valid_every=2)
        except TrainingInterrupted:
            tell.wait()
            wrong = faults(learn, model, before)
            draw()
            learn.resume()
        print(json.dumps({'digest': digest(learn), 'wrong': wrong}), flush=True)

if __name__ == '__main__':
    signal.signal(signal.SIGINT, signal.default_int_handler)        # a parent may have had it ignored
    torch.set_num_threads(1)
    main(*map(int, sys.argv[1:]))
