"`check_resume` names what forgets: planted faults are all found, and healthy programs are proved exact"
import multiprocessing, os, random, sys
from collections import deque
from itertools import islice
from types import SimpleNamespace

import numpy as np, pytest, torch, torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset, Sampler

from common import Share, weights
from trainer_nb.all import (
    AMP, EMA, Compile, EarlyStopping, GradAccum, GradClip, Hook, Learner, LRScheduler, NaNGuard, OneCycle, Samples,
    SeededLoader, SpikeGuard
)
from trainer_nb.runs.diff import _train_part
from trainer_nb.runs.trace import held_state

N = 24

class Data(Dataset):
    "Rows, scaled by a level, and changed by `noise()`"
    def __init__(self, noise=None, level=1.):
        self.x, self.noise, self.level = torch.randn(N, 4, generator=torch.Generator().manual_seed(0)), noise, level
    def __len__(self): return N
    def __getitem__(self, i): return self.x[i]*self.level + (0 if self.noise is None else self.noise()), i % 3

class Noise:
    "A transform that keeps generators, a number and a list"
    def __init__(self):
        self.rng, self.np, self.old = random.Random(0), np.random.default_rng(0), np.random.RandomState(0)
        self.torch, self.n, self.seen = torch.Generator(), 0, deque([0], 9)
    def __call__(self):
        self.n += 1
        self.seen.append(self.n)
        return (self.rng.random() + self.np.random() + self.old.rand() + torch.rand(1, generator=self.torch).item()
                + self.n/100)

class Shuffled(Sampler):
    def __init__(self, rng): self.rng = rng
    def __iter__(self): return iter(self.rng.permutation(N).tolist())
    def __len__(self): return N

class Again(Shuffled):
    "Shuffles the order of the pass before, which nobody saves"
    def __iter__(self):
        self.order = getattr(self, 'order', np.arange(N))[np.random.RandomState(0).permutation(N)]
        return iter(self.order.tolist())

class Positioned(DataLoader):
    "Saves its position, and opens a pass with its first batch, as litdata's does"
    n = start = 0
    def __iter__(self):
        for self.n, batch in enumerate(islice(super().__iter__(), self.start, None), self.start + 1): yield batch
        self.start = 0
    def state_dict(self): return {'n': self.n}
    def load_state_dict(self, state): self.start = state['n']

class Mixed(Positioned):
    "Its state leaves the shuffle buffer out, as that of a stream of `datasets` in a `StatefulDataLoader`"
    def __iter__(self):
        rand, held = random.Random(0), []
        for batch in super().__iter__():
            held.append(batch)
            if len(held) > 2: yield held.pop(rand.randrange(3))
        yield from held

class Carry(Hook):
    "Scales the loss by what it holds, and the data by a level"
    held = 0
    def after_loss(self, learn):
        if not learn.training: return
        self.held += 1
        learn.loss = learn.loss*(1 + self.held/100)
        learn.train_dl.dataset.level += .1

class Best(Share):
    "Remembers all epochs"
    best = 0.
    def compute(self):
        self.best += float(super().compute())
        return self.best

COUNT = 0

def forgetful(batch, learn, held=[0]):      # noqa: B006   that is the fault
    global COUNT
    COUNT += learn.training
    held[0] += learn.training
    return {'loss': F.cross_entropy(learn.model(batch[0]), batch[1])*(1 + COUNT/100 + held[0]/100)}

def make(train_dl=None, model=None, **kwargs):
    torch.manual_seed(0)
    if model is None: model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(.2), nn.Linear(8, 3))
    if 'train_step' not in kwargs: kwargs.setdefault('loss_fn', F.cross_entropy)
    if train_dl is None: train_dl = loader(shuffle=True)
    return Learner(model, train_dl, DataLoader(Data(), 12), display=False, seed=0, **kwargs)

def loader(dataset=None, **kwargs): return DataLoader(dataset or Data(), **{'batch_size': 6, **kwargs})
def numpy(): return float(np.random.rand())

def stateful(data, **kwargs):
    return pytest.importorskip('torchdata.stateful_dataloader').StatefulDataLoader(data, 6, **kwargs)

FAULTS = [      # starts of the objects' names, a program in which they forget
    ([*(f'learn.train_dl.dataset.noise.{o}' for o in ('rng', 'np', 'old', 'torch', 'n', 'seen')),
      'learn.train_dl.dataset.level', 'learn.train_dl.sampler.order', 'hook Carry.held', 'the global COUNT',
      'the defaults of forgetful'],
     lambda: make(loader(Data(Noise()), sampler=Again(None)), hooks=[Carry()], train_step=forgetful)),
    (['learn.train_dl'], lambda: make(Mixed(Data(), 4))),
    (['learn.train_dl'], lambda: make(loader(Data(numpy), num_workers=2, persistent_workers=True))),
]

HEALTHY = {
    'seeded': lambda: make(SeededLoader(Data(), 6, shuffle=True)),
    'generator': lambda: make(loader(Data(lambda: random.random()), shuffle=True, generator=torch.Generator())),
    'sampler with a generator': lambda: make(loader(sampler=Shuffled(np.random.RandomState(0)))),
    'metric with a memory': lambda: make(metrics=[Best()]),
    'large': lambda: make(model=nn.Sequential(nn.Linear(4, 2**16), nn.Linear(2**16, 3)), optim=torch.optim.SGD),
    'own position': lambda: make(Positioned(Data(), 6)),
    'global numpy in workers': lambda: make(loader(Data(numpy), shuffle=True, num_workers=2)),
    'own numbers in workers': lambda: make(loader(Data(Noise()), num_workers=2)),
    'guards': lambda: make(hooks=[SpikeGuard(action='skip'), EarlyStopping(None), LRScheduler(
        lambda opt: torch.optim.lr_scheduler.ReduceLROnPlateau(opt), step='metric')]),
    'samples': lambda: make(hooks=[Samples(lambda learn: learn.model(torch.ones(2, 4)))]),
    'compiled': lambda: make(hooks=[Compile(backend='aot_eager')]),
    'all at once': lambda: make(hooks=[AMP(), GradAccum(3), EMA(.9), GradClip(1.), OneCycle(.1), NaNGuard()]),
    'validation within epochs': lambda: make((torch.randn(120, 4), torch.arange(120) % 3), bs=6),
    'stateful': lambda: make(stateful(Data(), shuffle=True)),
}

def forked(args, **kwargs):
    "In the place of `subprocess.run`: a fork, which has what a new process would import for five seconds"
    process = multiprocessing.get_context('fork').Process(target=_train_part, args=args[3:])
    process.start()
    process.join()
    return SimpleNamespace(returncode=process.exitcode, stderr='')

@pytest.fixture
def parts(request, monkeypatch):
    "Where the parts of a program train: under `soak` in new processes, as for a user"
    if request.node.get_closest_marker('soak') is None:
        monkeypatch.setattr(sys.modules['trainer_nb.runs.diff'], 'subprocess', SimpleNamespace(run=forked))

def cases(all_, quick): return [pytest.param(o, marks=() if o in quick else pytest.mark.soak) for o in all_]

@pytest.mark.parametrize('i', cases(range(len(FAULTS)), [0, 1]))
def test_faults_are_named(i, parts):
    names, program = FAULTS[i]
    report = program().check_resume()
    assert not report.is_exact, report
    for name in names: assert [o for o in report.lost if o['object'].startswith(name)], (name, report)

@pytest.mark.parametrize('name', cases(HEALTHY, ['large', 'own position', 'all at once', 'metric with a memory']))
def test_a_healthy_program_is_proved(name, parts):
    learn = HEALTHY[name]()
    before, rng = weights(learn.model), torch.get_rng_state()
    report = learn.check_resume(within=8)
    assert report.is_exact and not report.lost, report
    assert all(map(torch.equal, before, weights(learn.model))) and torch.equal(rng, torch.get_rng_state())
    assert not learn.history and learn.state.samples_seen == 0 and '✓ stopped after' in report.title()

def test_a_program_that_does_not_repeat_itself_gets_no_answer(parts):
    def unseeded(batch, learn): return {'loss': F.cross_entropy(learn.model(batch[0]), batch[1])*(1 + os.urandom(1)[0])}
    report = make(train_step=unseeded).check_resume()
    assert not report.is_exact and 'two uninterrupted runs differ' in report.title(), report

def test_wrong_use(parts):
    with pytest.raises(ValueError, match='within'): make().check_resume(0)
    def broken(batch, learn): raise KeyError('mask')
    with pytest.raises(RuntimeError, match="KeyError: 'mask'"): make(train_step=broken).check_resume()

def test_what_is_looked_into_in_part_is_said():
    for n, is_said in (1, False), (3, True):
        held = [[[[0] for _ in range(n)] for _ in range(90)] for _ in range(90)]
        assert any('(in part)' in k for k in dict(held_state({'o': held}))) == is_said

def test_objects_that_are_made_on_the_way_hide_no_others():
    "Lists of defaults, which do not exist without being looked at, would share an address"
    functions = [lambda x=[i]: x for i in range(50)]
    for i, f in enumerate(functions): f.__qualname__ = f'f{i}'
    assert {f'the defaults of f{i}[0]' for i in range(50)} <= dict(held_state({'o': functions})).keys()
