"Activations: numbers are those of hooks made by hand, the training is the one without it, and nothing stays behind"

import pytest, torch, torch.nn.functional as F
from torch import nn

from common import digest, make_learner, problem
from trainer_nb.all import AMP, Activations, EMA, GradAccum, GradClip, Hook, set_seed
from trainer_nb.features import activations as module


class Net(nn.Module):
    "Convolutions and features, dropout, a functional relu that nobody sees, and a layer that is called twice"
    def __init__(self):
        super().__init__()
        self.conv = nn.Sequential(nn.Conv1d(1, 6, 2), nn.BatchNorm1d(6), nn.ReLU(inplace=True))
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(18, 8), nn.ReLU(), nn.Dropout(.3))
        self.twice, self.head = nn.Linear(8, 8), nn.Linear(8, 3)
    def forward(self, x): return self.head(F.relu(self.twice(self.twice(self.body(self.conv(x[:, None]))))))

LAYERS = ['conv.0', 'conv.1', 'conv.2', 'body.1', 'body.2', 'twice', 'head']

def learner(*hooks):
    set_seed(0)
    return make_learner(Net(), problem(), problem(seed=2), bs=5, lr=.05, hooks=hooks)

def n_forward_hooks(learn): return sum(len(m._forward_hooks) for m in learn.model.modules())

def test_the_training_is_that_without_it():
    "It measures no validation, and nothing in a dry run"
    def run(*hooks):
        learn = learner(*hooks, GradAccum(3), AMP('bf16'), GradClip(.1), EMA())
        learn.fit(3, valid_first=True)
        res = digest(learn), torch.rand(3).tolist()
        with learn.dry_run() as r: r.train_batch()
        assert n_forward_hooks(learn) == 0
        return res
    watch = Activations(every=2)
    assert run(watch) == run() and watch.at == [*range(0, 15, 2)]

def test_values_are_those_made_by_hand():
    "Each batch: first calls of the layers, units by layer"
    seen = []
    class ByHand(Hook):
        def before_step(self, learn):
            self.now, self.handles = {}, []
            for name in LAYERS if learn.training else ():
                def see(m, args, out, name=name): self.now.setdefault(name, out.detach().clone())
                self.handles.append(learn.model.get_submodule(name).register_forward_hook(see, prepend=True))
        def after_step(self, learn):
            for o in self.handles: o.remove()
            if learn.training: seen.append(self.now)
    watch = Activations(every=1)
    learner(watch, ByHand()).fit(2)
    v = watch.values
    assert [name for name, _ in watch.layers] == LAYERS and watch.at == list(range(10))
    for i, now in enumerate(seen):
        for k, name in enumerate(LAYERS):
            x = now[name]
            assert v['mean'][i, k].item() == pytest.approx(x.mean().item(), abs=1e-6)
            assert v['deviation'][i, k].item() == pytest.approx(x.std(correction=0).item(), rel=1e-5)
            units = x.transpose(0, 1).flatten(1)        # channels or features, in dimension 1
            dead = sum(len(o.unique()) == 1 for o in units)/len(units)
            assert v['dead'][i, k].item() == pytest.approx(dead)
            counts = torch.histc(x.flatten().asinh(), module._N_BINS, -module._EDGE, module._EDGE)
            assert torch.allclose(v['bins'][i, k], counts/x.numel())

def test_memory_is_bounded(monkeypatch):
    monkeypatch.setattr(module, '_MOST', 8)
    watch = Activations(every=1)
    learner(watch).fit(10)
    assert watch.thinned == 8 and watch.at == list(range(0, 50, 8)) and len(watch.rows) == 7
