"A compiled model gives the results of the plain one, compiles a few times only, and reports what is not compiled"
from shutil import which

import pytest, torch
from torch import nn
from torch._dynamo.utils import counters

from common import batches, make_learner, plain_model, reasons, record, same, weights
from trainer_nb.all import Compile, GradClip, Hook, LambdaHook

def small():
    "BatchNorm, dropout, and no parameter whose gradient is rounding only"
    torch.manual_seed(0)
    body = nn.Linear(4, 8, bias=False), nn.BatchNorm1d(8), nn.Tanh()
    return nn.Sequential(*body, nn.Dropout(.2), nn.Linear(8, 3))

OPTIMS = {'sgd': lambda p: torch.optim.SGD(p, .1, momentum=.9), 'adamw': lambda p: torch.optim.AdamW(p, .01),
           'fused': lambda p: torch.optim.AdamW(p, .01, fused=True)}

def run(hooks=(), n=3, seed=0, m=None, **kwargs):
    torch.manual_seed(seed)
    learn = make_learner(small() if m is None else m, batches(), batches(), **{'optim': OPTIMS['adamw'], **kwargs},
                         hooks=hooks)
    torch.manual_seed(seed + 1)
    learn.fit(n)
    return learn

def close(a, b, tol=1e-5):
    return all(torch.allclose(x, y, rtol=0, atol=tol) for x, y in zip(weights(a.model), weights(b.model), strict=True))

def losses_close(a, b):
    def losses(learn): return [*learn.history.steps['train_loss'], *learn.history.epochs['valid_loss']]
    return losses(a) == pytest.approx(losses(b), abs=1e-5)

HAS_COMPILER = which('g++') or which('clang++')

@pytest.mark.parametrize('backend', ['aot_eager', pytest.param('inductor', marks=[
    pytest.mark.soak, pytest.mark.skipif(not HAS_COMPILER, reason='inductor needs a C++ compiler')])])
def test_equals_the_plain_step(backend):
    with reasons(): learn = run([Compile(backend=backend)], optim=OPTIMS['fused'])
    plain = run(optim=OPTIMS['fused'])
    assert close(learn, plain) and losses_close(learn, plain)
    assert 'forward' not in vars(learn.model) and learn.model._compiled_call_impl is None

class Slower(Hook):
    def after_step(self, learn):
        if learn.stepped:
            for g in learn.opt.param_groups: g['lr'] *= .9

def test_it_compiles_a_few_times_only():
    "Whatever the learning rate is, and however often the last batch is short; a second fit finds everything"
    torch._dynamo.reset()
    counters.clear()
    hook = Compile(backend='aot_eager')
    learn = make_learner(small(), batches(), batches(), optim=OPTIMS['sgd'], hooks=[hook, Slower()])
    learn.fit(2)
    n = counters['stats']['unique_graphs']
    assert 2 <= n <= 5
    learn.fit(3)
    learn.fit(2)
    assert counters['stats']['unique_graphs'] == n and not hook.reasons

# What cannot be compiled

def broken(gm, inputs): raise RuntimeError('no compiler here')

def test_a_backend_that_fails():
    with reasons('does not compile the forward of Sequential, because of .*'):
        learn = run([Compile(backend=broken)])
    assert same(weights(learn.model), weights(run().model)) and record(learn) == record(run())

def test_after_an_error_the_model_is_plain():
    hooks = [Compile(backend='eager'), LambdaHook(after_step=lambda learn: 1/0)]
    learn = make_learner(small(), batches(), hooks=hooks)
    with pytest.raises(ZeroDivisionError): learn.fit(1)
    assert learn.model._compiled_call_impl is None

class Switch(Hook):
    "Freezes or unfreezes the first layer at the start of an epoch, or in the middle of one"
    def __init__(self, at): self.at = at
    def before_step(self, learn):
        if learn.training and (now := self.at.get(learn.state.optimizer_step)) is not None:
            learn.model[0].requires_grad_(now)

def test_what_is_frozen_and_unfrozen_during_a_fit():
    def fit(*more):
        hooks = Switch({0: False, 3: True, 7: False}), GradClip(1.), *more
        learn = make_learner(plain_model(), batches(), optim=OPTIMS['adamw'], hooks=hooks)
        learn.fit(3)
        return learn
    with reasons(): learn = fit(Compile(backend='aot_eager'))
    assert close(learn, fit(), 1e-6)
