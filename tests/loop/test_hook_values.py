"Values pass through the wrappers: a hook passes on a loss or a model, and `learn.loss` and `learn.model` stay"
import functools

import pytest, torch
from torch import nn
import torch.nn.functional as F

from common import batches, make_learner, plain_loop, plain_model, same, weights
from trainer_nb.all import CancelStep, Hook, LambdaHook

def sgd(params): return torch.optim.SGD(params, lr=.1)

def fitted(*hooks, **kwargs):
    learn = make_learner(plain_model(), batches(), optim=sgd, hooks=hooks, **kwargs)
    learn.fit(1)
    return learn

def is_plain(learn, scale=1.):
    "Whether it has the weights of a loop by hand that multiplies each loss by `scale`"
    model = plain_model()
    plain_loop(model, sgd(model.parameters()), batches(), 1, lambda m, b: scale*F.cross_entropy(m(b[0]), b[1]))
    return same(weights(learn.model), weights(model))


# What a wrapper passes on

@pytest.mark.parametrize('hook', [
    lambda: LambdaHook(do_backward=lambda learn, nxt, loss: nxt(.25*loss)),
    lambda: LambdaHook(do_backward=lambda learn, nxt: nxt(.25*learn.loss)),
    lambda: LambdaHook(do_step=lambda learn, nxt, model, loss_fn: nxt(model, lambda p, t: .25*loss_fn(p, t)))])
def test_a_scaled_loss(hook):
    "Bit-equal to the plain loop with that loss"
    assert is_plain(fitted(hook()), .25)

def test_nxt_without_values_and_with_some():
    "What is left out is passed on as it came"
    seen, other = [], plain_model()
    def look(learn, nxt, model, loss_fn):
        seen.append((model is other, loss_fn is learn.loss_fn, learn.model is other))
        nxt()
    learn = fitted(LambdaHook(do_step=lambda learn, nxt: nxt() if learn.training else nxt(other)),
                   LambdaHook(do_step=look), valid_dl=batches()[:1])
    assert seen == 5*[(False, True, False)] + [(True, True, False)] and learn.model is not other

def test_a_method_gets_the_values_that_it_names():
    class Some(Hook):
        def do_step(self, learn, nxt, model): nxt()
        def do_backward(self, learn, nxt, scale=2.): nxt(scale*learn.loss)
    for hook in Some(), LambdaHook(do_backward=functools.partial(Some.do_backward, None, scale=2.)):
        assert is_plain(fitted(hook), 2.)

def test_a_step_that_yields_hands_on_each_loss():
    seen, model = [], plain_model()
    def step(batch, learn):
        yield 'a', learn.model(batch[0]).mean()
        yield 'b', learn.model(batch[0]).square().mean()
    def halve(learn, nxt, loss):
        seen.append((learn.phase.opt_names[0], (loss/learn.loss).item()))
        nxt(loss/2)
    opts = {'a': sgd(model[0].parameters()), 'b': sgd(model[2].parameters())}
    learn = make_learner(model, batches()[:1], train_step=step, optim=opts, hooks=[LambdaHook(do_backward=halve)])
    learn.fit(1)
    assert seen == [('a', 1.), ('b', 1.)]

def test_a_validation_inside_of_a_wrapper():
    "`nxt` passes on the values of its own step, whatever ran in between"
    def validates(learn, nxt, model):
        if learn.training: learn.validate()
        nxt()
    other = plain_model()
    def swaps(learn, nxt, model): nxt(model if learn.training else other)
    hooks = [LambdaHook(do_step=swaps), LambdaHook(do_step=validates)]
    assert is_plain(fitted(*hooks, valid_dl=batches()[:1]))


# `learn.loss` and `learn.model` stay the user's own

@pytest.mark.parametrize('error, yields', [(RuntimeError, True), (CancelStep, False), (KeyboardInterrupt, True)])
def test_the_users_model_is_back_after_an_error_in_the_step(error, yields):
    other, seen = plain_model(), []
    def fails(batch, learn):
        seen.append(learn.model is other)
        raise error
    def step(batch, learn):
        if not yields: fails(batch, learn)
        yield '', learn.model(batch[0]).mean()
        fails(batch, learn)
    train_step = step if yields else fails
    learn = make_learner(plain_model(), batches()[:1], optim=sgd, train_step=train_step)
    model, swap = learn.model, LambdaHook(do_step=lambda learn, nxt: nxt(other))
    at_end = LambdaHook(after_fit=lambda learn: seen.append(learn.model is model))
    try: learn.fit(1, hooks=[swap, at_end])
    except (RuntimeError, KeyboardInterrupt): pass
    assert seen == [True, True] and learn.model is model


# Wrong values

@pytest.mark.parametrize('point, f, error, message, note', [
    ('do_step', lambda learn, nxt: nxt(None), TypeError, 'nxt got None as the model', 'hook Mine, `do_step`'),
    ('do_opt_step', lambda learn, nxt: nxt(3), TypeError, r'nxt got 1 value: expected nxt\(\)', 'in hook Mine'),
    ('do_backward', lambda learn, nxt, loss: nxt(loss.detach()), ValueError, 'does not require grad',
     'the loss that hook Mine passed on'),
    ('do_step', lambda learn, nxt: nxt(3), TypeError, 'not callable', 'the model that hook Mine passed on'),
    ('do_backward', lambda learn, nxt: (nxt(), nxt()), RuntimeError, 'second time',
     'Mine wraps do_backward: pass another loss to a second nxt()'),
    ('do_step', lambda learn, nxt: None, TypeError, r'do_step of Mine left no result: call nxt\(\)', ''),
    ('do_opt_step', lambda learn, nxt: None, TypeError, r'what nxt\(\) returned', '')])
def test_wrong_values_say_who_handed_them_on(point, f, error, message, note):
    with pytest.raises(error, match=message) as e: fitted(LambdaHook(name='Mine', **{point: f}))
    assert note in '\n'.join(e.value.__notes__)

def test_a_model_set_in_a_step_is_refused():
    "The step has its model already; `nxt(model)` passes another one on"
    other = nn.Linear(4, 3)
    def swap(learn, nxt):
        learn.model = other
        return nxt()
    learn = make_learner()
    model = learn.model
    with pytest.raises(RuntimeError, match=r'nxt\(model\)'): learn.fit(1, hooks=[LambdaHook(do_step=swap)])
    assert learn.model is model
