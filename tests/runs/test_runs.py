"Runs: training in another process gives the numbers of `fit`, outlives the kernel, and opens nothing to anybody"
import os, random, re, signal, stat, subprocess, sys
from pathlib import Path

import numpy as np
import pytest, torch, torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader

from common import Noisy, Share, Slow, batches, equal, make_learner, problem, record, same, shuffled, until
from trainer_nb.all import (EMA, EarlyStopping, GradAccum, GradClip, Hook, LambdaHook, Learner, LRScheduler, OneCycle,
                            Run, attach, runs)
from trainer_nb.base import rng_state
from trainer_nb.runs.engine import process_of
from trainer_nb.runs.folder import RunFolder
from trainer_nb.save import load_packed, pack

here = Path(__file__).parents[1]

@pytest.fixture(autouse=True)
def _ends(tmp_path):
    "No process outlives its test"
    yield
    for path in tmp_path.rglob('status.json'):
        data = RunFolder(path.parent).read('status.json')
        if 'started' not in data or data['pid'] == os.getpid(): continue
        if (process := process_of(data)) is not None: process.kill()

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


# ---- kinds of learners -----------------------------------------------------------------------------------------------

def plain(**kwargs): return make_learner(valid_dl=batches(seed=2), **kwargs)

class Drawn(Noisy):
    "Samples draw from all global RNGs"
    def __getitem__(self, i):
        x, y = super().__getitem__(i)
        return x + random.random() + float(np.random.rand()), y

def workers(): return plain(train_dl=DataLoader(Drawn(*problem()), 5, shuffle=True, num_workers=2))

class Count:
    n = 0
    def state_dict(self): return {'n': self.n}
    def load_state_dict(self, state): self.n = state['n']

def gan():
    "Two optimizers, and an object of the user's"
    g, d, count = nn.Linear(2, 4), nn.Linear(4, 1), Count()
    def step(batch, learn):
        count.n += 1
        x, fake = batch[0], g(torch.randn(len(batch[0]), 2))
        real, made = d(x), d(fake.detach())
        yield 'd', F.softplus(-real).mean() + F.softplus(made).mean()
        yield 'g', F.softplus(-d(fake)).mean()*count.n
    model = nn.ModuleDict({'g': g, 'd': d})
    return Learner(model, shuffled(), train_step=step, state=[count], display=False,
                   optim={k: torch.optim.Adam(o.parameters(), 1e-2) for k, o in model.items()})

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

class Lookahead(torch.optim.Optimizer):
    "As in common packages, around another optimizer, with a state that lacks what `step` needs"
    def __init__(self, optimizer):
        self._optimizer_step_pre_hooks, self._optimizer_step_post_hooks = {}, {}
        self.optimizer, self.defaults = optimizer, {}
        self.param_groups, self.state = optimizer.param_groups, optimizer.state
        self.params = self.param_groups[0]['params']
        self.slow = [p.detach().clone() for p in self.params]

    def __getstate__(self): return {'optimizer': self.optimizer}

    def step(self, closure=None):
        self.optimizer.step()
        for p, s in zip(self.params, self.slow): p.data.copy_(s.lerp_(p.data, .5))

def test_an_optimizer_around_another_one_is_copied_whole(tmp_path):
    learn = plain(optim=lambda ps: Lookahead(torch.optim.SGD(ps, .1, momentum=.9)))
    pack(learn, tmp_path/'a.pt')
    other = load_packed(tmp_path/'a.pt')
    assert vars(other.opt).keys() >= vars(learn.opt).keys()
    for o in learn, other:
        torch.manual_seed(3)        # for the dropout
        for x, y in batches():
            F.cross_entropy(o.model(x), y).backward()
            o.opt.step()
    assert same([*learn.model.parameters()], [*other.model.parameters()])

def early_stopping(): return plain(hooks=[EarlyStopping(patience=1, restore_best=True)], lr=.5), {'n_epochs': 6}

def much():
    "BatchNorm, a generator of its own, hooks, a metric object"
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    learn = plain(model=model, train_dl=shuffled(generator=torch.Generator().manual_seed(5)), metrics=[Share()],
                  hooks=[GradAccum(3), GradClip(.5), EMA(.9)])
    return learn, {'n_epochs': 3, 'hooks': [OneCycle(.1)]}

KINDS = [much, workers, gan, local_classes, second_fit, lbfgs, early_stopping]
QUICK = {local_classes, second_fit}

def made(kind):
    "A learner and the arguments of its fit, the same each time"
    random.seed(0), np.random.seed(0), torch.manual_seed(0)
    res = kind()
    learn, kwargs = res if isinstance(res, tuple) else (res, {'n_epochs': 2})
    return learn, kwargs

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

@pytest.mark.parametrize('kind', [pytest.param(o, marks=() if o in QUICK else pytest.mark.soak, id=o.__name__)
                                  for o in KINDS])
def test_equals_fit(kind, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
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

def slow_learner(n=64):
    torch.manual_seed(0)
    x = torch.randn(n, 4)
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(.2), nn.Linear(8, 1))
    return Learner(model, (x, x[:, :1]), (x, x[:, :1]), loss_fn=F.mse_loss, bs=4, display=False, hooks=[Slow()])

def python(*args, cwd):
    "A process, with what it prints"
    paths = here.parent, here, here/'runs', here/'parallel'
    env = {**os.environ, 'PYTHONPATH': os.pathsep.join(map(str, paths))}
    return subprocess.Popen([sys.executable, *args], cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env,
                            text=True)

def test_kernel_dies(tmp_path):
    "kill -9 of the kernel: the run trains on, a new kernel sees every point, and the end is bit-equal"
    process = python('-c', """if True:
    import time
    from test_runs import slow_learner
    slow_learner().start(4, folder='a')
    print('started', flush=True)
    time.sleep(600)""", cwd=tmp_path)
    try:
        while process.stdout.readline() != 'started\n': pass
        run = Run(tmp_path/'a')
        until(lambda: run.history.n_steps > 5)
    finally:
        process.kill()
        process.communicate()
    n = run.history.n_steps
    run = attach(tmp_path/'a')
    assert run.status == 'running' and run.history.n_steps >= n
    run.wait(300)
    expected = slow_learner()
    expected.fit(4)
    check_equal(expected, run.learner())
    assert run.history.steps == expected.history.steps and len(run.history) == 4

def test_worker_dies(tmp_path):
    "kill -9 of the worker: seen at once, and a restart ends bit-equal, from a checkpoint as from the beginning"
    learn = slow_learner()
    run = learn.start(5, folder=tmp_path/'a')
    for at in 8, 30:
        until(lambda: run.history.n_steps > at)
        if at == 30: run.checkpoint().wait()
        kill(run)
        assert 'ended unexpectedly' in run.error
        with pytest.raises(RuntimeError, match='restart'): run.wait(1)
        with pytest.raises(RuntimeError, match='takes no request'): run.pause()
        run.restart()
    run.wait(300)
    assert 'resumes from' in run.output
    expected = slow_learner()
    expected.fit(5)
    check_equal(expected, learn)
    assert run.history.steps == expected.history.steps and run.history.ends == expected.history.ends

def test_requests(tmp_path):
    learn = slow_learner()
    run = learn.start(50, folder=tmp_path/'a')
    until(lambda: run.status == 'running')
    run.pause().wait()
    assert run.status == 'paused'
    with pytest.raises(RuntimeError, match='the run is paused.*nothing to restart'): run.restart()
    n = run.history.n_steps
    weights = run.weights()
    assert run.weights().keys() == learn.model.state_dict().keys()
    run.set_lr(.5).wait()
    assert run.request(lambda learn: learn.opt.param_groups[0]['lr']).wait() == '0.5'
    with pytest.raises(RuntimeError, match='ZeroDivisionError'): run.request(lambda learn: 1/0).wait()
    x = torch.randn(3, 4)
    pred = run.predict(x)
    assert run.history.n_steps == n and run.status == 'paused'
    learn.model.load_state_dict(weights)
    assert torch.equal(pred, learn.predict(x)) and run.validate().keys() == {'valid_loss'}
    run.unpause().wait()
    until(lambda: run.history.n_steps > n)
    assert run.history.steps['lr'][-1] == .5
    until(lambda: len(run.history.flags) == 2)
    (at, rate), (end, pause) = run.history.flags        # while it trains, too
    assert (at, rate, end) == (n, 'lr → 0.5', n) and re.fullmatch(r'paused 00:\d\d', pause)
    stop(run)
    assert run.status == 'stopped' and learn.stopped is not None and learn.history.n_steps == run.history.n_steps
    assert learn.history.flags == run.history.flags
    with pytest.raises(RuntimeError, match='takes no request'): run.pause()
    done = learn.history.n_steps
    learn.request('stop_epoch')
    assert learn.fit(1) and learn.history.n_steps > done

def test_failure(tmp_path):
    "`wait` raises the training's own error, of a class defined in the caller's module"
    class Bad(Hook):
        def after_step(self, learn):
            if learn.state.optimizer_step == 3: raise KeyError('no such thing', 3)
    learn = make_learner(hooks=[Bad()])
    run = learn.start(2, folder=tmp_path/'a')
    with pytest.raises(KeyError) as e: run.wait(300)
    assert e.value.args == ('no such thing', 3) and 'after_step' in str(e.value.__cause__)
    assert 'hook Bad' in ''.join(e.value.__notes__)
    assert run.status == 'failed' and 'no such thing' in run.error and learn.state.epoch == 0

def test_same_cell_again(tmp_path):
    "A cell that runs again attaches, and shows a run that is done; to train anew one says so"
    folder = tmp_path/'a'
    run = slow_learner().start(3, folder=folder)
    pid = status_of(run)['pid']
    again = slow_learner().start(3, folder=folder)
    assert status_of(again)['pid'] == pid
    with pytest.raises(RuntimeError, match='stop it before'): slow_learner().start(3, folder=folder, overwrite=True)
    learn = again.learn
    again.wait(60)
    expected = slow_learner()
    expected.fit(3)
    check_equal(expected, learn)
    once_more = slow_learner().start(3, folder=folder)
    assert once_more.status == 'done' and status_of(once_more)['pid'] == pid
    with pytest.warns(UserWarning, match='n_epochs 3 → 4') as found: slow_learner().start(4, folder=folder)
    assert found[0].filename == __file__
    with pytest.raises(RuntimeError, match='nothing to restart'): once_more.restart()
    assert [o['run'] for o in runs(tmp_path).values] == ['a']


# ---- nothing is opened to anybody ------------------------------------------------------------------------------------

class Evil:
    "Unpickled, it makes a folder"
    def __init__(self, path): self.path = str(path)
    def __reduce__(self): return os.mkdir, (self.path,)

def plant(folder, path):
    "A program and a result in a run's folder that make `path` where they are unpickled"
    for name in 'program.pt', 'result.pt': torch.save(Evil(path), folder.path/name)

def test_viewing_executes_nothing(tmp_path):
    "A malicious program is not executed by looking at it"
    folder = RunFolder(tmp_path/'a')
    folder.make()
    plant(folder, tmp_path/'executed')
    folder.write('run.json', {'name': '<script>alert(1)</script>', 'settings': {'lr': '<b>1</b>'}, 'first_row': -1,
                              'created': 'x'})
    folder.write('status.json', {'state': 'done', 'note': '<script>', 'error': {'module': 'os', 'type': 'mkdir'}})
    run = attach(folder.path)
    assert run.status == 'done' and run.history.n_steps == 0
    assert '<script>' not in runs(tmp_path)._repr_html_() and runs(tmp_path)
    run.wait(1)
    assert not (tmp_path/'executed').exists()
    for text in ('[]', '{"state": {}}', '{"state": "running", "pid": "x"}',
                 '{"state": "running", "pid": -1, "heartbeat": "x"}', '\0'):
        (folder.path/'status.json').write_text(text)
        assert attach(folder.path).status in ('missing', 'died', 'unreachable')

def test_private_and_without_ports(tmp_path):
    run = started(slow_learner(), 20, tmp_path/'runs'/'a')
    assert stat.S_IMODE(run.path.stat().st_mode) == 0o700
    pid = status_of(run)['pid']
    inodes = {os.readlink(o) for o in Path(f'/proc/{pid}/fd').iterdir() if o.exists() or o.is_symlink()}
    assert not [o for o in inodes if o.startswith('socket:')]
    assert os.getsid(pid) == pid != os.getsid(0)
    stop(run)

def test_refusals(tmp_path):
    for kwargs, error, words in [({'max_gb': 1e-6}, ValueError, 'max_gb'), ({'on': 'moon'}, TypeError, 'on is'),
                                 ({'hooks': [3]}, TypeError, '3 is not a hook'),
                                 ({'epochs': 2}, TypeError, 'fit has no argument `epochs`: here it is n_epochs'),
                                 ({'foldr': 'a'}, TypeError, 'no argument `foldr`')]:
        with pytest.raises(error, match=words): plain().start(1, folder=tmp_path/'a', **kwargs)
    with pytest.raises(FileNotFoundError, match='no run'): attach(tmp_path/'a')
    none = Run(tmp_path/'a')
    for f in none.restart, none.stop, none.wait:
        with pytest.raises(RuntimeError, match='missing: the folder holds no run'): f()
    assert not (tmp_path/'a').exists()
    (tmp_path/'b').mkdir()
    (tmp_path/'b'/'x').touch()
    with pytest.raises(FileExistsError, match='not empty'): plain().start(1, folder=tmp_path/'b')
    with pytest.raises(RuntimeError, match='cannot move into the background'):
        plain(hooks=[LambdaHook(after_step=lambda learn: learn.start(1, folder=tmp_path/'c'))]).fit(1)

@pytest.mark.soak
def test_shell(tmp_path):
    def shell(*args): return python('-m', 'trainer_nb', *args, cwd=tmp_path).communicate(timeout=60)     # (out, err)
    started(slow_learner(640), 500, tmp_path/'runs'/'a')
    assert 'in use' in shell('run', 'runs/a')[1]
    assert 'running' in shell('status')[0] and shell('stop', 'runs/a')[0] == 'asked to stop after this batch\n'
    assert isinstance(shell('tail', 'runs/a')[0], str)
    assert 'stopped' in shell('status', 'runs/a')[0] and 'no run' in shell('tail', 'b')[1]

@pytest.mark.soak
def test_memory(tmp_path):
    "`start` holds no second copy of the data, not for a moment; the process that trains reads the file's own pages"
    process = python('-c', """if True:
    import resource, numpy as np, torch
    from test_runs import slow_learner
    def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss/1024
    learn = slow_learner()
    learn.config = [torch.ones(2**17, 512), np.ones((2**17, 512), dtype='float32')]     # 256 MiB each
    before = peak()
    learn.start(200, folder='a')
    print(peak() - before, flush=True)
    """, cwd=tmp_path)
    grown = float(process.communicate(timeout=100)[0].splitlines()[-1])
    run = Run(tmp_path/'a')
    until(lambda: run.history.n_steps > 20)
    lines = Path(f'/proc/{status_of(run)["pid"]}/status').read_text().splitlines()
    anonymous = next(int(o.split()[1])/1024 for o in lines if o.startswith('RssAnon'))
    run.stop()
    assert grown < 60 and anonymous < 400       # MiB, of 512 that travel

