"An export is what `predict` uses, has plain names, and runs nothing unasked"
import os, sys

import pytest, torch
from safetensors.torch import load_file
from torch import nn

from common import make_learner, plain_model, problem, same, weights
from trainer_nb.all import EMA, accuracy, load_learner, load_model

X, Y = problem()

class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin, self.norm, self.drop = nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Dropout(.5)
    def forward(self, a, b=None):
        return {'z': self.norm(self.drop(self.lin(a))), 's': (a if b is None else b).sum(1)}

def test_a_program_by_names(tmp_path):
    learn = make_learner(Two())
    learn.export(tmp_path, example={'b': X[:2], 'a': X[:2]})
    expected, found = learn.model.eval()(X, 2*X), load_model(tmp_path, trusted=True)(b=2*X, a=X)
    for name in 'zs': assert torch.allclose(found[name], expected[name], atol=1e-5)
    learn.export(tmp_path)      # no program of other weights stays
    with pytest.raises(FileNotFoundError, match='program.pt2'): load_model(tmp_path, trusted=True)
    for wrong in True, {'x': 1.}, (), torch.tensor(1.):
        with pytest.raises(TypeError, match='expected a batch'): learn.export(tmp_path/'none', example=wrong)
    assert not (tmp_path/'none').exists()

def compiled(model): return torch.compile(model, backend='eager')

@pytest.mark.parametrize('wrap', [nn.DataParallel, lambda m: nn.Sequential(compiled(m[0]), *m[1:])])
def test_a_wrapped_model_has_plain_names(wrap, tmp_path):
    make_learner(wrap(plain := plain_model())).export(tmp_path)
    assert load_file(tmp_path/'model.safetensors').keys() == plain.state_dict().keys()
    assert same(load_model(tmp_path, compiled(plain_model()))(X), plain.eval()(X))

def test_a_learner_without_its_data(tmp_path):
    "Its average, loss with options, metrics and a step of a notebook come along; no optimizer, hook or sample does"
    def step(batch, learn):
        pred = learn.model(batch[0]*2)
        return {'loss': learn.loss_fn(pred, batch[1]), 'pred': pred, 'targ': batch[1]}
    x = torch.randn(40_000, 4)
    learn = make_learner(None, (x, x[:, :3].argmax(1)), (X, Y), bs=1000, train_step=step, metrics=[accuracy],
                         hooks=[EMA(.5)], loss_fn=nn.CrossEntropyLoss(label_smoothing=.3), config={'a': 1})
    learn.fit(1)
    there = load_learner(learn.export(tmp_path), trusted=True)
    assert (tmp_path/'learner.pt').stat().st_size < x.nbytes/10
    assert there.train_dl is None and there.opts == {} and not there.hooks and there.config == {'a': 1}
    assert there.validate((X, Y)) == learn.validate() and same(weights(there.model), weights(learn.ema.model))
    assert learn.history.n_steps == 40 and len(learn.hooks) == 1 and learn.opt.state     # the exported one is untouched

def test_what_cannot_be_packed_is_named(tmp_path, capsys, monkeypatch):
    learn = make_learner()
    learn.export(tmp_path)      # an older one does not stay
    learn.extra = open(os.devnull)
    for words in 'extra is a _io.TextIOWrapper', 'needs cloudpickle: pip install':
        learn.export(tmp_path)
        assert words in capsys.readouterr().out
        with pytest.raises(FileNotFoundError, match='learner.pt'): load_learner(tmp_path, trusted=True)
        monkeypatch.setitem(sys.modules, 'cloudpickle', None)
    assert same(weights(load_model(tmp_path, make_learner().model)), weights(learn.model))

class Evil:
    def __init__(self, path): self.path = str(path)
    def __reduce__(self): return os.mkdir, (self.path,)

def test_nothing_runs_unasked(tmp_path):
    learn, hit = make_learner(), tmp_path/'hit'
    learn.export(tmp_path, example=X[:2])
    for name in 'program.pt2', 'learner.pt': torch.save(Evil(hit), tmp_path/name)
    for f in load_model, load_learner:
        for trust in {}, {'trusted': 1}:
            with pytest.raises(ValueError, match='trusted=True'): f(tmp_path, **trust)
    assert same(weights(load_model(tmp_path, make_learner().model)), weights(learn.model))
    torch.save(Evil(hit), tmp_path/'model.safetensors')
    with pytest.raises(Exception, match='(?i)header'): load_model(tmp_path, make_learner().model)
    assert not hit.exists()
