"`check_resume` names what forgets: planted faults are all found, and healthy programs are proved exact"
import random
from collections import deque

import numpy as np, pytest, torch, torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler, WeightedRandomSampler

from common import weights
from trainer_nb.runs.check import ResumeReport
from trainer_nb.runs.table import main
from trainer_nb.all import (
    AMP, EMA, EarlyStopping, GradAccum, GradClip, Hook, Learner, LRScheduler, NaNGuard, OneCycle, SeededLoader, accuracy
)

N = 24

class Data(Dataset):
    "Rows, changed by `noise()`"
    def __init__(self, noise=None, **attrs):
        self.x, self.noise = torch.randn(N, 4, generator=torch.Generator().manual_seed(0)), noise
        vars(self).update(attrs)
    def __len__(self): return N
    def __getitem__(self, i): return self.x[i] + (0 if self.noise is None else self.noise()), i % 3

class Rng:
    "A transform with its own generator"
    def __init__(self, rng): self.rng = rng
    def __call__(self, samples=None):
        shift = self.rng.random()
        return shift if samples is None else torch.utils.data.default_collate([(x + shift, y) for x, y in samples])

class TorchRng(Rng):
    def __call__(self): return torch.rand((), generator=self.rng)

class Shuffled(Sampler):
    def __init__(self, rng, bs=None): self.rng, self.bs = rng, bs
    def __iter__(self):
        ids = self.rng.permutation(N).tolist()
        return iter(ids if self.bs is None else [ids[i:i + self.bs] for i in range(0, N, self.bs)])
    def __len__(self): return N if self.bs is None else N//self.bs

class Stream(IterableDataset):
    def __init__(self): self.n = 0
    def __iter__(self):
        for i in range(N):
            self.n += 1
            yield torch.randn(4, generator=torch.Generator().manual_seed(self.n)), i % 3

class Counts(nn.Module):
    def __init__(self, is_saved=False):
        super().__init__()
        self.lin, self.calls = nn.Linear(4, 3), 0
        if is_saved: self.register_buffer('calls_', torch.zeros(()))
    def forward(self, x):
        if self.training: self.calls += 1
        return self.lin(x)*(1 + self.calls/100)

class Buffered(Counts):
    def __init__(self):
        super().__init__()
        del self.calls
        self.register_buffer('calls', torch.zeros(()))

class OfClass(nn.Module):
    calls = 0
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(4, 3)
    def forward(self, x):
        if self.training: OfClass.calls += 1
        return self.lin(x)*(1 + OfClass.calls/100)

class Noisy(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin, self.g = nn.Linear(4, 3), torch.Generator().manual_seed(0)
    def forward(self, x): return self.lin(x + torch.rand((), generator=self.g)*self.training)

class Carry(Hook):
    "Scales the loss by what it holds"
    def __init__(self, start): self.held = start
    def factor(self):
        if isinstance(self.held, (list, deque)):
            self.held.append(1)
            return len(self.held)
        self.held += 1
        return self.held
    def after_loss(self, learn):
        if learn.training: learn.loss = learn.loss*(1 + self.factor()/100)

class Saved(Carry):
    def state_dict(self): return {'held': self.held}
    def load_state_dict(self, state): self.held = state['held']

class Steps(Hook):
    "Steps a scheduler of torch that nobody saves"
    def before_fit(self, learn):
        if not hasattr(self, 'sched'): self.sched = torch.optim.lr_scheduler.StepLR(learn.opt, 3, .5)
    def after_step(self, learn):
        if learn.training: self.sched.step()

class Curriculum(Hook):
    def after_step(self, learn):
        if learn.training: learn.train_dl.dataset.level += .1

class Leveled(Data):
    def __getitem__(self, i): return self.x[i]*self.level, i % 3

class Loss:
    def __init__(self): self.n = 0
    def __call__(self, pred, targ):
        self.n += 1
        return F.cross_entropy(pred, targ)*(1 + self.n/100)

class Metric:
    "Remembers the best of all epochs"
    def __init__(self): self.reset(); self.best = 0.
    def reset(self): self.right = self.n = 0
    def update(self, pred, targ): self.right += (pred.argmax(-1) == targ).sum().item(); self.n += len(targ)
    def compute(self):
        self.best = self.best + self.right/self.n
        return self.best

class Counting(torch.optim.SGD):
    def __init__(self, params, lr):
        super().__init__(params, lr)
        self.n = 0
    def step(self, closure=None):
        self.n += 1
        for g in self.param_groups: g['lr'] = .1/self.n
        return super().step(closure)

class Sub(Learner):
    seen = 0
    def train_step(self, batch):
        if self.training: self.seen = self.seen + 1
        return {'loss': F.cross_entropy(self.model(batch[0]), batch[1])*(1 + self.seen/100)}

COUNT, TABLE = 0, {'n': 0}

def of_global(batch, learn):
    global COUNT
    COUNT += learn.training
    return {'loss': F.cross_entropy(learn.model(batch[0]), batch[1])*(1 + COUNT/100)}

def of_table(batch, learn):
    TABLE['n'] += learn.training
    return {'loss': F.cross_entropy(learn.model(batch[0]), batch[1])*(1 + TABLE['n']/100)}

def of_default(batch, learn, *, seen=[]):  # noqa: B006
    seen += [1]*learn.training
    return {'loss': F.cross_entropy(learn.model(batch[0]), batch[1])*(1 + len(seen)/100)}

def of_attribute(batch, learn):
    of_attribute.n = getattr(of_attribute, 'n', 0) + learn.training
    return {'loss': F.cross_entropy(learn.model(batch[0]), batch[1])*(1 + of_attribute.n/100)}

def of_closure():
    n = 0
    def step(batch, learn):
        nonlocal n
        n += learn.training
        return {'loss': F.cross_entropy(learn.model(batch[0]), batch[1])*(1 + n/100)}
    return step

def of_loss():
    seen = [0]
    def loss(pred, targ):
        seen[0] += 1
        return F.cross_entropy(pred, targ)*(1 + seen[0]/100)
    return loss

def make(train_dl=None, model=None, cls=Learner, **kwargs):
    torch.manual_seed(0)
    if model is None: model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(.2), nn.Linear(8, 3))
    if 'train_step' not in kwargs and cls is Learner: kwargs.setdefault('loss_fn', F.cross_entropy)
    valid_dl = DataLoader(Data(), 12)
    if train_dl is None: train_dl = DataLoader(Data(), 6, shuffle=True)
    return cls(model, train_dl, valid_dl, display=False, seed=0, **kwargs)

def loader(dataset=None, **kwargs): return DataLoader(dataset or Data(), **{'batch_size': 6, **kwargs})
def step(f): return make(train_step=f)

FAULTS = {      # the start of an object's name → a program in which it forgets
    'learn.train_dl.sampler.rng': lambda: make(loader(sampler=Shuffled(np.random.default_rng(0)))),
    'learn.train_dl.batch_sampler.rng': lambda: make(
        DataLoader(Data(), batch_sampler=Shuffled(np.random.RandomState(0), 6))),
    'learn.train_dl.dataset.noise.rng': lambda: make(loader(Data(Rng(random.Random(0))))),
    'learn.train_dl.dataset.noise.rng ': lambda: make(loader(Data(Rng(np.random.default_rng(0))), shuffle=True)),
    'learn.train_dl.dataset.noise.rng  ': lambda: make(loader(Data(TorchRng(torch.Generator().manual_seed(0))))),
    'learn.train_dl.collate_fn.rng': lambda: make(loader(collate_fn=Rng(random.Random(0)))),
    'learn.train_dl.dataset.n': lambda: make(loader(Stream())),
    'learn.train_dl.dataset.level': lambda: make(loader(Leveled(level=1.)), hooks=[Curriculum()]),
    'hook Carry.held': lambda: make(hooks=[Carry(0)]),
    'hook Carry.held ': lambda: make(hooks=[Carry(torch.zeros(()))]),
    'hook Carry.held[': lambda: make(hooks=[Carry([])]),
    'hook Carry.held[ ': lambda: make(hooks=[Carry(deque())]),
    'hook Steps.sched': lambda: make(hooks=[Steps()]),
    'learn.model.calls': lambda: make(model=Counts()),
    'learn.model.0.calls': lambda: make(model=nn.Sequential(Counts())),
    'learn.model.g': lambda: make(model=Noisy()),
    'OfClass.calls': lambda: make(model=OfClass()),
    'the global COUNT': lambda: step(of_global),
    "the global TABLE['n']": lambda: step(of_table),
    'n in the closure of': lambda: step(of_closure()),
    'the defaults of of_default': lambda: step(of_default),
    'of_attribute.n': lambda: step(of_attribute),
    'learn.loss_fn.n': lambda: make(loss_fn=Loss()),
    'seen in the closure of': lambda: make(loss_fn=of_loss()),
    'learn.opt.n': lambda: make(optim=Counting, lr=.1),
    'learn.train_dl.dataset.noise': lambda: make(loader(Data(random.Random(0).random))),
    'learn.seen': lambda: make(cls=Sub),
}

def gan():
    def train_step(batch, learn):
        yield 'a', F.cross_entropy(learn.model[0](batch[0]), batch[1])
        yield 'b', F.cross_entropy(learn.model[1](batch[0]), batch[1])
    torch.manual_seed(0)
    model = nn.ModuleList([nn.Linear(4, 3), nn.Linear(4, 3)])
    return make(model=model, train_step=train_step,
                optim={k: torch.optim.Adam(m.parameters(), .01) for k, m in zip('ab', model)})

def tensors(): return Data().x, torch.arange(N) % 3

HEALTHY = {
    'large tensors': lambda: make(model=nn.Sequential(nn.Linear(4, 2**16), nn.Dropout(.2), nn.Linear(2**16, 3))),
    'plain': make, 'in order': lambda: make(loader()), 'metrics': lambda: make(metrics=[accuracy]),
    'rows': lambda: make(tensors(), bs=6), 'seeded': lambda: make(SeededLoader(Data(), 6, shuffle=True)),
    'generator': lambda: make(loader(shuffle=True, generator=torch.Generator().manual_seed(3))),
    'weighted': lambda: make(loader(sampler=WeightedRandomSampler(torch.arange(1., N + 1), N))),
    'workers': lambda: make(loader(shuffle=True, num_workers=2)),
    'global numbers': lambda: make(loader(Data(lambda: random.random()), shuffle=True)),
    'metric with a memory': lambda: make(metrics=[Metric()]),
    'average': lambda: make(hooks=[EMA(.9)]), 'one cycle': lambda: make(hooks=[OneCycle(.1)]),
    'accumulation': lambda: make(hooks=[GradAccum(3)]), 'clipping': lambda: make(hooks=[GradClip(1.)]),
    'guard': lambda: make(hooks=[NaNGuard()]), 'bfloat16': lambda: make(hooks=[AMP()]),
    'schedule': lambda: make(hooks=[LRScheduler(lambda opt: torch.optim.lr_scheduler.StepLR(opt, 3, .5))]),
    'patience': lambda: make(hooks=[EarlyStopping(5)]), 'two optimizers': gan,
    'saved hook': lambda: make(hooks=[Saved(0)]), 'buffer': lambda: make(model=Buffered()),
    'momentum': lambda: make(optim=lambda p: torch.optim.SGD(p, .1, momentum=.9)),
}

def cases(all_, quick): return [pytest.param(o, marks=() if o in quick else pytest.mark.soak) for o in all_]

@pytest.mark.parametrize('name', cases(FAULTS, ['learn.train_dl.sampler.rng', 'the global COUNT']))
def test_a_fault_is_named(name):
    report = FAULTS[name]().check_resume()
    assert not report.is_exact, report
    assert [o for o in report.lost if o['object'].startswith(name.strip())], report

@pytest.mark.parametrize('name', cases(HEALTHY, ['large tensors']))
def test_a_healthy_program_is_proved(name):
    learn = HEALTHY[name]()
    before, rng = weights(learn.model), torch.get_rng_state()
    report = learn.check_resume(within=8)
    assert report.is_exact and not report.lost, report
    assert all(map(torch.equal, before, weights(learn.model))) and torch.equal(rng, torch.get_rng_state())
    assert not learn.history and learn.state.samples_seen == 0 and '✓ stopped after' in report.status()

def test_wrong_use():
    with pytest.raises(ValueError, match='within'): make().check_resume(0)
    def broken(batch, learn): raise KeyError('mask')
    with pytest.raises(RuntimeError, match="does not train: KeyError: 'mask'"): step(broken).check_resume()

@pytest.mark.soak
@pytest.mark.parametrize('n_procs', [1, 2])
def test_as_a_run_that_is_killed(n_procs):
    "Through `start`, with kill -9, on one rank and on two"
    for name, path in ('hook', 'hook Carry.held'), ('learn.train_dl.dataset.noise', 'learn.train_dl.dataset.noise'):
        learn = make(hooks=[Carry(0)]) if name == 'hook' else FAULTS[name]()
        report = learn.check_resume(within=8, run=True, n_procs=n_procs)
        assert not report.is_exact and [o['object'] for o in report.lost] == [path], report
    for name in 'saved hook', 'rows', 'average':
        report = HEALTHY[name]().check_resume(within=8, run=True, n_procs=n_procs)
        assert report.is_exact and not report.lost and '✓ killed after' in report.status(), report

def test_command_asks_before_it_runs_a_program(tmp_path, monkeypatch):
    "It answers by its exit code; without a person to ask, it runs nothing"
    (tmp_path/'run.json').write_text('{}')
    ran = []
    def check(folder, **kwargs):
        ran.append(kwargs)
        return ResumeReport([], [], ['after training batch 0 of epoch 0'])
    monkeypatch.setattr('trainer_nb.runs.check.check_program', check)
    command = ['check-resume', str(tmp_path), '--within', '5', '--n-procs', '2']
    with pytest.raises(SystemExit, match='nothing was run: --yes'): main(command)
    monkeypatch.setattr('trainer_nb.runs.run._is_attended', lambda: True)
    for reply, n in ('n', 0), ('y', 1):
        monkeypatch.setattr('builtins.input', lambda question: reply)
        if n: assert main(command) == 0
        else:
            with pytest.raises(SystemExit): main(command)
        assert ran == [{'within': 5, 'n_procs': 2, 'run': False}]*n

@pytest.mark.soak
def test_command_checks_the_program_of_a_run(tmp_path, capsys):
    make(hooks=[Carry(0)]).start(1, folder=tmp_path/'a').wait()
    assert main(['check-resume', str(tmp_path/'a'), '--yes', '--within', '8']) == 1
    assert 'hook Carry.held lost its state' in capsys.readouterr().out
