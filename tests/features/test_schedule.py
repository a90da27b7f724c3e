"Schedules set their rates at real optimizer steps, and the preview equals what follows"
import copy, itertools, math, warnings

import pytest, torch
from torch import nn
from torch.optim import SGD, AdamW, lr_scheduler as S

from common import batches, make_learner, make_model, stop_when
from test_lr_find import check_same, snapshot
from trainer_nb.all import (
    CancelEpoch, CancelStep, Checkpoint, GradAccum, LRScheduler, LambdaHook, Metric, OneCycle, Schedule, WarmupCosine,
    exponential, linear
)
from trainer_nb.show.controls import scale_lr
from trainer_nb.loop.optim import lr_names

# Learners and what is expected of them

def learner(*hooks, kind=SGD, lrs=(.1, .01), model=None, **kwargs):
    model = model or make_model()
    opts = dict(momentum=.9) if kind is SGD else {}
    groups = [{'params': model[0].parameters(), 'lr': lrs[0]}, {'params': model[3].parameters(), 'lr': lrs[1]}]
    return make_learner(model, **{'optim': kind(groups, **opts), 'hooks': hooks, **kwargs})

def dummy(kind=SGD, lrs=(.1, .01)):
    groups = [{'params': [nn.Parameter(torch.zeros(1))], 'lr': lr} for lr in lrs]
    return kind(groups, **(dict(momentum=.9) if kind is SGD else {}))

def lrs_of(learn, since=0): return list(zip(*(learn.history.steps[k][since:] for k in lr_names(learn.opts))))

def by_hand(make, n_epochs, n_batches=5, step='step', n_accum=1, kind=SGD, values=(), lrs=(.1, .01),
            max_steps=math.inf):
    "What a hand-written loop steps with: a tuple of rates for each batch"
    opt, n_steps, res = dummy(kind, lrs), 0, []
    n = min(n_epochs*math.ceil(n_batches/n_accum), max_steps) if step == 'step' else n_epochs
    sched, values = make(opt, n), iter(values)
    for epoch in range(n_epochs):
        for i in range(n_batches):
            if n_steps >= max_steps: return res
            res.append(tuple(float(g['lr']) for g in opt.param_groups))
            if (i + 1) % n_accum == 0 or i + 1 == n_batches:
                opt.step()
                n_steps += 1
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

HOOKS = {**{f'{k}, {step}': (lambda k=k, step=step: LRScheduler(SCHEDS[k], step))
            for k, step in (('StepLR', 'epoch'), ('OneCycleLR', 'step'), ('SequentialLR', 'step'))},
         'OneCycle': lambda: OneCycle(.3), 'WarmupCosine': lambda: WarmupCosine(.2, warmup=.3),
         'Schedule': lambda: Schedule(exponential(1., .01), linear(.8, .9))}

SOME = ['SequentialLR, step', 'OneCycleLR, step', 'Schedule']

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
    "Five batches, so that the last window is short; a second fit has the whole curve again"
    learn = learner(LRScheduler(SCHEDS[name], step), *[GradAccum(2)]*(n_accum - 1))
    before, expected = groups_of(learn), by_hand(SCHEDS[name], 3, step=step, n_accum=n_accum)
    for i in range(2):
        preview = learn.plot_schedule(3).steps
        learn.fit(3)
        assert lrs_of(learn, 15*i) == expected == list(zip(*(preview[k] for k in ('lr', 'lr_1'))))
        clean(learn, before)

def test_a_plateau():
    def falls(opt, n=None): return S.ReduceLROnPlateau(opt, factor=.5, patience=0, threshold=.5)
    def rises(opt, n=None): return S.ReduceLROnPlateau(opt, 'max', patience=0)
    for make, monitor in (falls, 'valid_loss'), (rises, 'train_loss'):
        learn = learner(LRScheduler(lambda opt: make(opt), 'metric', monitor), valid_dl=batches(seed=2))
        before = groups_of(learn)
        learn.fit(8)
        expected = by_hand(make, 8, step='metric', values=learn.history.epochs[monitor])
        assert lrs_of(learn) == expected and len(set(expected)) > 3
        clean(learn, before)

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
    d, g = learn.history.steps['lr_d'], learn.history.steps['lr_g']
    assert [(o,) for o in d] == by_hand(SCHEDS['ExponentialLR'], 2, lrs=(.1,)) and max(g) <= .5
    assert g[0] == pytest.approx(.5/25)
    assert preview['lr_d'] == d and preview['lr_g'] == g
    assert preview['momentum_g'] == learn.history.steps['momentum_g']
    assert 'momentum_d' not in preview
    learn = two(OneCycle({'d': .5, 'g': .1}))
    learn.fit(2)
    assert [learn.history.steps[k][0] for k in ('lr_d', 'lr_g')] == pytest.approx([.02, .004])
    with pytest.raises(ValueError, match="'x'"): two(OneCycle(opt='x')).fit(1)
    with pytest.raises(ValueError, match='both set'): two(OneCycle(), Schedule(linear(1, 0), opt='d')).fit(1)


def test_a_tensor_stays_the_same_object():
    lrs = (torch.tensor(.1), torch.tensor(.01))
    for hook in OneCycle(.2, moms=None), LRScheduler(SCHEDS['ExponentialLR']):
        learn = learner(hook, kind=AdamW, lrs=lrs)
        plain = learner(copy.copy(hook), kind=AdamW, lrs=(float(lrs[0]), float(lrs[1])))
        objects = [id(g['lr']) for g in learn.opt.param_groups]
        preview = learn.plot_schedule(2).steps
        for o in learn, plain: o.fit(2)
        for a, b in zip(lrs_of(learn), lrs_of(plain)): assert a == pytest.approx(b, rel=1e-5)
        assert preview['lr'] == pytest.approx(learn.history.steps['lr'], rel=1e-6)
        assert [id(g['lr']) for g in learn.opt.param_groups] == objects
        assert [float(o) for o in lrs] == pytest.approx([.1, .01])


# Steps that are none, and changes from outside

def cancels(*which):
    count = itertools.count()
    def before_step(learn):
        if learn.training and next(count) in which: raise CancelStep
    return LambdaHook(before_step=before_step)

@pytest.mark.parametrize('name', ['OneCycle', 'SequentialLR, step'])
def test_a_skipped_step_moves_nothing(name):
    learn, plain = learner(HOOKS[name](), cancels(2, 3)), learner(HOOKS[name]())
    for o in learn, plain: o.fit(2)
    assert learn.state.optimizer_step == 8 and lrs_of(learn) == lrs_of(plain)[:8]
    skips = itertools.count()
    learn = learner(HOOKS[name](), LambdaHook(do_opt_step=lambda learn, nxt: False if next(skips) in (2, 3) else nxt()))
    learn.fit(2)
    expected = lrs_of(plain)
    assert lrs_of(learn) == [*expected[:3], expected[2], *expected[2:8]]

@pytest.mark.parametrize('kind, ord', [('OneCycle', -60), ('WarmupCosine', -60), ('Schedule', 60)])
def test_a_factor_by_hand_stays(kind, ord):
    "The button of Controls: all later rates are half of what they would have been"
    learn, plain = learner(HOOKS[kind]()), learner(HOOKS[kind]())
    learn.add_hook(LambdaHook(after_step=lambda learn: learn.state.optimizer_step == 4 and scale_lr(.5, learn),
                              ord=ord))
    before = groups_of(learn)
    for o in learn, plain: o.fit(2)
    for i, (a, b) in enumerate(zip(lrs_of(learn), lrs_of(plain))):
        assert a == pytest.approx([o*(.5 if i >= 4 else 1) for o in b], rel=1e-9), i
    clean(learn, before)


# Stops

@pytest.mark.parametrize('name', SOME)
def test_an_error_puts_everything_back(name):
    calls = itertools.count(1)
    def boom(learn):
        if next(calls) == 7: raise RuntimeError('boom')
    learn = learner(HOOKS[name](), LambdaHook(before_step=boom))
    before = groups_of(learn)
    with pytest.raises(RuntimeError, match='boom'): learn.fit(3)
    clean(learn, before)

# The preview

@pytest.fixture(autouse=True)
def _aside(tmp_path, monkeypatch): monkeypatch.chdir(tmp_path)       # a snapshot reads all files that are there

@pytest.mark.parametrize('name', HOOKS)
def test_a_preview_comes_true_and_changes_nothing(name):
    for kwargs, n_accum in (dict(n_epochs=3), 1), (dict(max_steps=4), 2):
        learn = learner(HOOKS[name](), GradAccum(n_accum))
        before = snapshot(learn)
        preview = learn.plot_schedule(**kwargs)
        check_same(before, snapshot(learn))
        learn.fit(**kwargs)
        recorded = learn.history.steps
        assert preview.steps == {k: recorded[k] for k in preview.steps} and preview.steps.keys() >= {'lr', 'lr_1'}
        assert preview.steps.keys() >= {k for k in recorded if k.startswith('momentum')}

@pytest.mark.parametrize('stop, first, then', [(7, 2, 4), (10, 4, 3), ('valid', 2, 4)])       # 10: at an epoch's end
@pytest.mark.parametrize('kind', [OneCycle, WarmupCosine])
def test_another_length_is_another_plan(kind, first, then, stop, tmp_path):
    "After a resume the rates are those of one fit of the new length, at the same step"
    n = 10 if stop == 'valid' else stop
    def new(*hooks): return make_learner(hooks=[kind(.1), GradAccum(2), *hooks], valid_dl=batches(seed=2),
                                         optim=lambda p: SGD(p, .1, momentum=.9))
    leave = stop_when(lambda learn: learn.history.n_steps == n and learn.training == (stop != 'valid'))
    new(leave, Checkpoint(tmp_path)).fit(first)
    learn, whole = new(Checkpoint(tmp_path)), new()
    whole.fit(then)
    learn.fit(then, resume=True)
    for k in {'lr', 'momentum'} & whole.history.steps.keys():
        assert learn.history.steps[k][n:] == pytest.approx(whole.history.steps[k][n:], rel=1e-6, abs=1e-12)
        assert len(learn.history.steps[k]) == 5*then

def test_another_length_keeps_what_changed_the_rate(tmp_path):
    def new(*hooks): return make_learner(hooks=[WarmupCosine(.1), *hooks], optim=lambda p: AdamW(p, .1))
    def change(learn):
        if learn.training and learn.history.n_steps == 3: scale_lr(.5, learn)
        if learn.training and learn.history.n_steps == 7: learn.stop()
    new(LambdaHook(after_step=change), Checkpoint(tmp_path)).fit(2)
    learn, whole = new(Checkpoint(tmp_path)), new()
    learn.fit(4, resume=True)
    whole.fit(4)
    assert learn.history.steps['lr'][7:] == pytest.approx([o/2 for o in whole.history.steps['lr'][7:]], rel=1e-6)

def test_torchs_schedulers_keep_their_plan(tmp_path):
    def new(*hooks):
        return make_learner(hooks=[LRScheduler(SCHEDS['CosineAnnealingLR']), *hooks], optim=lambda p: SGD(p, .1))
    new(stop_when(lambda learn: learn.history.n_steps == 7), Checkpoint(tmp_path)).fit(2)
    learn, whole = new(Checkpoint(tmp_path)), new()
    with pytest.warns(UserWarning, match='planned for 10 steps, the fit took 15'): learn.fit(3, resume=True)
    whole.fit(2)
    assert learn.history.steps['lr'][:10] == pytest.approx(whole.history.steps['lr'])


# The end of a schedule is that of its fit

class Wrong:
    "A loader whose length is wrong"
    def __init__(self, n): self.n = n
    def __len__(self): return self.n
    def __iter__(self): return iter(batches())

@pytest.mark.parametrize('hook, kwargs, says', [
    (lambda: OneCycle(.1), dict(train_dl=Wrong(3)), 'planned for 9 steps, the fit took 15 and ended at rate 1e-06'),
    (lambda: WarmupCosine(.1), dict(train_dl=Wrong(8)), 'planned for 24 steps, the fit took 15'),
    (lambda: LRScheduler(SCHEDS['CosineAnnealingLR']), dict(train_dl=Wrong(3)), 'planned for 9 steps, the fit took 15'),
    (lambda: OneCycle(.1, n_steps=100), {}, 'planned for 100 steps, the fit took 15'),
    (lambda: OneCycle(n_steps=9), {}, 'planned for 9 steps, the fit took 15'),
    (lambda: LRScheduler(SCHEDS['StepLR'], 'epoch', n_steps=5), {}, 'planned for 5 epochs, the fit took 3'),
    (lambda: OneCycle(.1), {}, ''), (lambda: Schedule(linear(.1, 1), n_steps=5), {}, ''),      # a warm-up only
    (lambda: LRScheduler(SCHEDS['StepLR'], 'epoch'), {}, ''), (lambda: WarmupCosine(n_steps=16), {}, ''),
    (lambda: LRScheduler(lambda opt: S.StepLR(opt, 2)), dict(train_dl=Wrong(3)), '')])
def test_a_schedule_that_does_not_end_with_its_fit_warns(hook, kwargs, says):
    learn = make_learner(hooks=hook(), **kwargs)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter('always')
        learn.fit(3)
    found = [str(o.message) for o in seen if 'planned for' in str(o.message)]
    assert len(found) == bool(says) and says in ''.join(found)

def test_a_fit_that_can_be_resumed_does_not_warn():
    learn = make_learner(hooks=[OneCycle(.1), stop_when(lambda learn: learn.history.n_steps == 4)])
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        learn.fit(2)
        assert learn.cancelled == 'stop' and learn.lrs() != [.001]
        learn.resume()
    assert learn.lrs() == [.001] and learn.history.steps['lr'] == make_learner().plot_schedule(
        2, hooks=OneCycle(.1)).steps['lr']

@pytest.mark.parametrize('name', ['OneCycle', 'StepLR, epoch'])
def test_a_param_group_that_is_added_in_a_fit_is_refused(name):
    "Its rate would not be that of the schedule"
    def add(learn):
        if learn.state.epoch == 1: learn.opt.add_param_group({'params': [nn.Parameter(torch.ones(1))]})
    learn = learner(HOOKS[name](), LambdaHook(before_epoch=add))
    with pytest.raises(ValueError, match='param group that was added .*: add it before'): learn.fit(3)
    assert learn.state.optimizer_step == 5 and learn.lrs()[:2] == [.1, .01]

def test_a_step_that_only_another_hook_has_seen_counts():
    "One that ends the epoch where the batch is done, before the schedule hears of it"
    def end(learn):
        if learn.training and learn.state.batch_idx == 3: raise CancelEpoch
    learn, plain = learner(OneCycle(.3, n_steps=9), LambdaHook(after_step=end)), learner(OneCycle(.3, n_steps=9))
    for o in learn, plain: o.fit(max_steps=9)
    assert lrs_of(learn) == lrs_of(plain)


# Values

def plateau(opt): return S.ReduceLROnPlateau(opt, factor=.5, patience=0, threshold=.5)

def test_each_validation_is_judged():
    learn = learner(LRScheduler(plateau, 'valid'), valid_dl=batches(seed=2))
    learn.fit(3, valid_every=2)
    opt, expected, rows = dummy(), [], iter(learn.history.valid_rows)
    sched, row = plateau(opt), next(rows)
    for i in range(15):
        expected.append(tuple(g['lr'] for g in opt.param_groups))
        if row and row['step'] == i + 1:
            sched.step(row['valid_loss'])
            row = next(rows, None)
    assert lrs_of(learn) == expected and len({*expected}) == len(learn.history.valid_rows) - 1
    with pytest.raises(ValueError, match="expected one of .*'metric'"): LRScheduler(plateau, 'valid', 'train_loss')

@pytest.mark.filterwarnings('ignore:.*is nan in epoch')
@pytest.mark.parametrize('step', ['metric', 'valid'])
def test_nan_is_not_judged(step):
    values = [1., math.nan, .1, math.nan, 1., 1.]
    learn = learner(LRScheduler(plateau, step, 'valid_value'), valid_dl=batches()[:1], metrics=Metric(
        lambda pred, targ: torch.tensor(values[learn.state.epoch]), name='value'))
    learn.fit(6)
    assert learn.history.epochs['lr'] == pytest.approx([.1, .1, .1, .1, .1, .05])

def test_two_schedules_of_an_optimizer_multiply_and_restore():
    "The second one begins where the first one has changed the rates already"
    def rises(opt, n=None): return S.LinearLR(opt, .1, 1., 10)
    learn = learner(LRScheduler(lambda opt: rises(opt)), LRScheduler(SCHEDS['StepLR'], 'epoch'))
    before = groups_of(learn)
    preview = learn.plot_schedule(3).steps
    learn.fit(3)
    one, other = by_hand(rises, 3), by_hand(SCHEDS['StepLR'], 3, step='epoch')
    for row, a, b in zip(lrs_of(learn), one, other):
        assert row == pytest.approx([x*y/top for x, y, top in zip(a, b, (.1, .01))])
    assert lrs_of(learn) == [*zip(preview['lr'], preview['lr_1'])]
    clean(learn, before)

def test_a_scheduler_of_another_optimizer_is_refused():
    learn = learner()
    with pytest.raises(ValueError, match='StepLR of another optimizer'):
        learn.fit(1, hooks=LRScheduler(lambda opt: S.StepLR(learn.opt, 1)))

def test_other_options_follow_too_and_are_restored():
    class Decay(S.LambdaLR):
        def step(self, *args):
            super().step(*args)
            for g in self.optimizer.param_groups: g['weight_decay'] = .01*self.last_epoch
    learn, seen = make_learner(optim=lambda p: AdamW(p, .1)), []
    see = LambdaHook(before_step=lambda learn: seen.append(learn.opt.param_groups[0]['weight_decay']))
    learn.fit(1, hooks=[LRScheduler(lambda opt: Decay(opt, lambda i: 1.)), see])
    assert seen == pytest.approx([0, .01, .02, .03, .04]) and groups_of(learn)[0]['weight_decay'] == .01
