"""`SpikeGuard` finds planted batches, and a fit that leaves them out is the fit that never had them, bit for bit

The references know which batches are bad from the data alone: plain loops, and fits whose hook cancels these batches.
"""
import json, math, random

import pytest, torch, torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from common import Counted, Noisy, check_resume, digest, same, weights
from healthy_fits import fit as healthy_fit
from trainer_nb.all import (
    AMP, CancelStep, Compile, EMA, GradAccum, GradClip, GradNorm, Hook, JSONLLogger, LRScheduler, Learner,
    NaNGuard, OneCycle, SeededLoader, SpikeGuard, TensorLoader, set_seed
)

BS, N = 4, 120          # samples in a batch, batches in an epoch

def points(n=N*BS):
    g = torch.Generator().manual_seed(1)
    x = torch.randn(n, 4, generator=g)
    return x, x.sum(1, keepdim=True) + .3*torch.randn(n, 1, generator=g)

def bad_points():
    x, y = points()
    for i in 15, 50, 90: y[i*BS] = 4e3
    y[51*BS] = 4e4
    return x, y

def net():
    return nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16), nn.Dropout(.2), nn.ReLU(), nn.Linear(16, 1))

def learner(x, y, *hooks, dl=None, **kwargs):
    torch.manual_seed(0)
    if dl is None: dl = DataLoader(Noisy(x, y), batch_size=BS)       # it draws from the generator of the dropout
    kwargs = {'seed': 0, 'lr': .01, 'loss_fn': F.mse_loss, 'valid_dl': [points(8)], **kwargs}
    return Learner(kwargs.pop('model', net)(), dl, display=False, hooks=hooks, **kwargs)

class Without(Hook):
    "Leaves out batches of bad samples, which it knows by their values; one of several ranks may have them"
    ord, n = 97, 0
    def before_step(self, learn):
        x, y = learn.batch[:2]
        is_good = x.isfinite().all() and y.abs().max() < 100
        if not learn.training or not learn.world.sum(torch.tensor(float(not is_good))): return
        self.n += 1
        raise CancelStep

def skip(**kwargs): return SpikeGuard('skip', **{'warmup': 10, **kwargs})

def test_twenty_of_twenty_and_the_weights_of_a_plain_loop():
    x, y = points(2*N*BS)
    bad = sorted(random.Random(0).sample(range(40, 2*N), 20))
    for k, i in enumerate(bad):
        rows = slice(i*BS, (i + 1)*BS)
        if k % 4 == 3: x[rows] = math.inf
        else: y[rows] += [300, -1e5, math.nan][k % 4]
    learn = learner(x, y, SpikeGuard('skip', max_skips=20))
    learn.fit(1)
    assert [(o['batch_idx'], o['action']) for o in learn.spikes] == [(i, 'skip') for i in bad]
    assert [o['indices'] for o in learn.spikes] == [[*range(i*BS, (i + 1)*BS)] for i in bad]

    plain = learner(x, y)
    set_seed(0)
    model, losses = plain.model.train(), []
    for i, (xb, yb) in enumerate(plain.train_dl):
        if i in bad: continue
        loss = F.mse_loss(model(xb), yb)
        loss.backward()
        plain.opt.step()
        plain.opt.zero_grad()
        losses.append(loss.item())
    assert same(weights(model), weights(learn.model)) and learn.history.steps['train_loss'] == losses
    assert learn.state.optimizer_step == len(losses) == 2*N - 20 and learn.state.batch_idx == 2*N

def loader(x, y, cls=DataLoader, data=TensorDataset, **kwargs):
    return cls(data(x, y), batch_size=BS, shuffle=True, **kwargs)

def tensors(x, y): return TensorLoader(x, y, bs=BS, shuffle=True)
def seeded(x, y): return loader(x, y, SeededLoader, Noisy, num_workers=0)
def persistent(x, y): return loader(x, y, num_workers=1, persistent_workers=True)

class Unsized:
    "Draws its order anew in each pass, and knows no length"
    def __init__(self, *data): self.data = data
    def __iter__(self):
        for i in torch.randperm(N): yield tuple(o[i*BS:(i + 1)*BS] for o in self.data)

def two_losses(batch, learn):
    for name in 'ab': yield name, F.mse_loss(learn.model[name](batch[0]), batch[1])

TWO = dict(model=lambda: nn.ModuleDict({o: net() for o in 'ab'}), train_step=two_losses,
           optim=dict.fromkeys('ab', torch.optim.Adam))

def restarts(): return LRScheduler(lambda opt, n: torch.optim.lr_scheduler.CosineAnnealingLR(opt, n))

WAYS = {        # hooks, loader, arguments of fit, and of the learner
    'unsized': (lambda: [], Unsized, {}), 'schedule': (lambda: [OneCycle(.03), EMA(.9)], loader, {}),
    'scheduler': (lambda: [restarts(), GradClip(1.), GradNorm()], None, {}),
    'steps': (lambda: [AMP(), EMA(.9)], tensors, {'n_epochs': None, 'max_steps': 150, 'valid_every': 17}),
    'accumulated': (lambda: [GradAccum(3)], loader, {}), 'two optimizers': (lambda: [], loader, {}, TWO)}
SLOW = {'seeded': (lambda: [], seeded, {}), 'persistent': (lambda: [], persistent, {}),
        # the same compiled code steps on after the batch: a restored optimizer keeps its tensors
        'compiled': (lambda: [Compile(backend='aot_eager')], None, {})}

@pytest.mark.parametrize('way', [*WAYS, *(pytest.param(o, marks=pytest.mark.soak) for o in SLOW)])
def test_as_if_it_had_never_come(way, tmp_path):
    "Weights, record, and a log, which has each batch once"
    hooks, make_dl, fit, *kwargs = {**WAYS, **SLOW}[way]
    x, y = bad_points()
    guard, without, learners, logs = skip(max_skips=99, every=7), Without(), [], []
    for i, first in enumerate([guard, without]):
        log = JSONLLogger(tmp_path/f'{i}.jsonl')
        learners.append(learner(x, y, *hooks(), first, log, dl=make_dl and make_dl(x, y), **dict(*kwargs)))
        learners[i].fit(**{'n_epochs': 2, **fit})
        logs.append([{**json.loads(o), 'time_s': 0} for o in (tmp_path/f'{i}.jsonl').open()])
    guarded, never = learners
    assert digest(guarded) == digest(never) and guarded.state == never.state and logs[0] == logs[1]
    assert len(guarded.spikes) == without.n > 3
    if kwargs: assert {*guarded.spikes[0]} > {'loss_a', 'loss_b', 'grad_norm_a', 'grad_norm_b'}

@pytest.mark.parametrize('action, at', [('skip', 51), ('skip', 172), ('note', 51), *(
    pytest.param('skip', o, marks=pytest.mark.soak) for o in (49, 52, 60, 95, 119, 121))])
def test_resumed_in_the_middle(action, at, tmp_path):
    "Between a bad batch and the look that finds it, too: from a checkpoint, and in the same learner"
    def make(): return learner(*bad_points(), SpikeGuard(action, warmup=10), OneCycle(.03))
    for o in check_resume(make, tmp_path, Counted(at), n_epochs=2):
        assert [(o['epoch'], o['batch_idx'], o['action']) for o in o.spikes] == [
            (epoch, i, action) for epoch in (0, 1) for i in (15, 50, 51, 90)
            if action == 'skip' or i != 51], 'a note of 50 holds for 51'

def test_noted_only():
    guarded, plain = learner(*bad_points(), SpikeGuard(warmup=10)), learner(*bad_points())
    for o in guarded, plain: o.fit(1)
    assert digest(guarded) == digest(plain) and guarded.spikes

def test_in_a_fit_after_another(capsys):
    "Numbers of epochs go on, and limits begin anew"
    def fitted(first):
        x, y = bad_points()
        y[15*BS] = 0.
        learn = learner(x, y, first)
        for _ in range(3): learn.fit(1)
        return learn
    guarded, never = fitted(skip(max_skips=5)), fitted(Without())
    assert digest(guarded) == digest(never) and len(guarded.spikes) == 9
    assert capsys.readouterr().out.count('3 spikes in this fit') == 3

def test_refused():
    for words, hooks, kwargs in [('remove NaNGuard', [NaNGuard()], {}), ('read once', [], {'dl': iter([points(8)])}),
                                 ('SpikeGuard', [], {'optim': torch.optim.LBFGS})]:
        with pytest.raises(ValueError, match=words): learner(*points(), skip(), *hooks, **kwargs).fit(1)

@pytest.mark.parametrize('dl, p', [(tensors, 0.), *(pytest.param(o, .2, marks=pytest.mark.soak)
                                                    for o in (loader, seeded))])
def test_two_processes_leave_out_the_same(dl, p):
    "Only one of them has the sample that is bad; each has its own dropout"
    def trained(first):
        x, y = bad_points()
        learn = learner(x, y, first, dl=dl(x, y))
        learn.model[2].p = p
        learn.launch(2, 2)
        return learn
    guarded, never = trained(skip()), trained(Without())
    assert digest(guarded) == digest(never) and len(guarded.spikes) >= 7

@pytest.mark.parametrize('numbers', [
    range(1000, 1012, 4), pytest.param(range(1000, 1100), marks=pytest.mark.soak)], ids=['few', 'hundred'])
def test_no_false_alarm(numbers):
    for i in numbers:
        learn = healthy_fit(i, SpikeGuard())
        losses = learn.history.steps[next(k for k in learn.history.steps if k.startswith('train_loss'))]
        assert len(losses) == 400 and all(map(math.isfinite, losses)), (learn.about, 'it is not healthy')
        assert not learn.spikes, (i, learn.about, [*learn.spikes])
