"What a checkpoint holds besides weights, and what it leaves out"
import random

import numpy as np
import pytest, torch
from torch import nn

from common import batches, digest, make_learner, same, stop_at, told, weights
from trainer_nb.all import Checkpoint, LambdaHook, Learner

class Noisy(nn.Module):
    "Draws from generators of its own, counts its calls, and anneals a temperature"
    def __init__(self):
        super().__init__()
        self.out, self.drop, self.n, self.heat, self.p, self.kind = nn.Linear(4, 3), nn.Dropout(.5), 0, 1., .5, 'a'
        self.torchs, self.pythons = torch.Generator().manual_seed(3), random.Random(4)
        self.olds, self.numpys = np.random.RandomState(5), np.random.default_rng(6)

    def forward(self, x):
        self.n += 1
        self.heat *= .9
        if self.n > 7: self.kind = 'b'
        noise = self.pythons.random()*self.olds.rand()*self.numpys.random()*self.heat
        return self.out(self.drop(x + float(noise)*torch.rand(x.shape, generator=self.torchs)))

def attributes(model): return model.n, model.heat, model.kind, model.p

def test_generators_and_counters_of_a_model_are_restored(tmp_path):
    "In a new learner, and in the same one by rewind to where one had not changed yet; the user's own changes stay"
    def make(*hooks): return make_learner(Noisy(), batches(), batches(seed=2), hooks=hooks, seed=1)
    torch.manual_seed(0)
    whole = make(Checkpoint(tmp_path/'a', every=1, keep=99))
    whole.fit(2)
    torch.manual_seed(0)
    make().fit(2, hooks=[stop_at(3), Checkpoint(tmp_path/'b')])
    again = make()
    again.model.p = .7
    with told() as said: again.fit(2, resume=tmp_path/'b')
    assert digest(again) == digest(whole) and not said
    assert attributes(again.model) == (*attributes(whole.model)[:3], .7)
    expected, whole.model.p = digest(whole), .2
    whole.rewind(step=1)
    assert attributes(whole.model) == (1, .9, 'a', .2)
    whole.resume()
    assert digest(whole) == expected and attributes(whole.model)[:3] == attributes(again.model)[:3]

def compiled(model): return torch.compile(model, backend='eager')

WRAPS = {'plain': lambda m: m, 'compiled': compiled, 'parallel': nn.DataParallel,
         'inside': lambda m: nn.Sequential(compiled(m[0]), *m[1:])}

@pytest.mark.parametrize('there, here', [('plain', 'compiled'), ('compiled', 'parallel'), ('parallel', 'inside'),
                                         ('inside', 'plain')])
def test_wrapped_models_save_and_load_plain_names(tmp_path, there, here):
    def make(kind, *hooks):
        model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.BatchNorm1d(8), nn.Linear(8, 3))
        return make_learner(WRAPS[kind](model), batches(), batches(seed=2), hooks=hooks, seed=1)
    learn, other = make(there, Checkpoint(tmp_path)), make(here)
    learn.fit(2, hooks=[stop_at(7)])
    state = torch.load(max(tmp_path.glob('*.pt')), weights_only=True)
    assert [*state['modules']['model']['state']] == [*make('plain').model.state_dict()]
    other.load(tmp_path)
    assert same(weights(other.model), weights(learn.model))
    for o in learn, other: o.resume()
    assert other.history.steps == learn.history.steps and same(weights(other.model), weights(learn.model))
    other.load_best(tmp_path)

# Frozen weights

class Adapted(nn.Module):
    "A frozen body with tied weights, of which adapters train"
    def __init__(self, n=128):
        super().__init__()
        self.adapters = nn.ModuleList(nn.Linear(n, n, bias=False) for _ in range(2))
        torch.manual_seed(0)        # the body is the same in all programs
        self.ids, self.norm = nn.Embedding(50*n, n), nn.BatchNorm1d(n, affine=False)
        self.out = nn.Linear(n, 50*n, bias=False)
        self.out.weight = self.ids.weight
        for o in self.ids, self.out: o.requires_grad_(False)
    def forward(self, x):
        x = self.ids(x)
        for o in self.adapters: x = x + .1*o(x)
        return self.out(self.norm(x))

def test_only_what_trains_is_saved_and_resumes_bit_for_bit(tmp_path):
    def make(*hooks):
        data = torch.arange(32), torch.arange(32, 64)
        return make_learner(Adapted(), data, data, bs=8, hooks=hooks, seed=2)
    def size(folder): return max(o.stat().st_size for o in (tmp_path/folder).glob('*.pt'))
    def freeze(learn):
        if learn.state.epoch == 1: learn.model.adapters[0].requires_grad_(False)
    torch.manual_seed(1)
    start = Adapted().adapters.state_dict()
    whole = make(Checkpoint(tmp_path/'all'), LambdaHook(before_epoch=freeze))
    some = make(Checkpoint(tmp_path/'some', what='trainable'), LambdaHook(before_epoch=freeze))
    for o in whole, some: o.model.adapters.load_state_dict(start)
    whole.fit(3)
    some.fit(2)
    assert size('some') < .2*size('all')
    again = make(Checkpoint(tmp_path/'some', what='trainable'))
    again.fit(3, resume=True)
    assert again.history.steps == whole.history.steps and same(weights(again.model), weights(whole.model))
    assert again.model.out.weight is again.model.ids.weight
    for load in Learner.load, Learner.load_best:        # what trained, and was frozen later, is there
        load(loaded := make(), tmp_path/'some')
        assert same(weights(loaded.model), weights(whole.model))
    with pytest.raises(ValueError, match="'all' or 'trainable'"): Checkpoint(tmp_path, what='adapter')
