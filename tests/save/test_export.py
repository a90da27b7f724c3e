"An export is what `predict` uses"
import json

import pytest, torch
from torch import nn

from common import make_learner, problem
from trainer_nb.all import load_learner, load_model

X, Y = problem()

class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin, self.norm, self.drop = nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Dropout(.5)
    def forward(self, a, b=None):
        return {'z': self.norm(self.drop(self.lin(a))), 's': (a if b is None else b).sum(1)}

def test_by_name(tmp_path):
    learn = make_learner(Two())
    learn.export(tmp_path, example={'b': X[:2], 'a': X[:2]})
    expected, found = learn.model.eval()(X, 2*X), load_model(tmp_path, trusted=True)(b=2*X, a=X)
    for name in 'zs': assert torch.allclose(found[name], expected[name], atol=1e-5)

def test_an_example_that_is_none(tmp_path):
    for wrong in 'x', True, {'x': 1.}, (), torch.tensor(1.):
        with pytest.raises(TypeError, match='expected a batch as the model takes it'):
            make_learner().export(tmp_path, example=wrong)
    assert not [*tmp_path.iterdir()]

def test_a_config_that_is_not_ours(tmp_path):
    "A name that is no loss is not called"
    learn = make_learner(model=nn.Linear(4, 2), loss_fn=nn.CrossEntropyLoss())
    learn.export(tmp_path)
    path = tmp_path/'config.json'
    assert type(load_learner(tmp_path, nn.Linear(4, 2)).loss_fn) is nn.CrossEntropyLoss
    for name in 'importlib', 'AdaptiveLogSoftmaxWithLoss', 'relu', ['a'], None:
        path.write_text(json.dumps({'loss_fn': name}))
        assert load_learner(tmp_path, nn.Linear(4, 2)).loss_fn is None
    path.write_text(json.dumps({'inputs': {'class': 'Path', 'state': {}}}))
    with pytest.raises(ValueError, match='expected Table, Images'): load_learner(tmp_path, nn.Linear(4, 2))
