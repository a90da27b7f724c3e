"Hooks between loss and step: skipped steps are none, the guard keeps the last good step, nothing is read"
import math
from collections import Counter
from itertools import permutations

import pytest, torch
from torch import nn

from common import batches, make_learner, plain_model as model, same, weights
from test_accumulation import OPTIMS, SIZES, Pair, cut, d_loss, g_loss, pair_learner, slower
from test_average import normed
from test_no_sync import N_TRAIN, N_VALID, allowed_reads, assert_allowed, fit as counted_fit, in_list
from trainer_nb.all import (
    AMP, EMA, GradAccum, GradClip, GradNorm, LRScheduler, LambdaHook, NaNGuard)


def test_all_orders_of_registration():
    "They give the same, bit for bit; that it is right, test_accumulation.py shows"
    makers, found = [lambda: GradAccum(3), lambda: GradClip(.1), lambda: EMA(.9), GradNorm, NaNGuard, AMP], []
    for order in [*permutations(makers)][::97]:
        learn = make_learner(model(), cut(SIZES['wild']), optim=OPTIMS['sgd'], hooks=[f() for f in order])
        norms = torch.tensor(learn.fit(2).steps['grad_norm']).nan_to_num()
        found.append([*weights(learn.model), *weights(learn.ema.model), norms])
    assert all(same(o, found[0]) for o in found)


# Steps that a scaler skips

@pytest.mark.filterwarnings('ignore:.*is nan in epoch')
@pytest.mark.parametrize('n', [1, 2])
def test_a_skipped_step_is_none(n):
    "All is as if its batches were not there: schedule, average, counter, clipping, norms and window"
    data, bad, seen = cut([4]*6), (0, 2*n), []
    def overflow(learn):
        if learn.state.batch_idx in bad: learn.loss = learn.loss*math.inf
    def learner(data, *hooks):
        return make_learner(model(), data, optim=OPTIMS['sgd'], hooks=[
            LRScheduler(slower), EMA(.9, warmup=False), GradClip(.1), GradNorm(), GradAccum(n), *hooks])
    learn = learner(data, AMP('fp16', scaler=lambda device: torch.amp.GradScaler(device, init_scale=8.)),
                    LambdaHook(after_loss=overflow), LambdaHook(after_step=lambda o: seen.append(o.stepped), ord=9))
    learn.fit(1)
    is_skipped = [i//n in (0, 2) for i in range(6)]
    expected = [i % n == n - 1 and not is_skipped[i] for i in range(6)]
    assert seen == expected and learn.state.optimizer_step == sum(expected) == learn.ema.n
    rest = learner([b for b, o in zip(data, is_skipped) if not o])
    rest.fit(1)
    ours, theirs = (weights(o.model) + weights(o.ema.model) for o in (learn, rest))
    assert all(torch.allclose(a, b, atol=2e-3) for a, b in zip(ours, theirs))       # in half precision
    norms, others = ([v for v in o.history.steps['grad_norm'] if v == v] for o in (learn, rest))
    assert norms == pytest.approx(others, rel=.02) and len(norms) == sum(expected)

@pytest.mark.filterwarnings('ignore:.*is nan in epoch')
def test_each_optimizer_has_its_scale():
    "One that overflows for ever does not touch the other one's; a loss that both share has one scale"
    def fit(step, *hooks, **kwargs):
        def scaler(device): return torch.amp.GradScaler(device, init_scale=256., **kwargs)
        learn = pair_learner(step, batches(), AMP('fp16', scaler=scaler), *hooks)
        learn.fit(1)
        assert all(o.isfinite().all() for o in weights(learn.model))
        scales = {name: o.get_scale() for name, o in learn.get_hook('AMP').scalers.items()}
        return scales, learn.state.optimizer_step
    def each(batch, learn):
        yield 'd', d_loss(learn.model, batch[0])*math.inf
        yield 'g', g_loss(learn.model, batch[0])
    def shared(batch, learn): return {'loss': d_loss(learn.model, batch[0])}
    assert fit(each, GradAccum(2)) == ({'d': 32, 'g': 256}, 3)
    assert fit(shared, growth_interval=1) == ({'d': 256*2**5, 'g': 256}, 5)


# NaN

OPTS = {'momentum': OPTIMS['sgd'], 'fused': lambda p: torch.optim.Adam(p, .01, fused=True),
        'foreach': lambda p: torch.optim.Adam(p, .01, foreach=True, amsgrad=True)}

@pytest.fixture(params=['cpu', 'device'])
def where(request, monkeypatch):
    "The CPU, whose flag is read before each step, or as on a device, which gates the steps"
    if request.param == 'device': monkeypatch.setattr('trainer_nb.loop.steps.on_host', lambda t: False)
    return request.param

def spoiler(what, i):
    "A hook that spoils one thing in the training batch after `i` others"
    n = [0]
    def f(learn):
        if not learn.training: return
        n[0] += 1
        if n[0] - 1 != i: return
        if what == 'batch':
            learn.batch = [learn.batch[0].clone(), learn.batch[1]]
            learn.batch[0][1, 2] = math.nan
        if what == 'loss': learn.loss = learn.loss*math.inf
        if what == 'gradient': learn.model[2].bias.grad[1] = -math.inf
    points = {'loss': 'after_loss', 'gradient': 'after_backward'}
    return LambdaHook(**{points.get(what, 'before_step'): f}, ord=-99)

@pytest.mark.filterwarnings('ignore:.*is nan in epoch')
@pytest.mark.parametrize('optim', OPTS.values(), ids=OPTS)
@pytest.mark.parametrize('what, i, every', [('batch', 0, 100), ('batch', 7, 1), ('loss', 7, 1), ('gradient', 7, 100)])
def test_the_guard_keeps_the_last_good_step(optim, what, i, every, where):
    "Weights, buffers and optimizer are bit for bit those before; training can continue"
    learn = make_learner(normed(), batches(), batches(), optim=optim,
                         hooks=[NaNGuard(every), spoiler(what, i), GradClip(1.), EMA()])
    name = 'the gradient of 2.bias' if what == 'gradient' else 'the loss'
    says = f'{name} .*epoch {i//5}, batch {i % 5}, after {i} '
    with pytest.raises(FloatingPointError, match=says) as e: learn.fit(4)
    has_batch = what == 'batch' and (where == 'cpu' or every == 1)      # it is still there
    assert ('batch[0], as the step got it' in str(e.value)) == has_batch
    assert len(learn.history.valid_rows) == i//5        # it looks before a validation, too
    good = make_learner(normed(), batches(), optim=optim, hooks=[GradClip(1.)])
    if i: good.fit(max_steps=i)
    assert same(weights(learn.model), weights(good.model)) and learn.state.optimizer_step == i
    for p, q in zip(learn.model.parameters(), good.model.parameters(), strict=True):
        a, b = learn.opt.state.get(p, {}), good.opt.state.get(q, {})
        assert a.keys() == b.keys() or not any(o.any() for o in a.values())     # a fused optimizer has made its zeros
        assert all(torch.equal(torch.as_tensor(a[k]), torch.as_tensor(b[k])) for k in b if b[k] is not None)
    assert all(o.isfinite().all() for o in weights(learn.ema.model))
    learn.valid_dl = None
    learn.fit(1)
    assert all(o.isfinite().all() for o in weights(learn.model))


# Nothing is read, and all is put back

def test_no_value_is_read(monkeypatch, optim=torch.optim.AdamW):
    "Only the guard does, once in a hundred batches"
    monkeypatch.setattr('trainer_nb.features.gradients.perf_counter', lambda: 0.)
    allowed = Counter({k: n//3 for k, n in allowed_reads(optim, in_list).items()})      # the optimizer's own reads
    hooks = [GradAccum(3), GradClip(.1), EMA(.9, warmup=False), GradNorm(), NaNGuard()]
    seen = counted_fit(make_learner(nn.Linear(4, 3), in_list(N_TRAIN), in_list(N_VALID), optim=optim, lr=.01,
                                    hooks=hooks))
    seen.subtract(dict.fromkeys(['__int__', '_local_scalar_dense'], 2*N_TRAIN//100))
    assert_allowed(seen, allowed)

def test_optimizers_that_share_a_parameter():
    "Of one loss, the second one would find no gradient; windows would have the gradients of both"
    def learner(step, *hooks):
        m = Pair()
        opts = {'a': torch.optim.SGD(m.parameters(), .1), 'b': torch.optim.SGD([*m.parameters()][:1], .1)}
        return make_learner(m, batches(), train_step=step, optim=opts, hooks=hooks)
    def one(batch, learn): return {'loss': d_loss(learn.model, batch[0])}
    def each(batch, learn):
        for name in 'ab': yield name, d_loss(learn.model, batch[0])
    for refused in learner(one), learner(each, GradAccum(2)):
        with pytest.raises(ValueError, match="'a' and 'b' share a parameter"): refused.fit(1)
        assert same(weights(refused.model), weights(Pair()))
    (learn := learner(each)).fit(1)
    assert not same(weights(learn.model), weights(Pair()))
