"""`SpikeGuard` finds planted batches, and a fit that leaves them out is the fit that never had them, bit for bit

The references know which batches are bad from the data alone: plain loops, and fits whose hook cancels these batches.
"""
import json, math, random

import pytest, torch, torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from common import Noisy, digest, same, stop_when, weights
from healthy_fits import fit as healthy_fit
from trainer_nb.all import (
    AMP, CancelStep, Checkpoint, Compile, EMA, GradAccum, GradClip, GradNorm, Hook, JSONLLogger, LRScheduler, Learner,
    NaNGuard, OneCycle, SeededLoader, SpikeGuard, TensorLoader, set_seed
)

BS, N = 4, 120          # samples in a batch, batches in an epoch

def points(n=N*BS):
    g = torch.Generator().manual_seed(1)
    x = torch.randn(n, 4, generator=g)
    return x, x.sum(1, keepdim=True) + .3*torch.randn(n, 1, generator=g)

def broken(x, y, i, how):
    "Break the samples of batch i"
    rows = slice(i*BS, (i + 1)*BS)
    if how == 0: y[rows] += 300
    elif how == 1: y[rows] -= 1e5
    elif how == 2: y[rows] = math.nan
    else: x[rows] = math.inf

def net():
    return nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16), nn.Dropout(.2), nn.ReLU(), nn.Linear(16, 1))

def learner(x, y, *hooks, dl=None, **kwargs):
    torch.manual_seed(0)
    if dl is None: dl = DataLoader(Noisy(x, y), batch_size=BS)       # it draws from the generator of the dropout
    kwargs = {'seed': 0, 'lr': .01, 'loss_fn': F.mse_loss, 'valid_dl': [points(8)], **kwargs}
    return Learner(net(), dl, display=False, hooks=hooks, **kwargs)

class Without(Hook):
    "Leaves out batches of bad samples, which it knows by their values"
    ord, n = 97, 0
    def before_step(self, learn):
        x, y = learn.batch[:2]
        if not learn.training or x.isfinite().all() and y.abs().max() < 100: return
        self.n += 1
        raise CancelStep

class OnTwoRanks(Without):
    "The same on two ranks, of which one sees the bad sample"
    def before_step(self, learn):
        if not learn.training: return
        bad = torch.tensor(float(not learn.batch[1].abs().max() < 100))
        if learn.world.sum(bad): raise CancelStep

def test_twenty_of_twenty_and_the_weights_of_a_plain_loop():
    x, y = points(2*N*BS)
    rng = random.Random(0)
    bad = sorted(rng.sample(range(40, 2*N), 20))
    for k, i in enumerate(bad): broken(x, y, i, k % 4)
    learn = learner(x, y, SpikeGuard('skip', max_skips=20))
    learn.fit(1)
    assert [o['batch_idx'] for o in learn.spikes] == bad and {o['action'] for o in learn.spikes} == {'skip'}
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

def loader(cls=DataLoader, data=TensorDataset, **kwargs):
    return lambda x, y: cls(data(x, y), batch_size=BS, shuffle=True, **kwargs)

shuffled, seeded = loader(), loader(SeededLoader, Noisy, num_workers=0)
workers, persistent = loader(num_workers=1), loader(num_workers=1, persistent_workers=True)

def tensors(x, y): return TensorLoader(x, y, bs=BS, shuffle=True)

class Unsized:
    "Draws its order anew in each pass, and knows no length"
    def __init__(self, *data): self.data = data
    def __iter__(self):
        for i in torch.randperm(N): yield tuple(o[i*BS:(i + 1)*BS] for o in self.data)

def restarts(): return LRScheduler(lambda opt, n: torch.optim.lr_scheduler.CosineAnnealingLR(opt, n))

WAYS = {        # hooks, loader, arguments of fit
    'plain': (lambda: [], None, {}), 'shuffled': (lambda: [], shuffled, {}), 'seeded': (lambda: [], seeded, {}),
    'tensors': (lambda: [], tensors, {}), 'unsized': (lambda: [], Unsized, {}),
    'schedule': (lambda: [OneCycle(.03), EMA(.9)], shuffled, {}), 'scheduler': (lambda: [restarts()], None, {}),
    'clipped': (lambda: [GradClip(1.), GradNorm()], shuffled, {}),
    'valid_every': (lambda: [EMA(.9)], tensors, {'valid_every': 17}),
    'steps': (lambda: [AMP()], shuffled, {'n_epochs': None, 'max_steps': 150, 'valid_every': 50}),
    'accumulated': (lambda: [GradAccum(3)], shuffled, {}),
    'workers': (lambda: [], workers, {}), 'persistent': (lambda: [], persistent, {})}
SLOW = 'workers', 'persistent'

def bad_points():
    x, y = points()
    for i in 15, 50, 51, 90: y[i*BS] = 4e3
    return x, y

@pytest.mark.parametrize('way', [pytest.param(o, marks=[pytest.mark.soak]*(o in SLOW)) for o in WAYS])
def test_as_if_it_had_never_come(way):
    hooks, make_dl, fit = WAYS[way]
    x, y = bad_points()
    guard, without = SpikeGuard('skip', warmup=10, max_skips=99), Without()
    guarded, never = (learner(x, y, *hooks(), o, dl=make_dl and make_dl(x, y)) for o in (guard, without))
    for o in guarded, never: o.fit(**{'n_epochs': 3, **fit})
    assert digest(guarded) == digest(never)
    assert len(guarded.spikes) == without.n > 3 and guarded.state == never.state

@pytest.mark.soak
def test_compiled():
    "The same compiled code steps on after the batch: a restored optimizer keeps its tensors"
    x, y = bad_points()
    guarded, never = (learner(x, y, first, Compile(backend='aot_eager'))
                      for first in (SpikeGuard('skip', warmup=10), Without()))
    for o in guarded, never: o.fit(2)
    assert len(guarded.spikes) == 8 and digest(guarded) == digest(never)
    assert guarded.get_hook(Compile).reasons == []

def two_losses(batch, learn):
    x, y = batch
    for name in 'ab':
        loss = F.mse_loss(learn.model[name](x), y)
        yield name, loss

def test_two_optimizers():
    x, y = bad_points()
    def make(hook):
        torch.manual_seed(0)
        model = nn.ModuleDict({'a': net(), 'b': net()})
        optim = {k: torch.optim.Adam(model[k].parameters(), .01) for k in 'ab'}
        return Learner(model, shuffled(x, y), train_step=two_losses, optim=optim, hooks=[hook], display=False, seed=0)
    guarded, never = make(SpikeGuard('skip', warmup=10)), make(Without())
    for o in guarded, never: o.fit(2)
    assert digest(guarded) == digest(never) and len(guarded.spikes) == 8
    assert {*guarded.spikes[0]} > {'loss_a', 'loss_b', 'grad_norm_a', 'grad_norm_b'}

def test_logs_have_each_batch_once(tmp_path):
    files = []
    x, y = bad_points()
    for i, first in enumerate([SpikeGuard('skip', warmup=10, every=7), Without()]):
        files.append(tmp_path/f'{i}.jsonl')
        learner(x, y, first, JSONLLogger(files[-1])).fit(2)
    def rows(path): return [{k: v for k, v in json.loads(o).items() if k != 'time_s'} for o in path.open()]
    assert rows(files[0]) == rows(files[1])

@pytest.mark.parametrize('at', [49, 51, 52, 60, 95, 119, 121, 172])
def test_resumed_in_the_middle(at, tmp_path):
    "Between a bad batch and the look that finds it, too: from a checkpoint, and in the same learner"
    def make(*hooks):
        x, y = bad_points()
        return learner(x, y, SpikeGuard('skip', warmup=10), OneCycle(.03), *hooks, dl=shuffled(x, y))
    whole, here, there = make(), make(), make()
    whole.fit(2)
    stop = stop_when(lambda learn: learn.training and learn.state.samples_seen == at*BS)
    here.add_hook(Checkpoint(tmp_path, every=10**9))
    here.add_hook(stop)
    here.fit(2)
    assert here.stopped is not None
    there.add_hook(Checkpoint(tmp_path, every=10**9))
    there.fit(2, resume=True)
    here.remove_hook(stop)
    here.resume()
    for o in here, there:
        assert digest(o) == digest(whole)
        assert o.spikes == whole.spikes and len(o.spikes) == 8

def test_noted_only():
    x, y = bad_points()
    guarded, plain = learner(x, y, SpikeGuard(warmup=10)), learner(x, y)
    for o in guarded, plain: o.fit(2)
    assert digest(guarded) == digest(plain)
    assert [(o['epoch'], o['batch_idx'], o['action']) for o in guarded.spikes] == [
        (epoch, i, 'note') for epoch in (0, 1) for i in (15, 50, 90)], '51 continues 50'

def test_too_many_end_the_fit_before_they_came():
    x, y = bad_points()
    y[60*BS:] += 1e4
    learn = learner(x, y, SpikeGuard('skip', warmup=10, every=10))
    with pytest.raises(RuntimeError, match='left out 11 batches, up to batch 67 of epoch 0'): learn.fit(1)
    never = learner(*bad_points(), Without())
    never.add_hook(stop_when(lambda learn: learn.training and learn.state.batch_idx == 60))
    never.fit(1)
    there = learn.history.n_steps
    assert learn.history.steps['train_loss'] == never.history.steps['train_loss'][:there] and there > 45
    with pytest.raises(RuntimeError, match='left out 2 batches'):
        learner(*bad_points(), SpikeGuard('skip', warmup=10, max_skips=1)).fit(1)

def test_in_a_fit_after_another(capsys):
    "Numbers of epochs go on, and limits begin anew; what is printed is of the fit that has ended"
    def fitted(first):
        x, y = bad_points()
        y[15*BS] = 0.
        learn = learner(x, y, first)
        for _ in range(3): learn.fit(1)
        return learn
    guarded, never = map(fitted, [SpikeGuard('skip', warmup=10, max_skips=5), Without()])
    assert digest(guarded) == digest(never) and len(guarded.spikes) == 9
    guarded.train_dl = [points(8)]*40
    guarded.fit(1)
    said = [o for o in capsys.readouterr().out.splitlines() if 'SpikeGuard' in o]
    assert said == ['SpikeGuard: 3 spikes in this fit, see learn.spikes']*3

def test_batches_of_a_stopped_epoch_are_not_left_out_of_the_next_one():
    "A fit after one that was stopped in mid-epoch begins the epoch again, with its number"
    x, y = bad_points()
    stop = stop_when(lambda learn: learn.training and learn.state.batch_idx == 70)
    learn = learner(x, y, SpikeGuard('skip', warmup=10), stop)
    learn.fit(1)
    assert {o['batch_idx'] for o in learn.spikes} == {15, 50, 51} and learn.state.epoch == 0
    learn.remove_hook(stop)
    learn.train_dl = DataLoader(TensorDataset(*points()), batch_size=BS)
    with pytest.warns(UserWarning, match='begins a new epoch'): learn.fit(1)
    assert learn.state.batch_idx == N and learn.history.n_steps == 67 + N

def test_refused():
    with pytest.raises(ValueError, match='remove NaNGuard'): learner(*points(), SpikeGuard('skip'), NaNGuard()).fit(1)
    with pytest.raises(ValueError, match='SpikeGuard'):
        learner(*points(), SpikeGuard('skip'), optim=torch.optim.LBFGS).fit(1)
    with pytest.raises(ValueError, match='can be read once'):
        learner(*points(), SpikeGuard('skip'), dl=iter([points(8)])).fit(1)

@pytest.mark.parametrize('dl, p', [(tensors, 0.), pytest.param(shuffled, .2, marks=pytest.mark.soak),
                                   pytest.param(seeded, .2, marks=pytest.mark.soak)])
def test_two_processes_leave_out_the_same(dl, p):
    "Only one of them has the sample that is bad; each has its own dropout"
    def trained(first):
        x, y = bad_points()
        learn = learner(x, y, first, dl=dl(x, y))
        learn.model[2].p = p
        learn.launch(2, 2)
        return learn
    guarded, never = trained(SpikeGuard('skip', warmup=10)), trained(OnTwoRanks())
    assert digest(guarded) == digest(never) and len(guarded.spikes) >= 7

def test_a_rank_without_samples_has_no_spike():
    "The last batch has one sample, and the other rank none; an unequal share weighs less"
    x, y = points(41*BS + 1)
    guard = SpikeGuard()
    learn = Learner(nn.Linear(4, 1), TensorLoader(x, y, bs=BS), loss_fn=F.mse_loss, hooks=guard, display=False)
    learn.launch(2, 1)
    assert learn.spikes == [] and guard.past['loss'] == pytest.approx(learn.history.steps['train_loss'], abs=1e-6)

@pytest.mark.parametrize('numbers', [
    range(1000, 1012, 3), pytest.param(range(1000, 1100), marks=pytest.mark.soak)], ids=['few', 'hundred'])
def test_no_false_alarm(numbers):
    for i in numbers:
        learn = healthy_fit(i, SpikeGuard())
        losses = learn.history.steps[next(k for k in learn.history.steps if k.startswith('train_loss'))]
        assert len(losses) == 400 and all(map(math.isfinite, losses)), (learn.about, 'it is not healthy')
        assert not learn.spikes, (i, learn.about, [*learn.spikes])
