"""Random trainings, stopped at a random batch of training or validation, go on in another learner as if nothing had
happened

The reference is the same training without a stop. Model, loaders, optimizer, hooks and plan are drawn; so are the
stops, of which a training has one to three.
"""
import random, warnings
from collections import Counter

import pytest, torch
from torch import nn
from torch.optim import SGD, Adagrad, AdamW, RMSprop, lr_scheduler
from torch.utils.data import DataLoader, Dataset, RandomSampler, TensorDataset, WeightedRandomSampler

from common import batches, digest, make_learner, problem, shuffled
from trainer_nb.save import files
from trainer_nb.all import (AMP, EMA, Checkpoint, EarlyStopping, GradAccum, GradClip, GradNorm, LambdaHook, LRScheduler,
                            NaNGuard, OneCycle, SeededLoader, TensorLoader,
                            WarmupCosine, accuracy)


class Noisy(Dataset):
    "Samples draw from the global stream"
    def __len__(self): return 24
    def __getitem__(self, i): return problem()[0][i] + .1*torch.randn(4), problem()[1][i]

class Estimate:
    "A loader that has another length than it says"
    def __init__(self, n): self.n, self.data = n, batches()
    def __len__(self): return self.n
    def __iter__(self): return iter(self.data)

def gen(): return torch.Generator().manual_seed(5)
def data(): return TensorDataset(*problem())

MODELS = {
    'dropout': lambda: nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Dropout(.5), nn.Linear(8, 3)),
    'norm': lambda: nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3)),
    'tied': lambda: tied(nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4), nn.Dropout(.2), nn.Linear(4, 3)))}

def tied(model):
    model[2].weight = model[0].weight
    return model

LOADERS = {
    'shuffled': shuffled, 'generator': lambda: shuffled(generator=gen()), 'list': batches,
    'drop_last': lambda: shuffled(drop_last=True),
    'tensors': lambda: TensorLoader(*problem(), bs=5, shuffle=True),
    'own order': lambda: TensorLoader(*problem(), bs=7, shuffle=True, generator=gen()),
    'weighted': lambda: DataLoader(data(), 5, sampler=WeightedRandomSampler(torch.arange(1., 25), 24)),
    'replacement': lambda: DataLoader(data(), 5, sampler=RandomSampler(range(24), replacement=True)),
    'noisy': lambda: DataLoader(Noisy(), 5, shuffle=True),
    'seeded': lambda: SeededLoader(Noisy(), 5, shuffle=True, num_workers=0), 'too long': lambda: Estimate(9),
    'too short': lambda: Estimate(2)}
OPTIMIZERS = {
    'momentum': lambda p: SGD(p, lr=.05, momentum=.9), 'AdamW': lambda p: AdamW(p, lr=.01),
    'Adagrad': lambda p: Adagrad(p, lr=.05), 'RMSprop': lambda p: RMSprop(p, lr=.01, centered=True),
    'groups': lambda p: AdamW([{'params': (p := list(p))[:1], 'lr': .02}, {'params': p[1:]}], lr=.01)}
HOOKS = {
    'accumulation': lambda: GradAccum(2), 'clip': lambda: GradClip(.5), 'norm': lambda: GradNorm(weights=True),
    'average': lambda: EMA(.9), 'guard': lambda: NaNGuard(),
    'bfloat16': lambda: AMP(), 'patience': lambda: EarlyStopping(2, monitor='train_loss'),
    'record': lambda: LambdaHook(after_loss=lambda learn: learn.training
                                 and learn.record('mine', learn.loss*learn.state.batch_idx), name='Record')}
RATES = {
    '-': lambda: [], 'one cycle': lambda: [OneCycle(.1)], 'warm-up': lambda: [WarmupCosine(.1)],
    'torch': lambda: [LRScheduler(lambda opt: lr_scheduler.StepLR(opt, 2, .7))],
    'epoch': lambda: [LRScheduler(lambda opt: lr_scheduler.ExponentialLR(opt, .8), 'epoch')]}

def draw(rand):
    "A training as a dict of names and numbers"
    c = dict(model=rand.choice([*MODELS]), train=rand.choice([*LOADERS]), valid=rand.choice([None, *LOADERS]),
             opt=rand.choice([*OPTIMIZERS]),
             hooks=sorted(rand.sample([*HOOKS], rand.randint(0, 4))), rates=rand.choice([*RATES]),
             every=rand.choice(['epoch', 1, 3]), seed=rand.choice([None, 3]))
    c['fit'] = dict(n_epochs=rand.randint(1, 3)) if rand.random() < .7 else dict(max_steps=rand.randint(1, 9))
    if c['valid'] and rand.random() < .4: c['fit']['valid_every'] = rand.randint(1, 4)
    return c

class Counted(LambdaHook):
    "Counts batches of both phases, and stops after one of them"
    def __init__(self, at=None):
        self.n, self.at = 0, at
        super().__init__(after_step=self.count, name='Counted')
    def count(self, learn):
        self.n += 1
        if self.n == self.at: learn.stop()

def make(c, folder, counted, seed=0):
    torch.manual_seed(11)
    random.seed(11)
    train, valid = LOADERS[c['train']](), c['valid'] and LOADERS[c['valid']]()
    model = MODELS[c['model']]()
    if seed:
        with torch.no_grad():
            for p in model.parameters(): p.uniform_()
    learn = make_learner(model, train, valid, optim=OPTIMIZERS[c['opt']](model.parameters()), metrics=[accuracy],
                         seed=c['seed'],
                         hooks=[*(HOOKS[o]() for o in c['hooks']), *RATES[c['rates']](),
                                Checkpoint(folder, every=c['every']), counted])
    torch.manual_seed(seed)
    return learn

def trial(rand, folder):
    "One training with its stops: (what it was, number of resumes)"
    c = draw(rand)
    counted = Counted()
    whole = make(c, folder/'whole', counted)
    whole.fit(**c['fit'])
    n, done, left = 0, 0, counted.n
    for i in range(rand.randint(1, 3) + 1):
        stop = Counted(rand.randint(1, left) if i < 3 and left > 1 else None)
        learn = make(c, folder/'run', stop, seed=i)
        learn.fit(**c['fit'], resume=i > 0)
        n, done, left = n + bool(i), done + stop.n, left - stop.n
        if learn.cancelled != 'stop': break
    if learn.cancelled == 'stop':
        learn = make(c, folder/'run', Counted(), seed=9)
        learn.fit(**c['fit'], resume=True)
        n += 1
    assert digest(learn) == digest(whole), (c, n)
    return c, n

@pytest.mark.parametrize('n_resumes', [6, pytest.param(450, marks=pytest.mark.soak)])
def test_resumed_anywhere_is_bit_equal(n_resumes, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(files, 'sync', lambda path: None)       # no power is cut here
    rand, seen, done, trials = random.Random(n_resumes), Counter(), 0, 0
    while done < n_resumes:
        with warnings.catch_warnings():
            warnings.simplefilter('ignore')
            c, n = trial(rand, tmp_path/str(trials))
        done, trials = done + n, trials + 1
        seen.update([c['train'], *c['hooks'], c['rates'], c['opt']])
    with capsys.disabled():
        if n_resumes > 100: print(f'\n{done} resumes of {trials} trainings, all bit-equal: {dict(seen)}')
