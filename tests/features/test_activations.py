"Activations: numbers are those of hooks made by hand, the training is the one without it, and nothing stays behind"
import pytest, torch, torch.nn.functional as F
from torch import nn

from common import digest, make_learner, problem
from trainer_nb.all import AMP, Activations, CancelStep, EMA, GradAccum, GradClip, Hook, LambdaHook, set_seed
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

def learner(*hooks, model=None, **kwargs):
    set_seed(0)
    default = {'train_dl': problem(), 'bs': 5, 'lr': .05, 'hooks': hooks}
    return make_learner(Net() if model is None else model, **{**default, **kwargs})

def n_forward_hooks(learn): return sum(len(m._forward_hooks) for m in learn.model.modules())

@pytest.mark.parametrize('others', [
    [lambda: GradAccum(3)], [lambda: AMP('bf16')], [lambda: GradClip(.1), EMA]], ids=['accum', 'amp', 'clip'])
def test_the_training_is_that_without_it(others, optim=torch.optim.AdamW):
    def run(*hooks):
        learn = learner(*hooks, *(o() for o in others), optim=optim, valid_dl=problem(seed=2))
        learn.fit(3)
        return digest(learn), torch.rand(3).tolist()
    assert run(Activations(every=2)) == run()

def test_values_are_those_made_by_hand():
    "Each batch: first calls of the layers, units by layer"
    seen = []
    class ByHand(Hook):
        def before_step(self, learn):
            self.now, self.handles = {}, []
            for name in LAYERS:
                def see(m, args, out, name=name): self.now.setdefault(name, out.detach().clone())
                self.handles.append(learn.model.get_submodule(name).register_forward_hook(see, prepend=True))
        def after_step(self, learn):
            for o in self.handles: o.remove()
            seen.append(self.now)
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
            if len(x) > 1 or x.ndim > 2:
                dead = sum(len(o.unique()) == 1 for o in units)/len(units)
                assert v['dead'][i, k].item() == pytest.approx(dead)
            counts = torch.histc(x.flatten().asinh(), module._N_BINS, -module._EDGE, module._EDGE)
            assert torch.allclose(v['bins'][i, k], counts/x.numel())

def leave(how):
    def f(learn):
        if learn.state.batch_idx != 2 or not learn.training: return
        if how is None: learn.stop()
        else: raise how
    return LambdaHook(after_pred=f)

@pytest.mark.parametrize('how, n', [
    (RuntimeError('on purpose'), 2), (CancelStep(), 4), (None, 3)], ids=['error', 'cancel', 'stop'])
def test_no_forward_hook_is_left(how, n):
    watch = Activations(every=1)
    learn = learner(watch, leave(how))
    try: learn.fit(1)
    except (RuntimeError, KeyboardInterrupt): pass
    assert n_forward_hooks(learn) == 0
    assert len(watch.at) == len(watch.rows) == len(set(watch.at)) == n

def test_nothing_is_measured_in_validation_and_dry_runs():
    watch = Activations(every=1)
    learn = learner(watch, valid_dl=problem(seed=2))
    learn.fit(1, valid_first=True)
    with learn.dry_run() as r: r.train_batch()
    assert watch.at == list(range(5)) and n_forward_hooks(learn) == 0

def test_memory_is_bounded(monkeypatch):
    monkeypatch.setattr(module, '_MOST', 8)
    watch = Activations(every=1)
    learn = learner(watch)
    learn.fit(10)
    assert watch.thinned == 8 and watch.at == list(range(0, 50, 8)) and len(watch.rows) == 7
    assert watch.state_dict()['rows'].nbytes == 7*len(LAYERS)*4*84
