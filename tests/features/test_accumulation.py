"Windows of `GradAccum` equal one big batch, whatever else happens; the references are plain loops"
import math
from copy import deepcopy
from functools import partial

import pytest, torch, torch.nn.functional as F
from torch import nn

from common import (
    check_resume, close, make_learner, plain_loop, plain_model as model, problem, same, stop_when, weights)
from trainer_nb.all import (
    AMP, EMA, GradAccum, GradClip, GradNorm, LRScheduler, LambdaHook, NaNGuard)

OPTIMS = {'sgd': lambda params: torch.optim.SGD(params, lr=.1, momentum=.9),
          'adam': lambda params: torch.optim.Adam(params, lr=.01)}
SIZES = {'even': [4]*6, 'ragged': [5, 5, 5, 5, 4], 'wild': [1, 9, 2, 2, 7, 3]}

def cut(sizes): return list(zip(*(o.split(sizes) for o in problem())))

def windows(sizes, n): return [sum(sizes[i:i + n]) for i in range(0, len(sizes), n)]

def plain(data, n_epochs=1, loss_of=None, optim=OPTIMS['sgd']):
    "The model that the plain loop trains"
    m = model()
    plain_loop(m, optim(m.parameters()), data, n_epochs, loss_of)
    return m

def learner(sizes, *hooks, optim=OPTIMS['sgd'], **kwargs):
    return make_learner(model(), cut(sizes), optim=optim, hooks=hooks, **kwargs)


# One big batch

@pytest.mark.parametrize('optim', OPTIMS.values(), ids=OPTIMS)
@pytest.mark.parametrize('sizes, n', [('even', 1), ('even', 4), ('ragged', 10), ('wild', 3)])
def test_equals_the_big_batch(optim, sizes, n):
    "A second fit finds what the first one found"
    sizes = SIZES[sizes]
    learn = learner(sizes, GradAccum(n), optim=optim)
    for n_epochs in 2, 1: learn.fit(n_epochs)
    assert close(learn.model, plain(cut(windows(sizes, n)), 3, optim=optim))
    assert learn.state.optimizer_step == 3*len(windows(sizes, n)) and learn.state.samples_seen == 72
    assert learn.state.grad_accum_steps == 1


# One window per optimizer

class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.d, self.g = nn.Linear(4, 1), nn.Linear(4, 4)

def d_loss(m, x): return m.d(x).square().mean() + m.d(m.g(x)).mean()
def g_loss(m, x): return (m.d(m.g(x)) - 1).square().mean()
LOSSES = {'d': d_loss, 'g': g_loss}

def optimizers(m):
    return {'d': torch.optim.SGD(m.d.parameters(), lr=.1, momentum=.9), 'g': torch.optim.Adam(m.g.parameters(), lr=.01)}

def each_loss(every):
    "A step that yields `g` in each `every`th batch of training only"
    def step(batch, learn):
        yield 'd', d_loss(learn.model, batch[0])
        if not learn.training or learn.state.batch_idx % every == 0: yield 'g', g_loss(learn.model, batch[0])
    return step

def pair_learner(step, data, *hooks, **kwargs):
    m = Pair()
    return make_learner(m, data, train_step=step, optim=optimizers(m), hooks=hooks, **kwargs)

def slower(opt): return torch.optim.lr_scheduler.ExponentialLR(opt, .8)

class Hand:
    "A loop by hand: windows in `p.grad`, clipping, mixed precision, a schedule, an average, validations every 2 steps"
    def __init__(self, n, clip=None, amp=False):
        self.m, self.n, self.clip, self.amp = Pair(), n, clip, amp
        self.opts, self.open, self.average, self.valids, self.norms = optimizers(self.m), {}, Pair(), [], []
        self.scheds = [*map(slower, self.opts.values())]
        self.n_stepped = self.n_steps = 0       # steps of optimizers, and batches with a step

    def loss_of(self, m, name, x):
        with torch.autocast('cpu', torch.bfloat16, enabled=self.amp): return LOSSES[name](m, x)

    def loss(self, name, x, is_last):
        k, weight, unit = self.open.get(name, (0, 0, len(x)))
        loss = self.loss_of(self.m, name, x)*(len(x)/unit)
        loss.backward(inputs=[*getattr(self.m, name).parameters()])
        self.open[name] = k + 1, weight + len(x)/unit, unit
        if is_last or k + 1 == self.n: self.step(name)

    def step(self, name):
        params, opt, (_, weight, _) = [*getattr(self.m, name).parameters()], self.opts[name], self.open.pop(name)
        for p in params: p.grad /= weight
        self.norms.append(nn.utils.get_total_norm([p.grad for p in params]).item())
        if self.clip: nn.utils.clip_grad_norm_(params, self.clip[name])
        opt.step()
        opt.zero_grad()
        self.n_stepped += 1

    @torch.no_grad()
    def validate(self, data):
        found = [(len(x), [self.loss_of(self.average, name, x).item() for name in LOSSES]) for x, _ in data]
        self.valids.append([sum(n*v[i] for n, v in found)/sum(n for n, _ in found) for i in (0, 1)])

    def epoch(self, data, every):
        for i, (x, _) in enumerate(data):
            n, is_last = self.n_stepped, i == len(data) - 1
            for name in LOSSES if i % every == 0 else 'd': self.loss(name, x, is_last)
            while is_last and self.open: self.step([*self.open][0])
            if self.n_stepped == n: continue
            for a, p in zip(self.average.parameters(), self.m.parameters()): a.data.lerp_(p.data, 1 - .9)
            self.n_steps += 1
            for o in self.scheds: o.step()
            if is_last or self.n_steps % 2 == 0: self.validate(data)

@pytest.mark.filterwarnings('ignore:Detected call of .lr_scheduler.step')        # `g` has no loss in each batch
@pytest.mark.parametrize('n, every, clip, amp', [
    (1, 2, None, False), (2, 1, {'d': .2, 'g': .05}, False), (3, 2, None, True), (4, 3, {'d': .2, 'g': .05}, True)])
def test_two_optimizers_against_a_loop_by_hand(n, every, clip, amp):
    "Bit for bit, in either order of the hooks, also where a validation falls into an open window"
    data, hand = cut(SIZES['wild']), Hand(n, clip, amp)
    for _ in range(2): hand.epoch(data, every)
    makers = [lambda: GradAccum(n), lambda: EMA(.9, warmup=False), GradNorm, NaNGuard, lambda: LRScheduler(slower),
              *[AMP]*amp, *[lambda: GradClip(clip)]*bool(clip)]
    for order in makers, makers[::-1]:
        learn = pair_learner(each_loss(every), data, *[f() for f in order], valid_dl=data)
        learn.fit(2, valid_every=2)
        assert same(weights(learn.model), weights(hand.m)) and same(weights(learn.ema.model), weights(hand.average))
        assert learn.state.optimizer_step == hand.n_steps and not learn.get_hook('GradAccum').open
        valids = [[row['valid_loss_d'], row['valid_loss_g']] for row in learn.history.valid_rows]
        assert torch.allclose(torch.tensor(valids), torch.tensor(hand.valids), rtol=1e-5)
        steps = learn.history.steps
        norms = [v for row in zip(steps['grad_norm_d'], steps['grad_norm_g']) for v in row if v == v]
        assert sorted(norms) == pytest.approx(sorted(hand.norms), rel=1e-5)


# What clears a window, and what does not

def test_validation_leaves_an_open_window_untouched():
    "After each batch, also if its step calls backward; so does a dry run"
    def backward(batch, learn):
        with torch.enable_grad(): loss = F.cross_entropy(learn.model(batch[0]), batch[1])
        loss.backward()
        return {'loss': loss.detach()}
    def look(learn):
        if learn.training: learn.validate()
    for kwargs in {}, {'eval_step': backward}:
        learn = learner([4]*6, GradAccum(3), LambdaHook(after_step=look), valid_dl=cut([24]), **kwargs)
        learn.fit(2, hooks=[stop_when(lambda learn: learn.training and learn.history.n_steps == 4)], valid_every=1)
        held = [p.grad.clone() for p in learn.model.parameters()]
        learn.validate()
        with learn.dry_run() as r: r.train_batch()
        assert same(held, [p.grad for p in learn.model.parameters()])
        learn.resume()
        assert close(learn.model, plain(cut([12]*2), 2))

def test_a_fit_after_an_error_or_a_stop_begins_with_an_empty_window():
    def fail(learn):
        if learn.state.batch_idx == 1: raise ZeroDivisionError
    learn = learner([4]*6, GradAccum(3))
    with pytest.raises(ZeroDivisionError): learn.fit(1, hooks=[LambdaHook(after_loss=fail)])
    assert learn.state.grad_accum_steps == 1 and all(p.grad is None for p in learn.model.parameters())
    learn.fit(1, hooks=[stop_when(lambda learn: learn.state.batch_idx == 4)])
    assert learn.get_hook('GradAccum').open == {'': (1, 1., 4)} and learn.model[0].weight.grad is not None
    with pytest.warns(UserWarning, match='without the rest'): learn.fit(1)
    assert close(learn.model, plain([cut([12]*2)[0], *cut([12]*2)]))

def tokens(batch, learn):
    "A loss whose weight is a tensor"
    n = (batch[1] > 0).sum()
    return {'loss': (F.cross_entropy(learn.model(batch[0]), batch[1], reduction='none')*batch[1]).sum()/n, 'n': n}

@pytest.mark.parametrize('kind', ['means', 'tokens', 'pair'])
def test_a_stop_in_a_window_resumes_bit_for_bit(kind, tmp_path):
    "In memory and from a checkpoint, after a batch of training, and in a validation between two"
    def make():
        if kind == 'pair': return pair_learner(each_loss(2), cut([4]*6), GradAccum(3), valid_dl=cut([8]*3))
        step = {'train_step': tokens} if kind == 'tokens' else {}
        return learner(SIZES['ragged'], GradAccum(3), valid_dl=cut([8]*3), optim=OPTIMS['adam'], **step)
    def at(training, i): return stop_when(lambda learn: learn.training is training and (learn.state.epoch, i) == (
        0, learn.state.batch_idx) and (training or learn.valid_idx == 1))
    check_resume(make, tmp_path, at(True, 1), at(False, 3), n_epochs=2, valid_every=1)


# Losses that are sums, or do not count each target alike

@pytest.mark.parametrize('how, n', [('loss_fn', 2), ('step', 4)])
def test_sums_are_added_up(n, how):
    def loss_of(m, batch): return F.cross_entropy(m(batch[0]), batch[1], reduction='sum')
    def step(batch, learn): return {'loss': loss_of(learn.model, batch), 'reduction': 'sum'}
    own = {'train_step': step} if how == 'step' else {'loss_fn': nn.CrossEntropyLoss(reduction='sum')}
    learn = learner(SIZES['ragged'], GradAccum(n), **own)
    learn.fit(2)
    by_hand = plain(cut(windows(SIZES['ragged'], n)), 2, loss_of)
    assert all(torch.allclose(a, b, rtol=0, atol=1e-5) for a, b in zip(weights(learn.model), weights(by_hand)))

W = torch.tensor([.2, 1.5, 4.])

@pytest.mark.parametrize('ignored, loss_fn', [
    (2, partial(F.cross_entropy, ignore_index=2)), (-100, F.cross_entropy), (-100, nn.CrossEntropyLoss(weight=W)),
    (0, nn.CrossEntropyLoss(weight=W, ignore_index=0)), (-100, partial(F.nll_loss, weight=W))])
def test_losses_that_do_not_count_each_target_alike(ignored, loss_fn):
    "A validation loss is that of all data at once, that of a window is that of the big batch"
    (x, y), m = problem(), nn.Sequential(model(), nn.LogSoftmax(1))
    y[4:10] = ignored       # all targets of some batches
    def data(sizes): return list(zip(x.split(sizes), y.split(sizes)))
    with torch.no_grad(): expected = loss_fn(m(x), y).item()
    big, sizes = deepcopy(m), [2, 8, 2, 2, 7, 3]
    learn = make_learner(m, data(sizes), data([3]*8), loss_fn=loss_fn, optim=OPTIMS['sgd'], hooks=[GradAccum(2)])
    assert learn.validate()['valid_loss'] == pytest.approx(expected, rel=1e-6)
    assert math.isnan(learn.validate((x[4:10], y[4:10]))['valid_loss'])
    learn.fit(1)
    plain_loop(big, OPTIMS['sgd'](big.parameters()), data(windows(sizes, 2)), 1,
               lambda m, batch: loss_fn(m(batch[0]), batch[1]))
    assert close(m, big)
