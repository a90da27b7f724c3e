"Param groups by pattern and staged unfreezing are those made by hand, bit for bit"
import copy

import pytest, torch
from torch import nn

from common import make_learner, plain_loop, problem, same, weights
from trainer_nb.all import Freeze, LambdaHook, set_seed


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Tanh(), nn.Linear(8, 8), nn.BatchNorm1d(8))
        self.head = nn.Linear(8, 3)
    def forward(self, x): return self.head(self.body(x))

def start(model, **kwargs):
    set_seed(0)
    return make_learner(model, train_dl=problem(), bs=8, **kwargs)

def test_groups_are_those_made_by_hand():
    model = Net()
    twin = copy.deepcopy(model)
    by_hand = dict(params=twin.body.parameters(), lr=1e-2), dict(params=twin.head.parameters(), lr=.1)
    learn, other = start(model, lr={'bo*': 1e-2, '*': .1}), start(twin, optim=torch.optim.AdamW(by_hand))
    for o in learn, other:
        set_seed(0)
        o.fit(3)
    assert same(weights(model), weights(twin))
    assert [*learn.history.steps.values()] == [*other.history.steps.values()]       # groups have other names
    def options(opt): return [{k: g[k] for k in g if k not in ('params', 'name')} for g in opt.param_groups]
    assert options(learn.opt) == options(other.opt)
    rates = [o for o in learn.history.steps if o != 'train_loss']
    assert rates[0] == 'lr_bo*' and [*learn.plot_schedule(1).steps] == rates
    learn.fit(1, lr=.1)
    assert [min(learn.lrs()), max(learn.lrs())] == pytest.approx([.01, .1])     # the ratio stays

def test_unfreezing_is_that_by_hand_and_resumes(tmp_path):
    "A checkpoint has parameters frozen that train later; where two hooks name one, both have to let it go"
    def made():
        torch.manual_seed(0)
        return start(Net(), optim=torch.optim.SGD, lr=.1, hooks=[
            Freeze('body', until=2), Freeze('body.3', until=1), Freeze('body.1', until=3)])
    def save(learn):
        if learn.state.optimizer_step == 2: learn.request(lambda learn: learn.save(tmp_path/'a.pt'))
    whole, again = made(), made()
    twin = copy.deepcopy(whole.model)
    whole.fit(2, hooks=LambdaHook(after_step=save))
    again.load(tmp_path/'a.pt')
    assert not again.model.body[0].weight.requires_grad
    again.resume()
    for learn in whole, again:
        set_seed(1)
        learn.fit(2)
    x, y = problem()
    def data(epoch):
        if epoch == 2: set_seed(1)
        twin.body.requires_grad_(epoch >= 2)
        twin.body[1].requires_grad_(epoch >= 3)
        return [(x[i], y[i]) for i in torch.randperm(len(x)).split(8)]
    set_seed(0)
    plain_loop(twin, torch.optim.SGD(twin.parameters(), lr=.1), data, 4)
    for learn in whole, again:
        assert same(weights(learn.model), weights(twin)) and all(p.requires_grad for p in learn.model.parameters())

def test_a_search_keeps_what_is_frozen_in_evaluation_mode():
    seen, model = [], Net()
    model.body[4].eval()
    def modes(learn): return [m.training for m in learn.model.modules()]
    look = LambdaHook(before_step=lambda learn: seen.append(modes(learn)))
    learn = start(model, hooks=[Freeze('body.4', in_eval=True), look])
    before = modes(learn)
    learn.lr_find(n_steps=5)
    assert seen and all(o == before for o in [*seen, modes(learn)])

def test_a_maximum_by_group():
    "Groups without one keep their rates"
    learn = start(Net(), lr={'body': 1e-4, 'head': 1e-2})
    learn.fit_one_cycle(3, {'head': .2})
    found = [max(learn.history.steps[k]) for k in ('lr_body', 'lr_head')]
    assert found == pytest.approx([1e-4, .2]) and learn.history.lines()[0][-3:-1] == ['lr_body', 'lr_head']
    for wrong in {'head': .2, 'bodi': .1}, {'*.bias': .1, '*': .2}:
        with pytest.raises(ValueError, match='body'): learn.fit_one_cycle(1, wrong)
    with pytest.raises(ValueError, match="'head' of lr gets no"): start(Net(), lr={'*': .2, 'head': .1})
