"`predict` returns every sample once, as the model returns it"
import re
from collections import OrderedDict, namedtuple
from dataclasses import dataclass
from typing import Any

import pytest, torch, torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from common import equal, make_learner, problem
from test_metrics import Reusing
from trainer_nb.all import Learner

X, Y = torch.arange(80.).reshape(20, 4), torch.arange(20)

class Returns(nn.Module):
    "Returns what `f` makes of a batch"
    def __init__(self, f):
        super().__init__()
        self.f, self.weight = f, nn.Parameter(torch.ones(()))
    def forward(self, x): return self.f(x)

def loader(*tensors): return DataLoader(TensorDataset(*tensors), 8)

def predict(f, dl=None, with_targs=False, **kwargs):
    "Of 20 samples, in batches of 8, 8 and 4"
    dl = loader(X, Y) if dl is None else dl
    return make_learner(Returns(f), dl, **{'loss_fn': F.mse_loss, **kwargs}).predict(dl, with_targs=with_targs)

def same(a, b): return type(a) is type(b) and equal(*(vars(o) if isinstance(o, Out) else o for o in (a, b)))

Pair = namedtuple('Pair', 'a b')

@dataclass
class Out:
    scores: Tensor
    extra: Any = None

def per_image(x): return [{'boxes': o[None].repeat(int(o[0]) % 3 + 1, 1), 'labels': o[:1]} for o in x]

@pytest.mark.parametrize('f', [
    lambda x: {'found': per_image(x), 'z': x}, lambda x: [str(o[0].item()) for o in x],
    lambda x: Pair(x, x.sum(1)), lambda x: Out(x), lambda x: OrderedDict(a=x, b=x.bool())],
    ids=['list in a dict', 'texts', 'named tuple', 'dataclass', 'mapping'])
def test_every_sample_is_there(f): assert same(predict(f), f(X))

def test_batches_of_another_length_than_their_results():
    "A last sample that is squeezed; a model's own loss, one for each batch; a step that says how many rows there are"
    assert same(predict(lambda x: x[:, 0].squeeze(), loader(X[:17], Y[:17])), X[:17, 0])
    losses = torch.stack([o.mean() for o in X.split(8)])
    assert same(predict(lambda x: {'loss': x.mean(), 'logits': x}), {'loss': losses, 'logits': X})
    def step(batch, learn): return {'pred': learn.model(batch[0]), 'n': 2*len(batch[0])}
    assert same(predict(lambda x: x.reshape(-1, 2), loss_fn=None, train_step=step), X.reshape(-1, 2))

def test_memory_that_loader_and_model_use_again():
    out = torch.empty(8, 4)
    def f(x):
        out[:len(x)] = x*2
        return {'a': out[:len(x)], 'b': [*out[:len(x)]]}
    preds, targs = predict(f, Reusing(8, X, Y), with_targs=True)
    assert same(preds, {'a': X*2, 'b': [*X*2]}) and torch.equal(targs, Y)

class Scales(nn.Linear):
    def forward(self, x, scale=torch.ones(1, 1)): return (super().forward(x)*scale).squeeze(1)

class TwoInputs(nn.Linear):
    def forward(self, a, b): return super().forward(a - b)

@pytest.mark.parametrize('as_dl', [lambda *o: o, loader], ids=['tuple', 'loader'])
def test_the_last_entry_is_the_target_if_the_model_can_be_called_without_it(as_dl):
    "Or if each entry is an argument"
    scale, y = torch.rand(20, 1), Y.float()
    learn = make_learner(Scales(4, 1), as_dl(X, scale, y), loss_fn=F.mse_loss, lr=1e-6)
    for _ in range(2):      # before and after a fit
        with torch.no_grad(): expected = learn.model(X, scale)
        assert torch.equal(learn.predict(as_dl(X, scale)), learn.predict(as_dl(X)))
        assert torch.allclose(learn.predict(X, scale), expected, rtol=1e-4)
        pred, targ = learn.predict(as_dl(X, scale, y), with_targs=True)
        assert torch.allclose(pred, expected, rtol=1e-4) and torch.equal(targ, y)
        learn.fit(1)

def test_inputs_that_the_model_needs_are_no_targets():
    "In a new process, where no fit has shown a batch"
    x, y = problem()
    learn = make_learner(TwoInputs(4, 3), ())
    with torch.no_grad(): expected = learn.model(x, 2*x)
    for data in (x, 2*x), (x, 2*x, y), loader(x, 2*x), {'a': x, 'b': 2*x}, {'b': 2*x.numpy(), 'a': x}:
        assert torch.allclose(learn.predict(data), expected, atol=1e-6)

@pytest.mark.parametrize('data, words', [
    (('hello',), 'a str, and nothing.* a list of texts'), ((X,), r'predict\(a, b\)'), (({'a': X},), 'pass all of them'),
    (([(X, Y)], Y), 'one tensor or array')], ids=['text', 'tensor', 'dict', 'loader'])
def test_what_predict_cannot_take(data, words):
    with pytest.raises(TypeError) as e: make_learner(TwoInputs(4, 3)).predict(*data)
    assert re.search(words, '\n'.join([str(e.value), *getattr(e.value, '__notes__', ())]))

def test_a_predict_step():
    "Gets batches as they are; it may be a method"
    x, y = problem()
    def step(batch, learn):
        seen.append(type(batch))
        return learn.model(batch if isinstance(batch, Tensor) else batch[0]).softmax(1)
    seen, learn = [], make_learner(predict_step=step)
    expected = learn(x).softmax(1)
    for data in x, x.numpy(), (x,), (x, y), [(x, y)]: assert torch.allclose(learn.predict(data), expected, atol=1e-6)
    assert seen == [Tensor, Tensor, tuple, tuple, tuple]
    class Soft(Learner):
        def predict_step(self, batch): return super().predict_step(batch)['pred'].softmax(1)
    learn = make_learner(cls=Soft)
    assert torch.allclose(learn.predict((x, y)), learn(x).softmax(1), atol=1e-6)
    learn.predict_step = lambda batch, learn: None
    with pytest.raises(KeyError, match="no 'pred'"): learn.predict(x)
