"Each mistake gives one clear message of the right type, as early as can be; what it spoiled can be mended, and trains"
import re

import pytest, torch, torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from common import batches, make_learner, make_model, problem
from trainer_nb.learner import Learner
from trainer_nb.loop.hooks import LambdaHook

def refused(error, f, *words):
    "`f` raises exactly this type, and the message has all the words"
    with pytest.raises(error) as e: f()
    assert type(e.value) is error
    for word in words: assert re.search(word, str(e.value)), f'{word!r} is not in: {e.value}'
    return e.value

def assert_trains(learn):
    "It is as if the mistake had not been made, but for what was trained before it"
    n_epochs = len(learn.history)
    assert learn.batch is learn.pred is learn.loss is learn.result is None
    learn.fit(2)
    assert len(learn.history) == n_epochs + 2 and all(v == v for v in learn.history.epochs['train_loss'][-2:])

def watch(seen): return LambdaHook(**{e: lambda learn, e=e: seen.append(e) for e in ('before_step', 'after_backward')})

# What a step may return, or yield

def returning(f): return lambda batch, learn: f(learn.model(batch[0]), batch[1])

def yielding(*items, **res):
    def step(batch, learn):
        loss = F.cross_entropy(learn.model(batch[0]), batch[1])
        for item in items: yield item(loss)
        return {k: loss for k in res}
    return step

STEPS = {
    'no dict': (returning(F.cross_entropy), TypeError, 'returned a Tensor', "dict with at least 'loss'"),
    'unknown name': (yielding(lambda loss: ('bod', loss)), ValueError, "'bod'", "'body', 'head'", 'mean `body`'),
    'no name': (yielding(lambda loss: loss), TypeError, 'yielded a Tensor', "yield 'd', d_loss"),
    'no loss yielded': (yielding(lambda loss: ('body', None)), TypeError, 'a NoneType', '0-d tensor'),
    'not trainable': (yielding(lambda loss: ('body', loss.detach())), ValueError, 'does not require grad'),
    'yields and returns': (yielding(lambda loss: ('body', loss), loss=True), ValueError, "returns a 'loss'", 'leave'),
}

@pytest.mark.parametrize('kind', STEPS)
def test_step(kind):
    (step, error, *words), seen, model = STEPS[kind], [], make_model()
    if kind == 'no dict': mended, optim = returning(lambda z, y: {'loss': F.cross_entropy(z, y)}), None
    else:
        mended = yielding(lambda loss: ('body', loss))
        optim = {k: torch.optim.SGD(model[i].parameters(), lr=.1) for k, i in {'body': 0, 'head': 3}.items()}
    learn = make_learner(model, train_step=step, optim=optim, hooks=[watch(seen)])
    e = refused(error, lambda: learn.fit(2), *words)
    assert seen in (['before_step'], ['before_step', 'after_backward']) and 'epoch 0' in e.__notes__[-1]
    learn.train_step = mended
    learn.fit(1)
    assert len(learn.history) == 1

# Loaders

EMPTY = {'list': lambda: [], 'generator': lambda: iter(()),
         'dropped': lambda: DataLoader(TensorDataset(*problem(3)), batch_size=5, drop_last=True)}

@pytest.mark.parametrize('name', ['train_dl', 'valid_dl'])
@pytest.mark.parametrize('kind', EMPTY)
def test_empty_loaders(kind, name):
    "Those that know their length before anything is fired"
    seen = []
    learn = make_learner(hooks=[watch(seen)], **{name: EMPTY[kind]()})
    words = ('no batch', 'used up') if kind == 'generator' else ('empty', 'drop_last')
    refused(ValueError, lambda: learn.fit(1), name, *words)
    assert kind == 'generator' or seen == [] and learn.state.epoch == 0
    setattr(learn, name, batches())
    assert_trains(learn)

def test_no_loader():
    learn = Learner(make_model(), loss_fn=F.cross_entropy, display=False)
    refused(ValueError, lambda: learn.fit(1), 'no train_dl', 'pass one')
    refused(ValueError, learn.validate, 'no valid_dl', 'pass')
    learn.train_dl = batches()
    refused(ValueError, lambda: learn.fit(1, valid_every=2), 'valid_every', 'valid_dl')
    assert_trains(learn)
    for wrong in 3, nn.Linear(4, 3): refused(TypeError, lambda: make_learner(train_dl=wrong), 'iterable of batches')

@pytest.mark.parametrize('where', ['train_dl', 'valid_dl'])
def test_a_batch_that_the_default_step_cannot_take(where):
    learn = make_learner(**{where: [torch.ones(5, 4)]})
    e = refused(TypeError, lambda: learn.fit(1), 'yielded a Tensor', 'train_step')
    assert ('training' if where == 'train_dl' else 'validation') in e.__notes__[-1]
    setattr(learn, where, batches())
    assert_trains(learn)

def test_fit_inside_of_fit():
    again = LambdaHook(after_step=lambda learn: learn.fit(1))
    learn = make_learner()
    refused(RuntimeError, lambda: learn.fit(1, hooks=[again]), 'in a fit already')
    assert_trains(learn)
