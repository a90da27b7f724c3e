"Schedules set their rates at real optimizer steps, and the preview equals what follows"
import itertools, math, re, warnings

import pytest, torch
from torch import nn
from torch.optim import SGD, AdamW, lr_scheduler as S

from common import batches, make_learner, make_model, stop_when, told
from trainer_nb.all import (
    CancelEpoch, CancelStep, Checkpoint, GradAccum, LRScheduler, LambdaHook, Metric, OneCycle, Schedule, WarmupCosine,
    exponential, linear
)
from trainer_nb.loop.optim import lr_names

# Learners and what is expected of them

def learner(*hooks, **kwargs):
    model = make_model()
    opt = SGD([{'params': model[i].parameters(), 'lr': lr} for i, lr in ((0, .1), (3, .01))], momentum=.9)
    return make_learner(model, optim=opt, hooks=hooks, **kwargs)

def dummy(lrs=(.1, .01)): return SGD([{'params': [nn.Parameter(torch.zeros(1))], 'lr': lr} for lr in lrs], momentum=.9)

def lrs_of(learn, since=0): return list(zip(*(learn.history.steps[k][since:] for k in lr_names(learn.opts))))

def by_hand(make, n_epochs, step='step', n_accum=1, values=(), lrs=(.1, .01)):
    "What a hand-written loop of five batches steps with: a tuple of rates for each batch"
    opt, res, values = dummy(lrs), [], iter(values)
    sched = make(opt, n_epochs*math.ceil(5/n_accum) if step == 'step' else n_epochs)
    for epoch in range(n_epochs):
        for i in range(5):
            res.append(tuple(float(g['lr']) for g in opt.param_groups))
            if (i + 1) % n_accum and i < 4: continue
            opt.step()
            if step == 'step': sched.step()
        if step == 'epoch': sched.step()
        if step == 'metric': sched.step(next(values))
    return res

SCHEDS = {
    'StepLR': lambda opt, n: S.StepLR(opt, 2, .5),
    'ExponentialLR': lambda opt, n: S.ExponentialLR(opt, .9),
    'CosineAnnealingLR': lambda opt, n: S.CosineAnnealingLR(opt, n),
    'OneCycleLR': lambda opt, n: S.OneCycleLR(opt, [.1, .01], n + 1),
    'LambdaLR': lambda opt, n: S.LambdaLR(opt, [lambda i: 1/(1 + i), lambda i: .5**i]),
    'ChainedScheduler': lambda opt, n: S.ChainedScheduler([S.ConstantLR(opt, .1, 2), S.ExponentialLR(opt, .9)]),
    'SequentialLR': lambda opt, n: S.SequentialLR(
        opt, [S.LinearLR(opt, .1, 1., 3), S.CosineAnnealingLR(opt, max(n - 3, 1))], [3]),
}

HOOKS = {'SequentialLR': lambda: LRScheduler(SCHEDS['SequentialLR']), 'OneCycle': lambda: OneCycle(.3),
         'WarmupCosine': lambda: WarmupCosine(.2, warmup=.3),
         'Schedule': lambda: Schedule(exponential(1., .01), linear(.8, .9))}

def clean(learn, before):
    "Nothing of a schedule is left on the optimizers"
    assert groups_of(learn) == before
    assert all('step' not in vars(o) and not hasattr(o.step, '_wrapped_by_lr_sched') for o in learn.opts.values())

def groups_of(learn):
    return [{k: v for k, v in g.items() if k != 'params'} for o in learn.opts.values() for g in o.param_groups]


# Torch's schedulers

@pytest.mark.parametrize('step, n_accum', [('step', 2), ('epoch', 1)])
@pytest.mark.parametrize('name', SCHEDS)
def test_torchs_schedulers_as_in_a_loop_by_hand(name, step, n_accum):
    "Five batches: the last window is short. A second fit has the whole curve again, an error restores the rates"
    learn = learner(LRScheduler(SCHEDS[name], step), *[GradAccum(2)]*(n_accum - 1))
    before, expected = groups_of(learn), by_hand(SCHEDS[name], 3, step, n_accum)
    for i in range(2):
        preview = learn.plot_schedule(3).steps
        learn.fit(3)
        assert lrs_of(learn, 15*i) == expected == list(zip(*(preview[k] for k in ('lr', 'lr_1'))))
        clean(learn, before)
    fails = LambdaHook(after_step=lambda learn: 1/(5 - learn.state.batch_idx))
    with pytest.raises(ZeroDivisionError): learn.fit(3, hooks=fails)
    clean(learn, before)

def plateau(opt, n=None): return S.ReduceLROnPlateau(opt, factor=.5, patience=0, threshold=.5)

def test_a_plateau_judges_each_epoch():
    def rises(opt, n=None): return S.ReduceLROnPlateau(opt, 'max', patience=0)
    for make, monitor in (plateau, 'valid_loss'), (rises, 'train_loss'):
        learn = learner(LRScheduler(lambda opt: make(opt), 'metric', monitor), valid_dl=batches(seed=2))
        before = groups_of(learn)
        learn.fit(8)
        expected = by_hand(make, 8, 'metric', values=learn.history.epochs[monitor])
        assert lrs_of(learn) == expected and len(set(expected)) > 3
        clean(learn, before)

@pytest.mark.filterwarnings('ignore:.*is nan in epoch')
def test_nan_is_not_judged():
    values = [1., math.nan, .1, math.nan, 1., 1.]
    learn = learner(LRScheduler(plateau, 'metric', 'valid_value'), valid_dl=batches()[:1], metrics=Metric(
        lambda pred, targ: torch.tensor(values[learn.state.epoch]), name='value'))
    learn.fit(6)
    assert learn.history.epochs['lr'] == pytest.approx([.1, .1, .1, .1, .1, .05])

def two(*hooks):
    def step(batch, learn):
        yield 'd', nn.functional.cross_entropy(learn.model.d(batch[0]), batch[1])
        yield 'g', learn.model.g(batch[0]).square().mean()
    model = nn.ModuleDict({'d': make_model(), 'g': nn.Linear(4, 4)})
    opts = {'d': SGD(model.d.parameters(), lr=.1, momentum=.9), 'g': AdamW(model.g.parameters(), lr=.02)}
    return make_learner(model, train_step=step, optim=opts, hooks=hooks)

def test_one_of_two_optimizers():
    learn = two(LRScheduler(SCHEDS['ExponentialLR'], opt='d'), OneCycle(.5, opt='g'))
    preview = learn.plot_schedule(2).steps
    learn.fit(2)
    steps = learn.history.steps
    assert [(o,) for o in steps['lr_d']] == by_hand(SCHEDS['ExponentialLR'], 2, lrs=(.1,))
    assert steps['lr_g'][0] == pytest.approx(.5/25) and max(steps['lr_g']) <= .5 and 'momentum_d' not in preview
    assert all(preview[k] == steps[k] for k in ('lr_d', 'lr_g', 'momentum_g'))
    learn = two(OneCycle({'d': .5, 'g': .1}))
    learn.fit(2)
    assert [learn.history.steps[k][0] for k in ('lr_d', 'lr_g')] == pytest.approx([.02, .004])
    with pytest.raises(ValueError, match="'x'"): two(OneCycle(opt='x')).fit(1)
    with pytest.raises(ValueError, match='both set'): two(OneCycle(), Schedule(linear(1, 0), opt='d')).fit(1)

def test_two_schedules_of_an_optimizer_multiply_and_restore():
    "The second one begins where the first one has changed the rates already"
    def rises(opt, n=None): return S.LinearLR(opt, .1, 1., 10)
    learn = learner(LRScheduler(rises), LRScheduler(SCHEDS['StepLR'], 'epoch'))
    before = groups_of(learn)
    preview = learn.plot_schedule(3).steps
    learn.fit(3)
    for row, a, b in zip(lrs_of(learn), by_hand(rises, 3), by_hand(SCHEDS['StepLR'], 3, 'epoch')):
        assert row == pytest.approx([x*y/top for x, y, top in zip(a, b, (.1, .01))])
    assert lrs_of(learn) == [*zip(preview['lr'], preview['lr_1'])]
    clean(learn, before)


# Steps that are none, and stops

@pytest.mark.parametrize('name', ['OneCycle', 'SequentialLR'])
def test_what_is_no_step_moves_nothing(name):
    "A cancelled batch, a skipped step; one that only another hook has seen counts"
    def at(when, then):
        n = itertools.count()
        return lambda learn, *nxt: then() if learn.training and next(n) in when else nxt and nxt[0]()
    def cancel(error):
        def f(): raise error
        return f
    plain = learner(HOOKS[name]())
    plain.fit(max_steps=8)
    expected = lrs_of(plain)
    for hook, rates in [
            (LambdaHook(before_step=at((2, 3), cancel(CancelStep))), expected),
            (LambdaHook(do_opt_step=at((2, 3), bool)), [*expected[:3], expected[2], expected[2], *expected[3:]]),
            (LambdaHook(after_step=at((3,), cancel(CancelEpoch))), expected)]:
        learn = learner(HOOKS[name](), hook)
        learn.fit(max_steps=8)
        assert lrs_of(learn) == rates and learn.state.optimizer_step == 8

@pytest.mark.parametrize('kind, stop, then, factor', [
    (OneCycle, 7, 4, 1.), (OneCycle, 10, 3, 1.), (WarmupCosine, 'valid', 4, 1.), (WarmupCosine, 7, 4, .5)])
def test_another_length_is_another_plan(kind, stop, then, factor, tmp_path):
    "After a resume the rates are those of one fit of the new length, at the same step; what changed them stays"
    n = 10 if stop == 'valid' else stop     # 10: at an epoch's end
    def new(*hooks): return make_learner(hooks=[kind(.1), GradAccum(2), *hooks], valid_dl=batches(seed=2),
                                         optim=lambda p: SGD(p, .1, momentum=.9))
    def change(learn):
        if learn.training and learn.history.n_steps == 4 and factor != 1: learn.set_lr(factor*learn.lrs()[0])
    leave = stop_when(lambda learn: learn.history.n_steps == n and learn.training == (stop != 'valid'))
    new(LambdaHook(before_step=change), leave, Checkpoint(tmp_path)).fit(4 if stop == 10 else 2)
    learn, whole = new(Checkpoint(tmp_path)), new()
    whole.fit(then)
    learn.fit(then, resume=True)
    steps, expected = learn.history.steps, whole.history.steps
    assert steps['lr'][n:] == pytest.approx([factor*o for o in expected['lr'][n:]], rel=1e-6, abs=1e-12)
    assert steps.get('momentum', [])[n:] == pytest.approx(expected.get('momentum', [])[n:], rel=1e-6)


# The end of a schedule is that of its fit

class Wrong:
    "A loader whose length is wrong"
    def __init__(self, n): self.n = n
    def __len__(self): return self.n
    def __iter__(self): return iter(batches())

@pytest.mark.parametrize('hook, n, says', [
    (lambda: WarmupCosine(.1), 8, 'for 24 steps.* 15'), (lambda: OneCycle(n_steps=9), 5, 'for 9 steps.* 15'),
    (lambda: LRScheduler(SCHEDS['CosineAnnealingLR']), 3, 'for 9 steps.* 15'),
    (lambda: LRScheduler(SCHEDS['StepLR'], 'epoch', n_steps=5), 5, 'for 5 epochs.* 3'),
    (lambda: OneCycle(.1), 5, ''), (lambda: Schedule(linear(.1, 1), n_steps=5), 5, ''),      # a warm-up only
    (lambda: LRScheduler(lambda opt: S.StepLR(opt, 2)), 3, '')])
def test_a_schedule_that_does_not_end_with_its_fit_warns(hook, n, says):
    with told() as said: make_learner(hooks=hook(), train_dl=Wrong(n)).fit(3)
    found = [o for o in said if 'planned for' in o]
    assert len(found) == bool(says) and re.search(says, ''.join(found))

def test_a_fit_that_can_be_resumed_does_not_warn():
    learn = make_learner(hooks=[OneCycle(.1), stop_when(lambda learn: learn.history.n_steps == 4)])
    with warnings.catch_warnings(action='error'):
        learn.fit(2)
        assert learn.cancelled == 'stop' and learn.lrs() != [.001]
        learn.resume()
    assert learn.lrs() == [.001]
    assert learn.history.steps['lr'] == make_learner().plot_schedule(2, hooks=OneCycle(.1)).steps['lr']
