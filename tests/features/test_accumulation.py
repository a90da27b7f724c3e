"Windows of `GradAccum` equal one big batch, whatever else happens; the references are plain loops"
import math
from copy import deepcopy
from functools import partial
from itertools import permutations

import pytest, torch, torch.nn.functional as F
from torch import nn

from common import (
    batches, check_resume, close, make_learner, plain_loop, plain_model as model, problem, same, stop_when, weights)
from trainer_nb.all import AMP, CancelEpoch, CancelStep, EMA, GradAccum, GradClip, LambdaHook, Metric

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

class Hand:
    "A loop by hand, with windows in `p.grad`, clipping, mixed precision, an average, and validations every 2 steps"
    def __init__(self, n, clip=None, amp=False):
        self.m, self.n, self.clip, self.amp = Pair(), n, clip, amp
        self.opts, self.open, self.average, self.valids = optimizers(self.m), {}, Pair(), []
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
            if is_last or self.n_steps % 2 == 0: self.validate(data)

@pytest.mark.parametrize('amp', [False, True], ids=['float32', 'bfloat16'])
@pytest.mark.parametrize('n, every, clip', [
    (1, 2, None), (2, 1, {'d': .2, 'g': .05}), (3, 2, None), (4, 3, {'d': .2, 'g': .05}), (10, 2, None)])
def test_two_optimizers_against_a_loop_by_hand(n, every, clip, amp):
    "Bit for bit, in any order of the hooks, also where a validation falls into an open window"
    data, hand = cut(SIZES['wild']), Hand(n, clip, amp)
    for _ in range(2): hand.epoch(data, every)
    makers = [lambda: GradAccum(n), lambda: EMA(.9, warmup=False), *[AMP]*amp, *[lambda: GradClip(clip)]*bool(clip)]
    for order in [*permutations(makers)][::5]:
        learn = pair_learner(each_loss(every), data, *[f() for f in order], valid_dl=data)
        learn.fit(2, valid_every=2)
        assert same(weights(learn.model), weights(hand.m)) and same(weights(learn.ema.model), weights(hand.average))
        assert learn.state.optimizer_step == hand.n_steps and not learn.get_hook('GradAccum').open
        valids = [[row['valid_loss_d'], row['valid_loss_g']] for row in learn.history.valid_rows]
        assert torch.allclose(torch.tensor(valids), torch.tensor(hand.valids), rtol=1e-5)

def test_a_cancelled_last_batch_leaves_no_gradient_waiting():
    data = cut([4]*6)
    def cancel(learn):
        if learn.state.batch_idx == 5: raise CancelStep
    learn = pair_learner(each_loss(1), data, GradAccum(4), LambdaHook(before_step=cancel))
    rest = pair_learner(each_loss(1), data[:5], GradAccum(4))
    learn.fit(1)
    rest.fit(1)
    # `g` differs: in `rest`, `d` steps before the last batch's loss of `g`
    assert same(weights(learn.model.d), weights(rest.model.d)) and not learn.get_hook('GradAccum').open
    assert learn.state.optimizer_step == rest.state.optimizer_step == 2
    assert learn.opts['g'].state[learn.model.g.weight]['step'] == 2

def test_optimizers_that_share_a_parameter_are_refused():
    "The window of each would have the gradients of both"
    m = Pair()
    opts = {'d': torch.optim.SGD(m.parameters(), .1), 'g': torch.optim.SGD(m.g.parameters(), .1)}
    learn = make_learner(m, batches(), train_step=each_loss(1), optim=opts, hooks=[GradAccum(2)])
    with pytest.raises(ValueError, match="'d' and 'g' share a parameter.*leave out GradAccum"): learn.fit(1)


# What clears a window, and what does not

def test_validation_leaves_an_open_window_untouched():
    "After each batch, also if its step calls backward; so does a dry run"
    def backward(batch, learn):
        with torch.enable_grad(): loss = F.cross_entropy(learn.model(batch[0]), batch[1])
        loss.backward()
        return {'loss': loss.detach()}
    def look(learn):
        if learn.training: learn.validate()
    def fitted(*hooks, **kwargs):
        learn = make_learner(model(), cut([4]*6), cut([24]), optim=OPTIMS['sgd'], hooks=[GradAccum(3), *hooks],
                             **kwargs)
        learn.fit(2, hooks=[stop_when(lambda learn: learn.training and learn.history.n_steps == 4)], valid_every=1)
        held = [p.grad.clone() for p in learn.model.parameters()]
        learn.validate()
        with learn.dry_run() as r: r.train_batch()
        assert same(held, [p.grad for p in learn.model.parameters()])
        learn.resume()
        return learn.model
    plain_one = plain(OPTIMS['sgd'], cut([12]*2), 2)
    for kwargs in {}, {'eval_step': backward}:
        assert close(fitted(LambdaHook(after_step=look), **kwargs), plain_one)
        assert same(weights(fitted(**kwargs)), weights(fitted()))

def test_a_cancelled_epoch_drops_its_window_and_says_so():
    def cancel(learn):
        if learn.state.batch_idx == 3 and not learn.state.epoch: raise CancelEpoch
    learn = make_learner(model(), cut([4]*6), optim=OPTIMS['sgd'], hooks=[GradAccum(2), LambdaHook(after_loss=cancel)])
    with pytest.warns(UserWarning, match='cancelled in an open window'): learn.fit(2)
    assert close(learn.model, plain(OPTIMS['sgd'], [cut([8]*3)[0], *cut([8]*3)]))

def test_a_fit_after_an_error_or_a_stop_begins_with_an_empty_window():
    def fail(learn):
        if learn.state.batch_idx == 1: raise ZeroDivisionError
    learn = make_learner(model(), cut([4]*6), optim=OPTIMS['sgd'], hooks=[GradAccum(3)])
    with pytest.raises(ZeroDivisionError): learn.fit(1, hooks=[LambdaHook(after_loss=fail)])
    assert learn.state.grad_accum_steps == 1 and all(p.grad is None for p in learn.model.parameters())
    learn.fit(1, hooks=[stop_when(lambda learn: learn.state.batch_idx == 4)])
    assert learn.get_hook('GradAccum').open == {'': (1, 1., 4)} and learn.model[0].weight.grad is not None
    with pytest.warns(UserWarning, match='without the rest'): learn.fit(1)
    assert close(learn.model, plain(OPTIMS['sgd'], [cut([12]*2)[0], *cut([12]*2)]))

def tokens(batch, learn):
    "A loss whose weight is a tensor"
    n = (batch[1] > 0).sum()
    return {'loss': (F.cross_entropy(learn.model(batch[0]), batch[1], reduction='none')*batch[1]).sum()/n, 'n': n}

@pytest.mark.parametrize('kind', ['means', 'tokens', 'pair'])
def test_a_stop_in_a_window_resumes_bit_for_bit(kind, tmp_path):
    "In memory and from a checkpoint, after a batch of training, and in a validation between two"
    def make():
        if kind == 'pair': return pair_learner(each_loss(2), cut([4]*6), GradAccum(3), valid_dl=cut([8]*3))
        return make_learner(model(), cut([5, 5, 5, 5, 4]), cut([8]*3), optim=OPTIMS['adam'], hooks=[GradAccum(3)],
                            **{'train_step': tokens} if kind == 'tokens' else {})
    def at(training, i): return stop_when(lambda learn: learn.training is training and (learn.state.epoch, i) == (
        0, learn.state.batch_idx) and (training or learn.valid_idx == 1))
    check_resume(make, tmp_path, at(True, 1), at(True, 2), at(True, 4), at(False, 3), n_epochs=2, valid_every=1)

@pytest.mark.parametrize('n', [1, 2, 3])
@pytest.mark.parametrize('at', [0, 1, 5])
@pytest.mark.parametrize('point', ['before_step', 'after_loss', 'after_backward', 'do_opt_step'])
def test_a_cancelled_batch_against_a_plain_loop(point, at, n):
    "After its backward it stays in the window, as where the loop says `continue`; without accumulation it is cleared"
    data, todo = cut(SIZES['wild']), [at]
    def cancel(learn, *nxt):
        if learn.state.batch_idx in todo: raise CancelStep(todo.pop())      # not the step at the epoch's end
        return nxt and nxt[0]()
    hooks = GradAccum(n), LambdaHook(**{point: cancel}, ord=-99)
    learn = make_learner(model(), data, optim=OPTIMS['sgd'], hooks=hooks)
    learn.fit(1)
    by_hand, window = model(), []
    opt = OPTIMS['sgd'](by_hand.parameters())
    for i, (x, y) in enumerate(data):
        is_in = i != at or n > 1 and point in ('after_backward', 'do_opt_step')
        if is_in:
            window.append(len(x))
            (F.cross_entropy(by_hand(x), y)*(len(x)/window[0])).backward()
        is_due = len(window) >= n and i != at or i == 5
        if not (window and is_due): continue
        for p in by_hand.parameters(): p.grad /= sum(window)/window[0]
        opt.step()
        opt.zero_grad()
        window = []
    assert same(weights(learn.model), weights(by_hand))

def test_a_cancelled_step_ends_its_window():
    "Inside of `GradAccum`, where the gradients of the window are divided already"
    def cancel(learn, nxt):
        if learn.state.batch_idx == 1: raise CancelStep
        return nxt()
    learn = make_learner(model(), cut([4]*6), optim=OPTIMS['sgd'], hooks=[GradAccum(2), LambdaHook(do_opt_step=cancel)])
    learn.fit(1)
    assert close(learn.model, plain(OPTIMS['sgd'], cut([8]*3)[1:])) and learn.state.optimizer_step == 2


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
