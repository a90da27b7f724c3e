"Each mistake gives one clear message of the right type, as early as can be; what it spoiled can be mended, and trains"
import re
from inspect import isgeneratorfunction

import pytest, torch, torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from common import batches, make_learner, make_model, problem
from trainer_nb.loop.hooks import Hook, LambdaHook
from trainer_nb.loop.hooks import HookOrderError
from trainer_nb.learner import Learner


def refused(error, f, *words):
    "`f` raises exactly this type, and the message has all the words"
    with pytest.raises(error) as e: f()
    assert type(e.value) is error
    for word in words: assert re.search(word, str(e.value)), f'{word!r} is not in: {e.value}'
    return e.value

def assert_trains(learn, n=2):
    "It is as if the mistake had not been made, but for what was trained before it"
    n_epochs, steps = len(learn.history), []
    assert learn.batch is learn.pred is learn.loss is learn.result is None
    with learn.added_hooks(LambdaHook(after_step=lambda learn: steps.append(learn.loss.item())
                                      if learn.training else None)):
        learn.fit(n)
    assert len(learn.history) == n_epochs + n and learn.history.steps['train_loss'][-len(steps):] == steps
    assert all(v == v for v in learn.history.epochs['train_loss'][-n:])

class Watch(Hook):
    "Counts what was fired"
    def __init__(self): self.seen = []
    def before_fit(self, learn): self.seen.append('before_fit')
    def before_step(self, learn): self.seen.append('before_step')
    def after_backward(self, learn): self.seen.append('after_backward')


# What a step may return, or yield

def returning(f): return lambda batch, learn: f(learn.model(batch[0]), batch[1])

def good(z, y): return {'loss': F.cross_entropy(z, y)}

def yielding(*items):
    def step(batch, learn):
        loss = F.cross_entropy(learn.model(batch[0]), batch[1])
        for item in items: yield item(loss)
        return {'loss': loss} if len(items) == 2 else {}
    return step

STEPS = {
    'no dict': (returning(F.cross_entropy), TypeError, 'returned a Tensor', "dict with at least 'loss'"),
    'unknown name': (yielding(lambda loss: ('bod', loss)), ValueError, "'bod'", "'body', 'head'", 'mean `body`'),
    'no name': (yielding(lambda loss: loss), TypeError, 'yielded a Tensor', "yield 'd', d_loss"),
    'no loss yielded': (yielding(lambda loss: ('body', None)), TypeError, 'loss is a NoneType', '0-d tensor'),
    'not trainable': (yielding(lambda loss: ('body', loss.detach())), ValueError, 'does not require grad'),
    'yields and returns': (yielding(lambda loss: ('body', loss), lambda _: ('head', nn.Parameter(torch.ones(()))*1)),
                           ValueError, "yields losses and returns a 'loss'", 'leave it out'),
}

@pytest.mark.parametrize('step, error, words', [(s, e, w) for s, e, *w in STEPS.values()], ids=STEPS)
def test_step(step, error, words):
    watch, model = Watch(), make_model()
    names = isgeneratorfunction(step) and {'body': 0, 'head': 3}
    optim = {k: torch.optim.SGD(model[i].parameters(), lr=.1) for k, i in names.items()} if names else None
    learn = make_learner(model, train_step=step, optim=optim, hooks=[watch])
    e = refused(error, lambda: learn.fit(2), *words)
    # in the first batch, before anything moved
    assert watch.seen[:2] == ['before_fit', 'before_step'] and 'epoch 0' in e.__notes__[-1]
    assert len(watch.seen) == 2 or names
    if names:
        learn.train_step = yielding(lambda loss: ('body', loss))
        learn.fit(1)
        assert len(learn.history.steps['train_loss_body']) >= 5 and len(learn.history) == 1
    else:
        learn.train_step = returning(good)
        assert_trains(learn)


# Loaders

EMPTY = {'list': [], 'dropped': DataLoader(TensorDataset(*problem(3)), batch_size=5, drop_last=True),
         'tensors': (torch.empty(0, 4), torch.empty(0)), 'generator': iter(())}

@pytest.mark.parametrize('name', ['train_dl', 'valid_dl'])
@pytest.mark.parametrize('kind', EMPTY)
def test_empty_loaders(kind, name):
    "Those that know their length before anything is fired"
    watch = Watch()
    learn = make_learner(hooks=[watch], **{name: EMPTY[kind]})
    words = ('no batch', 'used up') if kind == 'generator' else ('empty', 'drop_last')
    refused(ValueError, lambda: learn.fit(1), name, *words)
    assert kind == 'generator' or watch.seen == [] and learn.state.epoch == 0
    setattr(learn, name, batches())
    assert_trains(learn)

def test_no_loader():
    learn = Learner(make_model(), loss_fn=F.cross_entropy, display=False)
    refused(ValueError, lambda: learn.fit(1), 'no train_dl', 'pass one')
    refused(ValueError, learn.validate, 'no valid_dl', 'pass')
    learn.train_dl = batches()
    refused(ValueError, lambda: learn.fit(1, valid_every=2), 'valid_every', 'valid_dl')
    assert_trains(learn)
    for wrong in 3, nn.Linear(4, 3), print:
        refused(TypeError, lambda: make_learner(train_dl=wrong), type(wrong).__name__, 'iterable of batches')

class Unmovable:
    def __init__(self): self.x = torch.ones(5, 4)
    def to(self, device): raise RuntimeError(f'cannot go to {device}')

BATCHES = {
    'a lone tensor': (torch.ones(5, 4), TypeError, 'yielded a Tensor', r'\(inputs\.\.\., target\)', 'train_step'),
    'unmovable': (Unmovable(), RuntimeError, 'cannot go to cpu'),
}

@pytest.mark.parametrize('batch, error, words', [(b, e, w) for b, e, *w in BATCHES.values()], ids=BATCHES)
def test_batches_that_the_default_step_cannot_take(batch, error, words):
    for where in 'train_dl', 'valid_dl':
        learn = make_learner(**{where: [batch]})
        e = refused(error, lambda: learn.fit(1), *words)
        assert 'epoch 0' in e.__notes__[-1] and ('training' if where == 'train_dl' else 'validation') in e.__notes__[-1]
        setattr(learn, where, batches())
        assert_trains(learn)


# Models and optimizers

def test_nothing_to_train():
    frozen, watch = make_model().requires_grad_(False), Watch()
    learn = make_learner(frozen, hooks=[watch])
    refused(ValueError, lambda: learn.fit(1), 'Sequential', 'no trainable parameters', 'unfreeze')
    assert watch.seen == []
    frozen.requires_grad_(True)
    assert_trains(learn)


# Hooks

def hook(name, **attrs): return type(name, (Hook,), attrs)()

@pytest.mark.parametrize('add', [lambda learn, h: learn.add_hook(h), lambda learn, h: learn.fit(1, hooks=[h])],
                         ids=['add_hook', 'fit'])
def test_hooks_that_cannot_be_added(add):
    "The ones that are there stay as they were"
    learn = make_learner(hooks=[hook('Egg', runs_after='Chicken'), hook('Once', unique=True)])
    before = list(learn.hooks)
    for wrong in hook('Chicken', runs_after='Egg'), hook('Once', unique=True), before[0], Hook, print:
        with pytest.raises((HookOrderError, ValueError, TypeError)): add(learn, wrong)
        assert learn.hooks == before
    assert_trains(learn)

def test_fit_inside_of_fit():
    learn = make_learner(hooks=[hook('Again', after_step=lambda self, learn: learn.fit(1))])
    refused(RuntimeError, lambda: learn.fit(1), 'in a fit already')
    learn.remove_hook('Again')
    assert_trains(learn)
