"Windows of `GradAccum` equal one big batch, whatever else happens; the references are plain loops"
import math
from copy import deepcopy
from functools import partial

import pytest, torch, torch.nn.functional as F
from torch import nn

from common import batches, close, make_learner, plain_loop, plain_model as model, problem, same, weights
from trainer_nb.all import CancelEpoch, CancelStep, GradAccum, GradClip, LambdaHook, Metric

OPTIMS = {'sgd': lambda params: torch.optim.SGD(params, lr=.1, momentum=.9),
          'adam': lambda params: torch.optim.Adam(params, lr=.01)}
optims = pytest.mark.parametrize('optim', OPTIMS.values(), ids=OPTIMS)
SIZES = {'even': [4]*6, 'ragged': [5, 5, 5, 5, 4], 'wild': [1, 9, 2, 2, 7, 3], 'one': [24]}

def cut(sizes): return list(zip(*(o.split(sizes) for o in problem())))

def windows(sizes, n): return [sum(sizes[i:i + n]) for i in range(0, len(sizes), n)]

def plain(optim, data, n_epochs=1, loss_of=None):
    "The model that the plain loop trains"
    m = model()
    plain_loop(m, optim(m.parameters()), data, n_epochs, loss_of)
    return m


# One big batch

@optims
@pytest.mark.parametrize('sizes, n', [('even', 1), ('even', 4), ('ragged', 2), ('ragged', 10), ('wild', 3), ('one', 3)])
def test_equals_the_big_batch(optim, sizes, n):
    sizes = SIZES[sizes]
    learn = make_learner(model(), cut(sizes), optim=optim, hooks=[GradAccum(n)])
    learn.fit(2)
    assert close(learn.model, plain(optim, cut(windows(sizes, n)), 2))
    assert learn.state.optimizer_step == 2*len(windows(sizes, n)) and learn.state.samples_seen == 48
    learn.fit(1)            # a second fit finds what the first one found
    assert close(learn.model, plain(optim, cut(windows(sizes, n)), 3)) and learn.state.grad_accum_steps == 1

def test_nobody_looks_ahead_unasked():
    "A batch is read when the one before it is done, unless a hook needs to know whether that was the last one"
    for hooks, expected in ([], [0, 1, 2, 3]), ([GradAccum(2)], [1, 1, 3, 3]):
        read, at_step = [], []
        def dl():
            for b in batches()[:4]:
                read.append(len(read))
                yield b
        make_learner(model(), dl(),
                     hooks=[*hooks, LambdaHook(after_step=lambda learn: at_step.append(read[-1]))]).fit(1)
        assert at_step == expected

def test_validation_in_the_middle_of_a_window_keeps_the_gradients():
    def look(learn):
        if learn.training: learn.validate()
    learn = make_learner(model(), cut([4]*6), cut([24]), optim=OPTIMS['sgd'],
                         hooks=[GradAccum(3), LambdaHook(after_step=look)])
    learn.fit(2)
    assert close(learn.model, plain(OPTIMS['sgd'], cut([12]*2), 2))


# Stops, cancels, validation

def test_a_cancelled_epoch_ends_its_window():
    def cancel(learn):
        if learn.state.batch_idx == 3 and not learn.state.epoch: raise CancelEpoch
    learn = make_learner(model(), cut([4]*6), optim=OPTIMS['sgd'], hooks=[GradAccum(2), LambdaHook(after_loss=cancel)])
    learn.fit(2)
    assert close(learn.model, plain(OPTIMS['sgd'], [cut([8]*3)[0], *cut([8]*3)]))

def test_a_fit_after_an_error_begins_with_an_empty_window():
    def fail(learn):
        if learn.state.batch_idx == 1: raise ZeroDivisionError
    learn = make_learner(model(), cut([4]*6), optim=OPTIMS['sgd'], hooks=[GradAccum(3)])
    with pytest.raises(ZeroDivisionError): learn.fit(1, hooks=[LambdaHook(after_loss=fail)])
    assert learn.state.grad_accum_steps == 1
    learn.fit(1)
    assert close(learn.model, plain(OPTIMS['sgd'], cut([12]*2)))


# Several optimizers

class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.d, self.g = nn.Linear(4, 1), nn.Linear(4, 4)

def d_loss(m, x): return m.d(x).square().mean() + m.d(m.g(x)).mean()
def g_loss(m, x): return (m.d(m.g(x)) - 1).square().mean()

def optimizers(m):
    return {'d': torch.optim.SGD(m.d.parameters(), lr=.1, momentum=.9), 'g': torch.optim.Adam(m.g.parameters(), lr=.01)}

def pair_learner(step, data, *hooks):
    m = Pair()
    return make_learner(m, data, train_step=step, optim=optimizers(m), hooks=hooks)

class Hand:
    "A loop by hand: for each optimizer the losses of its window, and their weights"
    def __init__(self, n, clip=None):
        self.m, self.n, self.clip = Pair(), n, clip
        self.opts, self.open = optimizers(self.m), {'d': [], 'g': []}
    def loss(self, name, loss, weight, is_last):
        params = [p for g in self.opts[name].param_groups for p in g['params']]
        self.open[name].append((torch.autograd.grad(loss, params), weight))
        if is_last or len(self.open[name]) == self.n: self.step(name, params)
    def step(self, name, params=None):
        params = params or [p for g in self.opts[name].param_groups for p in g['params']]
        total = sum(w for _, w in self.open[name])
        for i, p in enumerate(params): p.grad = sum(g[i]*w for g, w in self.open[name])/total
        if self.clip: nn.utils.clip_grad_norm_(params, self.clip[name])
        self.opts[name].step()
        self.opts[name].zero_grad()
        self.open[name] = []
    def close(self):
        for name in self.open:
            if self.open[name]: self.step(name)

@pytest.mark.parametrize('n, every, clip', [
    (1, 2, None), (2, 1, {'d': .2, 'g': .05}), (3, 2, None), (4, 3, {'d': .2, 'g': .05}), (10, 2, None)])
def test_two_optimizers_against_a_loop_by_hand(n, every, clip):
    "`g` yields in each `every`th batch only; in the last batch, or after it, no gradient waits any more"
    data, n_epochs = cut(SIZES['wild']), 2
    def step(batch, learn):
        yield 'd', d_loss(learn.model, batch[0])
        if learn.state.batch_idx % every == 0: yield 'g', g_loss(learn.model, batch[0])
    learn = pair_learner(step, data, GradAccum(n), *([GradClip(clip)] if clip else []))
    learn.fit(n_epochs)
    hand = Hand(n, clip)
    for _ in range(n_epochs):
        for i, (x, _) in enumerate(data):
            is_last = i == len(data) - 1
            hand.loss('d', d_loss(hand.m, x), len(x), is_last)
            if i % every == 0: hand.loss('g', g_loss(hand.m, x), len(x), is_last)
        hand.close()
    assert close(learn.model, hand.m) and not learn.get_hook('GradAccum').open

def test_a_cancelled_last_batch_leaves_no_gradient_waiting():
    data = cut([4]*6)
    def step(batch, learn):
        yield 'd', d_loss(learn.model, batch[0])
        yield 'g', g_loss(learn.model, batch[0])
    def cancel(learn):
        if learn.state.batch_idx == 5: raise CancelStep
    learn = pair_learner(step, data, GradAccum(4), LambdaHook(before_step=cancel))
    rest = pair_learner(step, data[:5], GradAccum(4))
    learn.fit(1)
    rest.fit(1)
    # `g` differs: in `rest`, `d` steps before the last batch's loss of `g`
    assert same(weights(learn.model.d), weights(rest.model.d)) and not learn.get_hook('GradAccum').open
    assert learn.state.optimizer_step == rest.state.optimizer_step == 2
    assert learn.opts['g'].state[learn.model.g.weight]['step'] == 2


# Sums, and weights of 0

@pytest.mark.parametrize('how, n', [('loss_fn', 2), ('step', 4)])
def test_sums_are_added_up(n, how, optim=OPTIMS['sgd']):
    def loss_of(m, batch): return F.cross_entropy(m(batch[0]), batch[1], reduction='sum')
    def step(batch, learn): return {'loss': loss_of(learn.model, batch), 'reduction': 'sum'}
    sizes = [5, 5, 5, 5, 4]
    own = {'train_step': step} if how == 'step' else {'loss_fn': nn.CrossEntropyLoss(reduction='sum')}
    learn = make_learner(model(), cut(sizes), optim=optim, hooks=[GradAccum(n)], **own)
    learn.fit(2)
    by_hand = plain(optim, cut(windows(sizes, n)), 2, loss_of=loss_of)
    assert all(torch.allclose(a, b, rtol=0, atol=1e-5) for a, b in zip(weights(learn.model), weights(by_hand)))

def test_a_window_that_weighs_nothing():
    "A number does what a tensor does"
    def fit(kind):
        def step(batch, learn):
            mask = torch.full((len(batch[1]),), float(learn.state.batch_idx < 4))
            loss = (F.cross_entropy(learn.model(batch[0]), batch[1], reduction='none')*mask).sum()
            return {'loss': loss/mask.sum().clamp(min=1), 'n': kind(mask.sum())}
        learn = make_learner(model(), cut([4]*6), train_step=step, optim=OPTIMS['sgd'], hooks=[GradAccum(2)])
        learn.fit(2)
        assert all(o.isfinite().all() for o in weights(learn.model))
        return learn.model
    assert close(fit(int), fit(torch.as_tensor))


# Losses that do not count each target alike

W = torch.tensor([.2, 1.5, 4.])
COUNTING = {'ignore_index': partial(F.cross_entropy, ignore_index=2), 'default': F.cross_entropy,
            'weight': nn.CrossEntropyLoss(weight=W), 'both': nn.CrossEntropyLoss(weight=W, ignore_index=0),
            'nll': partial(F.nll_loss, weight=W)}
loss_fns = pytest.mark.parametrize('name', COUNTING)

def uncounted(name):
    "A model, and data in which all targets of some samples do not count"
    x, y = problem()
    y = y.clone()
    y[4:10] = -100 if name in ('default', 'weight', 'nll') else 2 if name == 'ignore_index' else 0
    m = model()
    return nn.Sequential(m, nn.LogSoftmax(1)) if name == 'nll' else m, x, y

@loss_fns
@pytest.mark.parametrize('bs', [3, 24])
def test_a_validation_loss_is_that_of_all_data_at_once(name, bs):
    (m, x, y), loss_fn = uncounted(name), COUNTING[name]
    with torch.no_grad(): expected = loss_fn(m.eval()(x), y).item()
    mean = Metric(lambda p, t: p[:, 0].mean(), 'mean')
    learn = make_learner(m, (x, y), (x, y), loss_fn=loss_fn, bs=bs, metrics=mean)
    found = learn.validate()
    assert found['valid_loss'] == pytest.approx(expected, rel=1e-6)
    with torch.no_grad(): assert found['valid_mean'] == pytest.approx(m(x)[:, 0].mean().item(), rel=1e-5)
    assert math.isnan(learn.validate((x[4:10], y[4:10]))['valid_loss'])

@loss_fns
def test_accumulated_losses_that_count_equal_the_big_batch(name, n=2):
    (m, x, y), loss_fn = uncounted(name), COUNTING[name]
    def data(sizes): return list(zip(x.split(sizes), y.split(sizes)))
    big, other = deepcopy(m), data(windows([2, 8, 2, 2, 7, 3], n))
    plain_loop(big, OPTIMS['sgd'](big.parameters()), other, 1, lambda m, batch: loss_fn(m(batch[0]), batch[1]))
    make_learner(m, data([2, 8, 2, 2, 7, 3]), loss_fn=loss_fn, optim=OPTIMS['sgd'], hooks=[GradAccum(n)]).fit(1)
    assert close(m, big)
