"`summary` tells what the model does with a batch, and changes nothing"
import re

import pytest, torch, torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader

from common import Broken, make_learner, problem
from trainer_nb.all import Freeze

class Block(nn.Module):
    "A part that is called twice, one that is not called, and named arguments"
    def __init__(self):
        super().__init__()
        self.lin, self.out, self.idle = nn.Linear(4, 4), nn.Linear(4, 3), nn.Linear(5, 5)
    def forward(self, x, scale=1.): return self.out(self.lin(self.lin(x))*scale)

def by_name(s): return {o.name: o for o in s.layers}

def test_shapes_parameters_and_flops_by_hand():
    s = make_learner(Block(), train_dl=problem(), bs=8).summary()
    layers = by_name(s)
    assert list(layers) == ['', 'lin', 'out'] and s.idle == ['idle'] and 'did not run: idle' in repr(s)
    assert layers['lin'].shape == '(8, 4)' and layers['lin'].n_calls == 2 and '(8, 4) × 2' in repr(s)
    assert layers['lin'].flops == 2*2*8*4*4 and s.flops == 2*2*8*4*4 + 2*8*4*3
    assert (s.n_params, s.n_trained) == (20 + 15 + 30,)*2
    assert layers['out'].memory == 15*4 and layers['out'].out_bytes == 8*3*4 and layers['lin'].out_bytes == 2*8*4*4
    s = make_learner(train_dl=problem(), hooks=[Freeze('0')]).summary()
    assert s.n_params - s.n_trained == 4*8 + 8

def test_a_wrong_shape_is_marked_with_all_layers_before_it():
    inner = nn.Sequential(nn.Linear(4, 8), nn.Sequential(nn.ReLU(), nn.Linear(7, 3)))
    model = nn.Sequential(inner, nn.Softmax(1))
    learn = make_learner(model)
    for s in learn.summary(), learn.summary(depth=1):
        layers = by_name(s)
        assert list(layers) == ['', '0', '0.0', '0.1', '0.1.0', '0.1.1'] and layers['0.1.0'].shape == '(5, 8)'
        assert s.failed is layers['0.1.1'] and isinstance(s.error, RuntimeError)
        assert re.search(r'✗ 0\.1\.1 \(Linear\) failed: RuntimeError: .*mat1 and mat2', repr(s))
        assert '✗ got (5, 8)' in repr(s) and '<b>✗ got (5, 8)</b>' in s._repr_html_()
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())

def test_errors_around_the_model():
    "In the loss, in the model's own code, in the data"
    s = make_learner(nn.Linear(4, 3), loss_fn=lambda p, t: F.mse_loss(p, t)).summary()
    assert 'the step failed' in s.title() and s.failed is None and by_name(s)[''].shape == '(5, 3)'
    s = make_learner(Block(), train_dl=[(torch.rand(3, 4), torch.rand(3), torch.rand(3), torch.zeros(3))]).summary()
    assert s.failed is by_name(s)[''] and 'takes from 2 to 3' in s.title()
    with pytest.raises(OSError, match='no such picture'): make_learner(train_dl=DataLoader(Broken())).summary()

# What to do about an error of a GPU; others are in loop/test_mistakes.py

FAILED, APART = 'CUDA error: device-side assert triggered', 'expected all tensors to be on the same device'

@pytest.mark.parametrize('text, loss_fn, words', [
    (FAILED, F.cross_entropy, 'class ids'), (FAILED, nn.BCELoss(), 'with_logits'),
    (APART, F.cross_entropy, 'nn.ModuleList')])
def test_errors_on_a_gpu_name_the_loss_and_layers_in_a_list(text, loss_fn, words):
    learn = make_learner(loss_fn=loss_fn)
    def model(x): raise RuntimeError(text)
    learn.model.forward = model
    with pytest.raises(RuntimeError) as e: learn.fit(1)
    assert words in e.value.__notes__[0]
