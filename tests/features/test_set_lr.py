"`learn.set_lr` is a plain loop that changes the rate at the same step; the rest of a schedule is scaled"
import threading

import pytest, torch, torch.nn.functional as F
from torch.optim import SGD, AdamW, lr_scheduler as S

from common import batches, check_resume, make_learner, make_model, plain_model, same, stop_at, weights
from test_schedule import HOOKS, SCHEDS, lrs_of, two
from trainer_nb.all import GradAccum, LRScheduler, LambdaHook, ParamGroups

DATA = batches()        # five of them

def groups(model, lrs=(.1, .01)):
    "Named, as `Learner(lr={...})` makes them"
    return SGD([{'params': model[i].parameters(), 'lr': lr, 'name': name}
                for i, lr, name in zip((0, -1), lrs, ('body', 'head'))], momentum=.9)

def learner(*hooks, model=None, **kwargs):
    model = model or plain_model()
    return make_learner(model, DATA, **{'optim': groups(model), 'hooks': hooks, **kwargs})

def loop_by_hand(rates_of):
    "Two epochs with the rates that `rates_of(i, rates)` returns for step i; returns the weights and the rates"
    model, used, rates = plain_model(), [], (.1, .01)
    opt = groups(model)
    for i, (x, y) in enumerate(DATA*2):
        used.append(rates := rates_of(i, rates))
        for g, lr in zip(opt.param_groups, rates): g['lr'] = lr
        F.cross_entropy(model(x), y).backward()
        opt.step()
        opt.zero_grad()
    return weights(model), used

def at(n, lr, how='at once', ord=60):
    "A hook that sets the rate after `n` optimizer steps, and after the schedule"
    def change(learn):
        if not learn.training or learn.state.optimizer_step != n: return
        if how == 'at once': return learn.set_lr(lr)
        thread = threading.Thread(target=learn.set_lr, args=[lr])      # as a cell of a subshell, or a widget
        thread.start()
        thread.join()
        assert learn.opt.param_groups[0]['lr'] == .1
    return LambdaHook(after_step=change, ord=ord)

@pytest.mark.parametrize('lr, rates, words, how', [
    (.05, (.05, .005), 'lr → 0.05', 'at once'), ({'head': .2}, (.1, .2), 'head → 0.2', 'in another thread'),
    ({'lr_body': .3, 'head': .02}, (.3, .02), 'lr_body → 0.3, head → 0.02', 'at once')])
def test_as_in_a_loop_by_hand(lr, rates, words, how):
    learn = learner(at(4, lr, how))
    learn.fit(2)
    expected, used = loop_by_hand(lambda i, old: rates if i == 4 else old)
    assert same(weights(learn.model), expected) and lrs_of(learn) == used
    assert learn.history.flags == [[4, words]]

def test_between_fits_without_decay_and_of_two_optimizers():
    learn = learner(GradAccum(2))
    learn.fit(1)
    learn.set_lr(.05)
    learn.fit(1)
    assert lrs_of(learn) == [(.1, .01)]*5 + [(.05, .005)]*5 and learn.history.flags == [[5, 'lr → 0.05']]
    learn = learner(model=make_model(), optim=ParamGroups({'0': .1, '3': .01}, decay_norms=False))
    learn.set_lr({'3': .5})
    assert learn.lrs() == [.1, .1, .5, .5]
    learn = two()
    for lr, expected in ({'d': .5}, [.5, .02]), ({'lr_g': .25}, [.5, .25]), (.1, [.1, .1]):
        learn.set_lr(lr)
        assert learn.lrs() == expected

@pytest.mark.parametrize('wrong', [0, -1., 'x', {}, {'haed': .1}, {'head': float('nan')}])
def test_what_is_refused_changes_nothing(wrong):
    learn = learner()
    with pytest.raises((ValueError, TypeError), match='expected a .*number above 0'): learn.set_lr(wrong)
    assert learn.lrs() == [.1, .01] and not learn.history.flags

# Under a schedule

MORE = {'CyclicLR': lambda opt, n: S.CyclicLR(opt, [.01, .001], [.1, .01], 3, cycle_momentum=False),
        'warm restarts': lambda opt, n: S.CosineAnnealingWarmRestarts(opt, 4, eta_min=.001),
        'cosine with a minimum': lambda opt, n: S.CosineAnnealingLR(opt, n, eta_min=.005),
        'polynomial': lambda opt, n: S.PolynomialLR(opt, n, 2.)}
KINDS = {**{k: lambda f=f: LRScheduler(f) for k, f in {**SCHEDS, **MORE}.items()},
         **{k: HOOKS[k] for k in ('OneCycle', 'WarmupCosine', 'Schedule')}}

@pytest.mark.parametrize('kind', KINDS)
def test_the_rest_of_a_schedule_is_scaled(kind):
    "As a plain loop that sets the rate once the scheduler has stepped, and multiplies what it sets from then on"
    undisturbed, learn = learner(KINDS[kind]()), learner(at(4, .25), KINDS[kind]())
    for o in undisturbed, learn: o.fit(2)
    rates, found = lrs_of(undisturbed), lrs_of(learn)
    factor = .25/max(rates[4])
    assert found[:4] == rates[:4] and max(found[4]) == pytest.approx(.25)
    for a, b in zip(found[4:], rates[4:]): assert a == pytest.approx([o*factor for o in b], rel=1e-9)
    assert learn.lrs() == [.1, .01]         # as after any schedule
    if kind in ('OneCycle', 'Schedule', 'OneCycleLR'): return       # they set the momentum, too
    assert same(weights(learn.model), loop_by_hand(lambda i, old: found[i])[0])

def test_a_plateau_goes_on_from_the_new_rate():
    def falls(opt): return S.ReduceLROnPlateau(opt, factor=.5, patience=0, threshold=10.)      # nothing is good enough
    learn = learner(at(12, .4), LRScheduler(falls, 'metric', 'train_loss'), optim=lambda p: SGD(p, .1))
    learn.fit(5)
    assert learn.history.epochs['lr'] == pytest.approx([.1, .05, .4, .2, .1])

@pytest.mark.parametrize('kind', ['CyclicLR', 'OneCycle', 'SequentialLR'])
def test_resumed_after_it(kind, tmp_path):
    def make():
        torch.manual_seed(0)
        model = make_model()
        return make_learner(model, optim=groups(model), seed=3,
                            hooks=[KINDS[kind](), at(4, .2, ord=0), at(8, {'head': .3}, ord=0)])
    whole, *_ = check_resume(make, tmp_path, stop_at(4), stop_at(6), n_epochs=2)
    assert [o for _, o in whole.history.flags] == ['lr → 0.2', 'head → 0.3']

def test_tensors_are_set_in_place():
    "By a schedule, too, whose preview holds, and which restores them"
    learns, lrs = [], (torch.tensor(.1), torch.tensor(.01))
    for a, b in lrs, (.1, .01):
        model = plain_model()
        opt = AdamW([{'params': model[0].parameters(), 'lr': a}, {'params': model[2].parameters(), 'lr': b}])
        learns.append(learner(KINDS['OneCycle'](), at(4, .3), model=model, optim=opt))
        preview = learns[-1].plot_schedule(2).steps['lr']
        learns[-1].fit(2)
        assert preview[:4] == pytest.approx(learns[-1].history.steps['lr'][:4], rel=1e-6)
    for a, b in zip(*map(lrs_of, learns)): assert a == pytest.approx(b, rel=1e-5)
    assert learns[0].lrs()[0] is lrs[0] and [float(o) for o in lrs] == pytest.approx([.1, .01])

def test_a_rate_of_0_scales_nothing():
    "A warm-up from 0 goes on as planned"
    def warm(opt): return S.LambdaLR(opt, lambda i: i/10)
    def switch(learn):      # a hook of the user's, which freezes for two steps
        if learn.state.optimizer_step in (3, 4): learn.opt.param_groups[0]['lr'] = 0.
    learn = learner(LRScheduler(warm), LambdaHook(before_step=switch), optim=lambda p: SGD(p, 1.))
    learn.fit(2)
    assert learn.history.steps['lr'] == pytest.approx([0., .1, .2, 0., 0., .5, .6, .7, .8, .9])
