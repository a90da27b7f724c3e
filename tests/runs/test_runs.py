"Runs: training in another process gives the numbers of `fit`, outlives the kernel, and opens nothing to anybody"
import os, random, re, signal, stat, subprocess, sys
from pathlib import Path

import numpy as np
import pytest, torch, torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader

from common import Noisy, Share, Slow, batches, equal, make_learner, problem, record, shuffled, until
from trainer_nb.all import (EMA, EarlyStopping, GradAccum, GradClip, Hook, LambdaHook, Learner, LRScheduler, OneCycle,
                            Run, attach, runs)
from trainer_nb.base import rng_state

here = Path(__file__).parents[1]

def status_of(run): return run.folder.read('status.json')

def started(learn, n_epochs, folder, n=0, **kwargs):
    "A run in a process, once it has trained more than `n` batches"
    run = learn.start(n_epochs, folder=folder, **kwargs)
    until(lambda: run.history.n_steps > n)
    return run

def kill(run):
    os.kill(status_of(run)['pid'], signal.SIGKILL)
    until(lambda: run.status == 'died')

def stop(run):
    run.stop()
    run.wait(300)

def trainer(*hooks):
    torch.manual_seed(0)
    x = torch.randn(64, 4)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(.2), nn.Linear(8, 1))
    return Learner(model, (x, x[:, :1]), (x, x[:, :1]), loss_fn=F.mse_loss, bs=4, lr=.01, display=False, hooks=[*hooks])

def python(*args, cwd):
    "A process, with what it prints"
    env = {**os.environ, 'PYTHONPATH': os.pathsep.join(map(str, (here.parent, here, here/'runs', here/'parallel')))}
    return subprocess.Popen([sys.executable, *args], cwd=cwd, stdout=subprocess.PIPE, env=env, text=True)


# ---- kinds of learners -----------------------------------------------------------------------------------------------

def plain(**kwargs): return make_learner(valid_dl=batches(seed=2), **kwargs)

class Count:
    n = 0
    def state_dict(self): return {'n': self.n}
    def load_state_dict(self, state): self.n = state['n']

def gan():
    "Two optimizers, an object of the user's, and workers"
    g, d, count = nn.Linear(2, 4), nn.Linear(4, 1), Count()
    data = DataLoader(Noisy(*problem()), 5, shuffle=True, num_workers=2)
    def step(batch, learn):
        count.n += 1
        fake = g(torch.randn(len(batch[0]), 2))
        yield 'd', F.softplus(-d(batch[0])).mean() + F.softplus(d(fake.detach())).mean()
        yield 'g', F.softplus(-d(fake)).mean()*count.n
    return Learner(nn.ModuleDict({'g': g, 'd': d}), data, train_step=step, state=[count], display=False,
                   optim={'g': torch.optim.Adam(g.parameters(), 1e-2), 'd': torch.optim.Adam(d.parameters(), 1e-2)})

def local_classes():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = self.b = nn.Linear(4, 4)       # tied
            self.out = nn.Linear(4, 3)
        def forward(self, x): return self.out(self.b(torch.tanh(self.a(x))) + torch.randn(1))
    class Shake(Hook):
        def after_backward(self, learn):
            for p in learn.model.parameters(): p.grad += .01*random.random()
    return plain(model=Net(), hooks=[Shake()])

def second_fit():
    schedule = LRScheduler(lambda opt: torch.optim.lr_scheduler.CosineAnnealingLR(opt, 30))
    learn = plain(optim=torch.optim.SGD, lr=.1, hooks=[EMA(.9), schedule])
    learn.opt.param_groups[0]['momentum'] = .9
    learn.fit(1)
    return learn

def lbfgs(): return make_learner(train_dl=batches(), optim=lambda ps: torch.optim.LBFGS(ps, max_iter=3))

def early_stopping(): return plain(hooks=[EarlyStopping(patience=1, restore_best=True)], lr=.5), {'n_epochs': 6}

def much():
    "BatchNorm, a generator of its own, hooks, a metric object"
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    learn = plain(model=model, train_dl=shuffled(generator=torch.Generator().manual_seed(5)), metrics=[Share()],
                  hooks=[GradAccum(3), GradClip(.5), EMA(.9)])
    return learn, {'n_epochs': 3, 'hooks': [OneCycle(.1)]}

def made(kind):
    "A learner and the arguments of its fit, the same each time"
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
    res = kind()
    return res if isinstance(res, tuple) else (res, {'n_epochs': 2})

def everything(learn):
    "All that a fit leaves"
    state = {'model': learn.model.state_dict(), 'opts': {k: o.state_dict() for k, o in learn.opts.items()},
             'state': repr(learn.state), 'rng': repr(rng_state()),
             'hooks': {h.name: h.state_dict() for h in learn.hooks if h.name != 'Checkpoint'},
             'modes': [m.training for m in learn.model.modules()]}
    return state, record(learn)

def check_equal(a, b):
    "Two learners, or what `everything` has found"
    for x, y in zip(*(o if isinstance(o, tuple) else everything(o) for o in (a, b))):
        for k in x: assert equal(x[k], y[k]), k

@pytest.mark.parametrize('kind', [much, gan, local_classes, second_fit, lbfgs, early_stopping])
def test_equals_fit(kind, warm, tmp_path):
    learn, kwargs = made(kind)
    run = learn.start(**kwargs, folder=tmp_path/'a')
    expected, kwargs = made(kind)
    expected.fit(**kwargs)
    left = everything(expected)
    torch.randn(100), random.random(), np.random.rand()         # other cells
    run.wait(300)
    assert run.status == 'done' and run.history.n_steps == expected.history.n_steps
    check_equal(left, learn)
    assert equal(learn.history.steps, run.history.steps)


# ---- what ends, and what does not ------------------------------------------------------------------------------------

NOTEBOOK = '''
import time, torch
from torch import nn
from trainer_nb.all import Hook, Learner
from beside import Net      # a file that lies there

class Shake(Hook):
    def after_backward(self, learn):
        time.sleep(.04)
        for p in learn.model.parameters(): p.grad += .01*torch.randn(p.shape)

def make():
    torch.manual_seed(0)
    x = torch.randn(64, 4)
    return Learner(Net(4, 1), (x, x[:, :1]), (x, x[:, :1]), loss_fn=nn.MSELoss(), bs=4, display=False, hooks=[Shake()])
'''
STARTS = '''
make().start(4, folder='a')
print('started', flush=True)
time.sleep(600)
'''

def test_kernel_dies(tmp_path, monkeypatch):
    """kill -9 of the kernel: the run trains on, private and without ports, another kernel elsewhere sees every point,
    and the end is bit-equal. There its learner works, with what lay beside the notebook"""
    (home := tmp_path/'home').mkdir()
    (home/'beside.py').write_text('from torch import nn\nclass Net(nn.Linear): pass\n')
    process = python('-c', NOTEBOOK + STARTS, cwd=home)
    try:
        while process.stdout.readline() != 'started\n': pass
        run = Run(home/'a')
        until(lambda: run.history.n_steps > 5)
    finally:
        process.kill()
        process.communicate()
    n = run.history.n_steps
    run = attach(home/'a')
    assert run.status == 'running' and run.history.n_steps >= n and stat.S_IMODE(run.path.stat().st_mode) == 0o700
    pid = status_of(run)['pid']
    files = [os.readlink(o) for o in Path(f'/proc/{pid}/fd').iterdir() if o.is_symlink()]
    assert os.getsid(pid) == pid != os.getsid(0) and not [o for o in files if o.startswith('socket:')]
    assert len(run.predict(torch.ones(3, 4))) == 3 and run.validate()
    run.wait(300)
    assert type((learn := run.learner()).model).__module__ == 'beside'
    monkeypatch.syspath_prepend(home)
    exec(NOTEBOOK, scope := {'__name__': 'notebook'})
    (expected := scope['make']()).fit(4)
    check_equal(expected, learn)
    assert run.history.steps == expected.history.steps and len(run.history) == 4
    del sys.modules['beside']

def test_worker_dies(warm, tmp_path):
    """kill -9 of the worker: seen at once, and a restart ends bit-equal, from a checkpoint as from the beginning.
    One that was stopped is suspended, and runs on"""
    learn = trainer(Slow())
    run = learn.start(5, folder=tmp_path/'a')
    for at in 8, 30:
        until(lambda: run.history.n_steps > at)
        if at == 30: run.checkpoint().wait()
        for signum, status in (signal.SIGSTOP, 'suspended'), (signal.SIGCONT, 'running'):
            os.kill(status_of(run)['pid'], signum)
            until(lambda: run.status == status)
        kill(run)
        assert 'ended unexpectedly' in run.error
        with pytest.raises(RuntimeError, match='restart'): run.wait(1)
        with pytest.raises(RuntimeError, match='takes no request'): run.pause()
        run.restart()
    run.wait(300)
    assert 'resumes from' in run.output
    (expected := trainer(Slow(0))).fit(5)
    check_equal(expected, learn)
    assert run.history.steps == expected.history.steps and run.history.ends == expected.history.ends

def test_requests(warm, tmp_path):
    run = started(learn := trainer(Slow()), 50, tmp_path/'a')
    run.pause().wait()
    with pytest.raises(RuntimeError, match='paused.*nothing to restart'): run.restart()
    n, weights = run.history.n_steps, run.weights()
    run.set_lr(.5).wait()
    assert run.request(lambda learn: learn.opt.param_groups[0]['lr']).wait() == '0.5'
    with pytest.raises(RuntimeError, match='ZeroDivisionError'): run.request(lambda learn: 1/0).wait()
    pred = run.predict(x := torch.randn(3, 4))
    assert run.history.n_steps == n and run.status == 'paused'
    learn.model.load_state_dict(weights)
    assert torch.equal(pred, learn.predict(x)) and run.validate().keys() == {'valid_loss'}
    run.unpause().wait()
    until(lambda: run.history.n_steps > n and len(run.history.flags) == 2)
    assert run.history.steps['lr'][-1] == .5
    (at, rate), (end, pause) = run.history.flags        # while it trains, too
    assert (at, rate, end) == (n, 'lr → 0.5', n) and re.fullmatch(r'paused 00:\d\d', pause)
    stop(run)
    assert run.status == 'stopped' and learn.stopped is not None and learn.history.n_steps == run.history.n_steps
    assert learn.history.flags == run.history.flags
    with pytest.raises(RuntimeError, match='takes no request'): run.pause()
    done = learn.history.n_steps
    learn.request('stop_epoch')
    assert learn.fit(1) and learn.history.n_steps > done

def test_same_cell_again(warm, tmp_path):
    "A cell that runs again attaches, and shows a run that is done; to train anew one says so"
    def start(n=3, **kwargs): return trainer(Slow()).start(n, folder=tmp_path/'a', **kwargs)
    until(lambda: start().status == 'running')
    pid, again = status_of(start())['pid'], start()
    with pytest.raises(RuntimeError, match='stop it before'): start(overwrite=True)
    again.wait(60)
    (expected := trainer(Slow(0))).fit(3)
    check_equal(expected, again.learn)
    assert start().status == 'done' and status_of(start())['pid'] == pid
    with pytest.warns(UserWarning, match='n_epochs 3 → 4') as found: trainer(Slow()).start(4, folder=tmp_path/'a')
    assert found[0].filename == __file__ and len(runs(tmp_path)) == 1
    with pytest.raises(RuntimeError, match='nothing to restart'): start().restart()

def test_refusals(tmp_path):
    "Nothing is written; other cases are in the notebook"
    with pytest.raises(ValueError, match='max_gb'): plain().start(1, folder=tmp_path/'a', max_gb=1e-6)
    none = Run(tmp_path/'a')
    for f in none.restart, none.stop, none.wait:
        with pytest.raises(RuntimeError, match='holds no run'): f()
    assert not (tmp_path/'a').exists()
    (tmp_path/'x').touch()
    with pytest.raises(FileExistsError, match='not empty'): plain().start(1, folder=tmp_path)
    with pytest.raises(RuntimeError, match='cannot move into the background'):
        plain(hooks=[LambdaHook(after_step=lambda learn: learn.start(1, folder=tmp_path/'c'))]).fit(1)
