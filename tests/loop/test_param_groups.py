"Param groups by pattern and staged unfreezing are those made by hand, bit for bit"
import copy

import pytest, torch
from torch import nn

from common import make_learner, plain_loop, problem, same, weights
from trainer_nb.all import Freeze, LambdaHook, OneCycle, ParamGroups, set_seed
from trainer_nb.draw import Plot


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Tanh(), nn.Linear(8, 8), nn.BatchNorm1d(8))
        self.head = nn.Linear(8, 3)
    def forward(self, x): return self.head(self.body(x))

def by_hand(model):
    b, h = model.body, model.head
    return torch.optim.AdamW([
        dict(params=[b[0].weight, b[3].weight], lr=1e-2),
        dict(params=[b[0].bias, *b[1].parameters(), b[3].bias, *b[4].parameters()], lr=1e-2, weight_decay=0.),
        dict(params=[h.weight], lr=.1), dict(params=[h.bias], lr=.1, weight_decay=0.)], weight_decay=.3)

def fitted(model, optim, **kwargs):
    set_seed(0)
    learn = make_learner(model, train_dl=problem(), bs=8, optim=optim, **kwargs)
    learn.fit(3)
    return learn

def values(learn): return list(learn.history.steps.values())     # columns have the names of the groups

RATES = {'bo*': 1e-2, '*': .1}

def test_groups_are_those_made_by_hand():
    model = Net()
    twin = copy.deepcopy(model)
    a = fitted(model, ParamGroups(RATES, decay_norms=False, weight_decay=.3))
    b = fitted(twin, by_hand(twin))
    assert same(weights(model), weights(twin)) and values(a) == values(b)
    def plain(opt): return [{k: v for k, v in g.items() if k not in ('params', 'name')} for g in opt.param_groups]
    assert plain(a.opt) == plain(b.opt) and len(a.opt.param_groups) == 4
    assert a.plot_schedule(1).steps.keys() == a.history.steps.keys() - {'train_loss'}

def test_rates_by_name_straight_in_the_learner():
    model = Net()
    twin = copy.deepcopy(model)
    groups = [dict(params=twin.body.parameters(), lr=1e-2), dict(params=twin.head.parameters(), lr=.1)]
    a, b = fitted(model, None, lr=RATES), fitted(twin, torch.optim.AdamW(groups))
    assert same(weights(model), weights(twin)) and values(a) == values(b) and len(values(a)) == 3
    assert a.opt.param_groups[0].keys() - {'name'} == b.opt.param_groups[0].keys()
    assert list(a.plot_schedule(1).steps) == ['lr_bo*', 'lr_rest'] == [o for o in a.history.steps if o != 'train_loss']
    a.fit(1, lr=.1)
    assert a.lrs() == pytest.approx((.01, .1))      # the ratio stays

def test_a_function_of_names_is_refused():
    for wrong in dict(lr=lambda name: .1), dict(optim=torch.optim.SGD, lr=abs):
        with pytest.raises(TypeError, match='lr is <.*function.*(a number above 0|a dict of patterns)'):
            make_learner(Net(), **wrong)

def test_unfreezing_is_that_by_hand():
    model = Net()
    twin = copy.deepcopy(model)
    x, y = problem()
    set_seed(0)
    learn = make_learner(model, train_dl=(x, y), bs=8, optim=torch.optim.SGD, lr=.1,
                         hooks=[Freeze('body.3', until=1), Freeze('body.0', 'body.1', until=3)])
    learn.fit(2)
    learn.fit(2)        # epochs go on
    set_seed(0)
    def data(epoch):
        twin.body[3].requires_grad_(epoch >= 1)
        twin.body[:2].requires_grad_(epoch >= 3)
        return [(x[i], y[i]) for i in torch.randperm(len(x)).split(8)]
    plain_loop(twin, torch.optim.SGD(twin.parameters(), lr=.1), data, 4)
    assert same(weights(model), weights(twin)) and all(p.requires_grad for p in model.parameters())

def test_a_resumed_run_unfreezes(tmp_path):
    "A checkpoint has parameters frozen that train later; where two hooks name one, both have to let it go"
    def made():
        set_seed(0)
        return make_learner(Net(), train_dl=problem(), bs=8, optim=torch.optim.SGD, lr=.1,
                            hooks=[Freeze('body', until=2), Freeze('body.3', until=1), Freeze('body.1', until=3)])
    def look(learn):
        stages.append({k.rpartition('.')[0] for k, p in learn.model.named_parameters() if p.requires_grad})
        if len(stages) == 2: learn.request(lambda learn: learn.save(tmp_path/'a.pt'))
    stages, whole, again = [], made(), made()
    whole.fit(4, hooks=LambdaHook(after_step=look))
    again.load(tmp_path/'a.pt')
    assert not again.model.body[0].weight.requires_grad
    again.resume()
    assert same(weights(whole.model), weights(again.model)) and all(p.requires_grad for p in again.model.parameters())
    most = {'head', 'body.0', 'body.3', 'body.4'}
    assert stages[::3] == [{'head'}, {'head'}, most, {*most, 'body.1'}]

def test_a_maximum_is_that_of_the_largest_group_or_by_group():
    def rates(lr_max, lrs={'body': 1e-4, 'head': 1e-2}, optim=None):        # noqa: B006
        learn = make_learner(Net(), train_dl=problem(), bs=8, lr=lrs, optim=optim)
        preview = learn.plot_schedule(3, hooks=OneCycle(lr_max)).steps
        learn.fit_one_cycle(3, lr_max)
        assert all(preview[k] == learn.history.steps[k] for k in preview)
        return {k: max(v) for k, v in learn.history.steps.items() if k.startswith('lr')}, learn
    def by_torch(lr_max):      # torch's own, at the same positions: 9 steps, the maximum after .25*8
        opt = torch.optim.SGD([dict(params=[torch.zeros(1, requires_grad=True)]) for _ in lr_max], lr=1.)
        sched = torch.optim.lr_scheduler.OneCycleLR(opt, lr_max, 9, pct_start=.25 + 1/9 - .25/9, div_factor=25)
        return max([opt.step() or sched.step() or [g['lr'] for g in opt.param_groups] for _ in range(8)])
    assert rates(1e-2)[0] == pytest.approx(dict(zip(['lr_body', 'lr_head'], by_torch([1e-4, 1e-2]))))
    found, learn = rates({'head': .2, 'body': .1})
    assert found == pytest.approx(dict(lr_body=.1, lr_head=.2))
    head = learn.history.lines()[0]
    assert head[-3:-1] == ['lr_body', 'lr_head'] and 'lr_head' in learn.history.html()
    assert [o.name for o in Plot().chart(learn.history.plot_data()).panels[1].lines] == ['lr_body', 'lr_head']
    assert rates(.5, None, lambda p: torch.optim.SGD([dict(params=[o], lr=.1) for o in p]))[0]['lr_9'] == .5
    assert rates({'head': .2})[0] == pytest.approx(dict(lr_body=1e-4, lr_head=.2))      # the others keep theirs
    for wrong in {'head': .2, 'bodi': .1}, {'*.bias': .1, '*': .2}:
        with pytest.raises(ValueError, match='body'): rates(wrong)
    with pytest.raises(ValueError, match="'head' of lr gets no"): make_learner(Net(), lr={'*': .2, 'head': .1})
