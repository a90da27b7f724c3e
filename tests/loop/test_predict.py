"`predict` returns every sample once, as the model says it"
import re
from collections import OrderedDict, namedtuple
from dataclasses import dataclass
from typing import Any

import pytest, torch, torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from common import make_learner, problem
from test_metrics import Reusing, in_dataloader

X, Y = torch.arange(80.).reshape(20, 4), torch.arange(20)

class Says(nn.Module):
    "Returns what `f` makes of a batch"
    def __init__(self, f):
        super().__init__()
        self.f, self.weight = f, nn.Parameter(torch.ones(()))
    def forward(self, x): return self.f(x)

def loader(*tensors, bs=8): return DataLoader(TensorDataset(*tensors), bs)

def predict(f, dl=None, **kwargs):
    "Of 20 samples, in batches of 8, 8 and 4"
    dl = loader(X, Y) if dl is None else dl
    return make_learner(Says(f), dl, loss_fn=F.mse_loss).predict(dl, **kwargs)

def same(a, b):
    "Nestings of tensors are equal, and of the same types"
    if isinstance(a, Tensor): return isinstance(b, Tensor) and torch.equal(a, b)
    if type(a) is not type(b): return False
    if isinstance(a, dict): return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)): return len(a) == len(b) and all(map(same, a, b))
    return same(vars(a), vars(b)) if hasattr(a, '__dict__') else a == b

Pair = namedtuple('Pair', 'a b')

@dataclass
class Out:
    scores: Tensor
    extra: Any = None

class ModelOutput(OrderedDict): pass

# one to three boxes in an image
def per_image(x): return [{'boxes': o[None].repeat(int(o[0]) % 3 + 1, 1), 'labels': o[:1]} for o in x]

@pytest.mark.parametrize('f', [
    lambda x: {'found': per_image(x), 'z': x}, lambda x: [o[:int(o[1]) % 3] for o in x],
    lambda x: [str(o[0].item()) for o in x], lambda x: {'a': x, 'b': (x[:, 0], x.long())}, lambda x: Pair(x, x.sum(1)),
    lambda x: Out(x), lambda x: ModelOutput(a=x, b=x.bool())],
    ids=['list in a dict', 'tensors of other lengths', 'texts', 'nested', 'named tuple', 'None', 'mapping'])
def test_every_sample_is_there(f):
    "20 came back as 4: each batch's list was taken for a tuple of outputs"
    expected = f(X)
    if type(expected) is tuple: expected = list(expected)       # samples are a list
    assert same(predict(f), expected)

def test_a_squeezed_batch_of_one():
    assert same(predict(lambda x: x[:, 0].squeeze(), loader(X[:17], Y[:17])), X[:17, 0])

def test_a_models_own_loss():
    "One number for each batch, beside its logits"
    preds = predict(lambda x: {'loss': x.mean(), 'logits': x})
    assert same(preds, {'loss': torch.stack([o.mean() for o in X.split(8)]), 'logits': X})

def test_a_step_says_how_many_rows_there_are():
    def step(batch, learn): return {'pred': learn.model(batch[0]), 'n': 2*len(batch[0])}
    preds = make_learner(Says(lambda x: x.reshape(-1, 2)), loader(X, Y), train_step=step).predict(loader(X, Y))
    assert same(preds, X.reshape(-1, 2))


# Memory

@pytest.mark.parametrize('make_dl', [Reusing, in_dataloader])
@pytest.mark.parametrize('wrap', [lambda o: o, lambda o: {'a': [*o]}], ids=['tensor', 'dict'])
def test_memory_that_is_used_again(make_dl, wrap):
    "by the loader and by the model: the last batch stood everywhere"
    out = torch.empty(8, 4)
    def f(x):
        out[:len(x)] = x*2
        return wrap(out[:len(x)])
    preds, targs = predict(f, make_dl(8, X, Y), with_targs=True)
    assert same(preds, wrap(X*2)) and torch.equal(targs, Y)

class Linear(nn.Module):
    "The base class of models with one layer"
    def __init__(self, *sizes):
        super().__init__()
        self.layer = nn.Linear(*sizes)

@pytest.mark.parametrize('as_dl', [lambda *o: o, loader], ids=['tuple', 'loader'])
def test_several_inputs_without_a_target(as_dl):
    "The last entry is the target, but for a model that cannot be called without it, or if each is an argument"
    class Two(Linear):
        def forward(self, x, scale=torch.ones(1, 1)): return (self.layer(x)*scale).squeeze(1)
    scale, y = torch.rand(20, 1), Y.float()
    learn = make_learner(Two(4, 1), as_dl(X, scale, y), loss_fn=F.mse_loss, lr=1e-6)
    with torch.no_grad(): expected = learn.model(X, scale)
    for _ in range(2):      # before and after a fit
        assert torch.equal(learn.predict(as_dl(X, scale)), learn.predict(as_dl(X)))
        assert torch.allclose(learn.predict(X, scale), expected, rtol=1e-4)
        pred, targ = learn.predict(as_dl(X, scale, y), with_targs=True)
        assert torch.allclose(pred, expected, rtol=1e-4) and torch.equal(targ, y)
        learn.fit(1)
        with torch.no_grad(): expected = learn.model(X, scale)
    one = make_learner(nn.Linear(4, 1), as_dl(X, y[:, None]), loss_fn=F.mse_loss, lr=1e-6)
    assert torch.equal(one.predict(as_dl(X, y[:, None])), one.predict(as_dl(X)))
    with pytest.raises(TypeError, match='one tensor or array'): one.predict([(X, y)], y)

class TwoInputs(Linear):
    def forward(self, a, b): return self.layer(a - b)

def test_a_step_that_predicts_nothing():
    learn = make_learner(predict_step=lambda batch, learn: None)
    with pytest.raises(KeyError, match="no 'pred'"): learn.predict(problem()[0])

@pytest.mark.parametrize('data, words', [
    ('hello', "the text 'hello'.*a list of texts"),
    (X, r'the model takes \(a, b\): pass all of them, predict\(a, b\)'), ({'a': X}, r'pass all of them')])
def test_what_predict_cannot_take(data, words):
    with pytest.raises(TypeError) as e: make_learner(TwoInputs(4, 3)).predict(data)
    assert re.search(words, '\n'.join([str(e.value), *getattr(e.value, '__notes__', ())]))

def test_inputs_that_the_model_needs_are_no_targets():
    "In a new process, where no fit has shown a batch"
    x, y = problem()
    learn = make_learner(TwoInputs(4, 3), ())
    with torch.no_grad(): expected = learn.model(x, 2*x)
    named = {'a': x, 'b': 2*x}, {'b': 2*x.numpy(), 'a': x}
    for data in (x, 2*x), (x, 2*x, y), loader(x, 2*x), *named:
        assert torch.allclose(learn.predict(data), expected, atol=1e-6)


# Own steps

def unpacks(batch, learn):
    xb, yb = batch
    pred = learn.model(2*xb).softmax(1)
    return {'loss': F.nll_loss(pred.log(), yb), 'pred': pred, 'targ': yb}

def looks_up(batch, learn): return unpacks((batch['x'], batch['label']), learn)

def yields(batch, learn):
    res = unpacks(batch, learn)
    yield '', res.pop('loss')
    return res

@pytest.mark.parametrize('step, shown', [
    (unpacks, {'x': '*batch', '(x,)': '*batch'}), (yields, {'(x,)': '*batch'}), (looks_up, {"{'x': x}": "batch['x']"})])
def test_own_steps_take_whole_batches_or_a_predict_step(step, shown):
    x, y = problem()
    data = {'x': x, 'label': y} if step is looks_up else (x, y)
    learn = make_learner(None, [data], train_step=step, bs=8)
    learn.model.eval()
    with torch.no_grad(): expected = learn.model(2*x).softmax(1)
    pred, targ = learn.predict(data, with_targs=True)
    assert torch.equal(targ, y) and torch.allclose(pred, expected, atol=1e-6)
    for text, inputs in shown.items():
        with pytest.raises((KeyError, ValueError)) as e: learn.predict(eval(text, {'x': x}))
        lines = '\n'.join(e.value.__notes__)
        inputs = 'batch' if text == 'x' else inputs
        assert f'def predict_step(batch, learn): return learn.model({inputs})\n' in lines and 'predict_step=' in lines
        learn.predict_step = eval(f'lambda batch, learn: learn.model({inputs})')      # as it says
        assert torch.allclose(learn.predict(eval(text, {'x': x})), learn(x), atol=1e-6)
        del learn.predict_step
    learn.eval_step = lambda batch, learn: {'loss': 0.}
    with pytest.raises(KeyError, match="no 'pred'") as e: learn.predict(data)
    assert 'def predict_step' in '\n'.join(e.value.__notes__)

def test_a_predict_step():
    x, y = problem()
    def step(batch, learn):
        seen.append(type(batch))
        return learn.model(batch if isinstance(batch, Tensor) else batch[0]).softmax(1)
    seen, learn = [], make_learner(predict_step=step)
    expected = learn(x).softmax(1)
    for data in x, x.numpy(), (x,), (x, y), [(x, y)]: assert torch.allclose(learn.predict(data), expected, atol=1e-6)
    assert seen == [Tensor, Tensor, tuple, tuple, tuple]

    def of_texts(batch, learn):
        assert isinstance(batch, list)
        return {'pred': learn.model(torch.tensor([[float(len(o))]*4 for o in batch])), 'targ': torch.ones(len(batch))}
    learn = make_learner(None, (X, Y), predict_step=of_texts, bs=2)
    pred, targ = learn.predict(['a', 'bb', 'ccc'], with_targs=True)
    assert torch.allclose(pred, learn(torch.tensor([[1.], [2.], [3.]]).expand(3, 4)), atol=1e-6) and len(targ) == 3

    class Soft(make_learner().__class__):
        def predict_step(self, batch): return super().predict_step(batch)['pred'].softmax(1)
    learn = make_learner(cls=Soft)
    assert torch.allclose(learn.predict((x, y)), learn(x).softmax(1), atol=1e-6)
