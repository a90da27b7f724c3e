"`learn.set_lr` is a plain loop that changes the rate at the same step; the rest of a schedule is scaled"
import itertools, threading

import pytest, torch, torch.nn.functional as F
from torch.optim import SGD, AdamW, lr_scheduler as S

from common import batches, check_resume, make_learner, make_model, plain_model, same, stop_at, weights
from test_schedule import HOOKS, SCHEDS, dummy, lrs_of
from trainer_nb.all import GradAccum, LRScheduler, LambdaHook, ParamGroups

DATA = batches()        # five of them

def groups(model, lrs=(.1, .01)):
    "Named, as `Learner(lr={...})` makes them"
    return SGD([{'params': model[i].parameters(), 'lr': lr, 'name': name}
                for i, lr, name in zip((0, -1), lrs, ('body', 'head'))], momentum=.9)

def plain(change, n_epochs=2):
    "The loop by hand: `change(i, groups)` before step i; returns the weights and the rates of each step"
    model, rates = plain_model(), []
    opt = groups(model)
    for i, (x, y) in enumerate(DATA*n_epochs):
        change(i, opt.param_groups)
        rates.append(tuple(g['lr'] for g in opt.param_groups))
        F.cross_entropy(model(x), y).backward()
        opt.step()
        opt.zero_grad()
    return weights(model), rates

def at(n, lr, how='at once'):
    "A hook that sets the rate after `n` optimizer steps"
    def change(learn):
        if not learn.training or learn.state.optimizer_step != n: return
        if how == 'at once': return learn.set_lr(lr)
        thread = threading.Thread(target=learn.set_lr, args=[lr])      # as a cell of a subshell, or a widget
        thread.start()
        thread.join()
        assert learn.opt.param_groups[0]['lr'] == .1
    return LambdaHook(after_step=change)

@pytest.mark.parametrize('how', ['at once', 'in another thread'])
@pytest.mark.parametrize('lr, rates, words', [
    (.05, (.05, .005), 'lr → 0.05'), ({'head': .2}, (.1, .2), 'head → 0.2'),
    ({'lr_body': .3, 'head': .02}, (.3, .02), 'lr_body → 0.3, head → 0.02')])
def test_as_in_a_loop_by_hand(lr, rates, words, how):
    def change(i, opt_groups):
        if i == 4:
            for g, rate in zip(opt_groups, rates): g['lr'] = rate
    model = plain_model()
    learn = make_learner(model, DATA, optim=groups(model), hooks=[at(4, lr, how)])
    learn.fit(2)
    expected, used = plain(change)
    assert same(weights(model), expected) and lrs_of(learn) == used
    assert learn.history.flags == [[4, words]]

def test_between_two_fits_and_in_windows():
    model = plain_model()
    learn = make_learner(model, DATA, optim=groups(model), hooks=[GradAccum(2)])
    learn.fit(1)
    learn.set_lr(.05)
    learn.fit(1)
    assert lrs_of(learn) == [(.1, .01)]*5 + [(.05, .005)]*5 and learn.history.flags == [[5, 'lr → 0.05']]

def test_groups_without_decay_go_with_theirs():
    learn = make_learner(make_model(), DATA, optim=ParamGroups({'0': .1, '3': .01}, decay_norms=False))
    assert len(learn.lrs()) == 4
    learn.set_lr({'3': .5})
    assert learn.lrs() == [.1, .1, .5, .5]

def test_one_of_two_optimizers():
    from test_schedule import two
    learn = two()
    learn.set_lr({'d': .5})
    assert learn.lrs() == [.5, .02]
    learn.set_lr({'lr_g': .25})
    assert learn.lrs() == [.5, .25]
    learn.set_lr(.1)
    assert learn.lrs() == [.1, .1]

@pytest.mark.parametrize('wrong, error', [(0, ValueError), (-1., ValueError), ('x', TypeError), ({}, ValueError),
                                          ({'haed': .1}, ValueError), ({'head': float('nan')}, ValueError)])
def test_what_is_refused_changes_nothing(wrong, error):
    model = plain_model()
    learn = make_learner(model, DATA, optim=groups(model))
    with pytest.raises(error, match='expected a .*number above 0'): learn.set_lr(wrong)
    assert learn.lrs() == [.1, .01] and not learn.history.flags

# Under a schedule

def scaled(rates, n, lr):
    "The rates of an undisturbed fit, of which those from step `n` on are scaled"
    factor = lr/max(rates[n])
    return [tuple(o*(factor if i >= n else 1) for o in row) for i, row in enumerate(rates)]

MORE = {'CyclicLR': lambda opt, n: S.CyclicLR(opt, [.01, .001], [.1, .01], 3, cycle_momentum=False),
        'warm restarts': lambda opt, n: S.CosineAnnealingWarmRestarts(opt, 4, eta_min=.001),
        'cosine with a minimum': lambda opt, n: S.CosineAnnealingLR(opt, n, eta_min=.005),
        'polynomial': lambda opt, n: S.PolynomialLR(opt, n, 2.)}
KINDS = {**{k: lambda f=f: LRScheduler(f) for k, f in {**SCHEDS, **MORE}.items()},
         **{k: HOOKS[k] for k in ('OneCycle', 'WarmupCosine', 'Schedule')}}

@pytest.mark.parametrize('kind', KINDS)
def test_the_rest_of_a_schedule_is_scaled(kind):
    "As a plain loop that sets the rate once the scheduler has stepped, and multiplies what it sets from then on"
    def learner(*hooks):
        model = plain_model()
        return make_learner(model, DATA, optim=groups(model), hooks=[*hooks, KINDS[kind]()])
    undisturbed = learner()
    undisturbed.fit(2)
    rates = lrs_of(undisturbed)
    later = at(4, .25)
    later.ord = 60          # after the schedule
    learn = learner(later)
    learn.fit(2)
    expected = scaled(rates, 4, .25)
    for a, b in zip(lrs_of(learn), expected): assert a == pytest.approx(b, rel=1e-9)
    assert max(lrs_of(learn)[4]) == pytest.approx(.25) and lrs_of(learn)[:4] == rates[:4]
    model = plain_model()
    opt = groups(model)
    for (x, y), row, g in zip(DATA*2, lrs_of(learn), itertools.repeat(opt.param_groups)):
        for group, lr in zip(g, row): group['lr'] = lr
        if kind in ('OneCycle', 'Schedule', 'OneCycleLR'): return       # they set the momentum, too
        F.cross_entropy(model(x), y).backward()
        opt.step()
        opt.zero_grad()
    assert same(weights(learn.model), weights(model))
    assert learn.lrs() == [.1, .01]         # as after any schedule

@pytest.mark.parametrize('kind', ['StepLR', 'ExponentialLR', 'CosineAnnealingLR', 'polynomial'])
def test_torchs_own_scale_the_same_rest(kind):
    "Those of torch's that compute a rate from the one before do the same in a plain loop"
    make = {**SCHEDS, **MORE}[kind]
    opt, rates = dummy(), []
    sched = make(opt, 10)
    for i in range(10):
        if i == 4:
            for g, share in zip(opt.param_groups, (1., .1)): g['lr'] = .25*share
        rates.append(tuple(g['lr'] for g in opt.param_groups))
        opt.step()
        sched.step()
    later = at(4, .25)
    later.ord = 60
    model = plain_model()
    learn = make_learner(model, DATA, optim=groups(model), hooks=[later, LRScheduler(make)])
    learn.fit(2)
    for a, b in zip(lrs_of(learn), rates): assert a == pytest.approx(b, rel=1e-9)

def test_a_plateau_goes_on_from_the_new_rate():
    def falls(opt): return S.ReduceLROnPlateau(opt, factor=.5, patience=0, threshold=10.)      # nothing is good enough
    learn = make_learner(plain_model(), DATA, optim=lambda p: SGD(p, .1), hooks=[at(12, .4), LRScheduler(
        falls, 'metric', 'train_loss')])
    learn.fit(5)
    assert learn.history.epochs['lr'] == pytest.approx([.1, .05, .4, .2, .1])

@pytest.mark.parametrize('kind', ['CyclicLR', 'OneCycle', 'LambdaLR', 'SequentialLR'])
def test_resumed_after_it(kind, tmp_path):
    def make():
        torch.manual_seed(0)
        model = make_model()
        return make_learner(model, optim=groups(model), seed=3, hooks=[KINDS[kind](), at(4, .2), at(8, {'head': .3})])
    whole, *_ = check_resume(make, tmp_path, stop_at(4), stop_at(6), stop_at(9), n_epochs=3)
    assert [o for _, o in whole.history.flags] == ['lr → 0.2', 'head → 0.3']

def test_tensors_are_set_in_place():
    lrs = torch.tensor(.1), torch.tensor(.01)
    for kind in 'OneCycle', 'LambdaLR':
        learns = []
        for a, b in lrs, (.1, .01):
            model = plain_model()
            opt = AdamW([{'params': model[0].parameters(), 'lr': a}, {'params': model[2].parameters(), 'lr': b}])
            learns.append(make_learner(model, DATA, optim=opt, hooks=[KINDS[kind](), at(4, .3)]))
            learns[-1].fit(2)
        for a, b in zip(*map(lrs_of, learns)): assert a == pytest.approx(b, rel=1e-5)
        assert learns[0].lrs()[0] is lrs[0]

def test_a_rate_of_0_scales_nothing():
    "A warm-up from 0 goes on as planned"
    def warm(opt): return S.LambdaLR(opt, lambda i: i/10)
    def switch(learn):      # a hook of the user's, which freezes for two steps
        if learn.state.optimizer_step in (3, 4): learn.opt.param_groups[0]['lr'] = 0.
    learn = make_learner(plain_model(), DATA, optim=lambda p: SGD(p, 1.), hooks=[
        LRScheduler(warm), LambdaHook(before_step=switch)])
    learn.fit(2)
    assert learn.history.steps['lr'] == pytest.approx([0., .1, .2, 0., 0., .5, .6, .7, .8, .9])

def test_in_two_processes(tmp_path):
    "One rank asks, both have the same rates from the same batch on, also those of the schedule after it"
    def ask(learn):
        if learn.training and learn.state.optimizer_step == 4 and learn.is_main: learn.request(lambda o: o.set_lr(.2))
        if learn.training:
            with open(tmp_path/str(learn.world.rank), 'a') as f: print(learn.lrs(), file=f)
    torch.manual_seed(0)
    model = make_model()
    learn = make_learner(model, optim=groups(model), seed=3, hooks=[KINDS['CyclicLR'](), LambdaHook(after_step=ask)])
    learn.launch(2, 40)
    first, second = ((tmp_path/str(i)).read_text().splitlines() for i in range(2))
    assert first == second and len(first) == 200
    [[n, words]] = learn.history.flags
    tops = [eval(o)[0] for o in first]
    assert words == 'lr → 0.2' and max(tops[:n]) <= .1 + 1e-9 and max(tops[n + 6:]) > .1 + 1e-9
