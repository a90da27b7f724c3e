"An export is what `predict` uses, in ONNX, too"
import json, os, sys

import pytest, torch
from torch import nn

from common import make_learner, problem
import trainer_nb.save.export as export
from trainer_nb.all import load_learner, load_model

X, Y = problem()

class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin, self.norm, self.drop = nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Dropout(.5)
    def forward(self, a, b=None):
        return {'z': self.norm(self.drop(self.lin(a))), 's': (a if b is None else b).sum(1)}

def test_onnx_by_name(tmp_path):
    runtime = pytest.importorskip('onnxruntime')
    learn = make_learner(Two())
    learn.export(tmp_path, example={'b': X[:1], 'a': X[:1]}, onnx=True)
    session = runtime.InferenceSession(tmp_path/'model.onnx')
    found = session.run(['z', 's'], {'a': X.numpy(), 'b': 2*X.numpy()})
    expected = learn.model.eval()(X, 2*X)
    for o, name in zip(found, 'zs'): assert torch.allclose(torch.from_numpy(o), expected[name], atol=1e-5)
    program = load_model(tmp_path, trusted=True)(b=2*X, a=X)
    for name in 'zs': assert torch.allclose(program[name], expected[name], atol=1e-5)

    with pytest.raises(RuntimeError, match='other values than the model, by up to .*nothing was written'):
        export._check_onnx((tmp_path/'model.onnx').read_bytes(), [X, 2*X], {**expected, 's': expected['s'] + .1})

def test_errors(tmp_path, monkeypatch):
    learn = make_learner()
    with pytest.raises(ValueError, match=r'needs a batch as the model takes it: example=x\[:2\]'):
        learn.export(tmp_path, onnx=True)
    for wrong in 'x', {'x': 1.}, (), torch.tensor(1.):
        with pytest.raises(TypeError, match='expected a batch as the model takes it'):
            learn.export(tmp_path, example=wrong)
    monkeypatch.setitem(sys.modules, 'onnxscript', None)
    with pytest.raises(ImportError, match=r'export\(onnx=True\) needs .*"trainer_nb\[onnx\]"'):
        learn.export(tmp_path, example=X, onnx=True)
    assert not [*tmp_path.iterdir()]

def test_a_config_that_is_not_ours(tmp_path):
    "Neither a name that is no loss is called, nor a pipe waited for"
    learn = make_learner(model=nn.Linear(4, 2), loss_fn=nn.CrossEntropyLoss())
    learn.export(tmp_path)
    path = tmp_path/'config.json'
    assert type(load_learner(tmp_path, nn.Linear(4, 2)).loss_fn) is nn.CrossEntropyLoss
    for name in 'importlib', 'AdaptiveLogSoftmaxWithLoss', 'relu', ['a'], None:
        path.write_text(json.dumps({'loss_fn': name}))
        assert load_learner(tmp_path, nn.Linear(4, 2)).loss_fn is None
    path.write_text(json.dumps({'inputs': {'class': 'Path', 'state': {}}}))
    with pytest.raises(ValueError, match='expected Table, Images'): load_learner(tmp_path, nn.Linear(4, 2))
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(OSError, match='it is not a file'): load_learner(tmp_path, nn.Linear(4, 2))
