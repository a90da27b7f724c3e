"Compiled steps give the results of plain ones, compile a few times only, and report what is not compiled"
import inspect
from shutil import which

import pytest, torch
from torch import nn
from torch._dynamo.utils import counters

from common import batches, make_learner, reasons, record, same, weights
from trainer_nb.all import Compile, GradClip, Hook, LRScheduler, LambdaHook, OneCycle, WarmupCosine
from trainer_nb.base import tracing_backward

@pytest.fixture(autouse=True)
def _torch_can(request):
    "Older versions of torch compile the forward only"
    what = getattr(request.node, 'callspec', None) and request.node.callspec.params.get('what')
    if what != 'step' and (what or "what='step'" not in inspect.getsource(request.function)): return
    if tracing_backward() is None: pytest.skip(f'torch {torch.__version__} does not compile a backward')

ways = pytest.mark.parametrize('what', ['model', 'step'])

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

@ways
@pytest.mark.parametrize('backend', ['aot_eager', pytest.param('inductor', marks=[
    pytest.mark.soak, pytest.mark.skipif(not HAS_COMPILER, reason='inductor needs a C++ compiler')])])
def test_equals_the_plain_step(what, backend):
    with reasons(): learn = run([Compile(what=what, backend=backend)], optim=OPTIMS['fused'])
    plain = run(optim=OPTIMS['fused'])
    assert close(learn, plain) and losses_close(learn, plain)
    assert 'forward' not in vars(learn.model) and learn.model._compiled_call_impl is None

class Slower(Hook):
    def after_step(self, learn):
        if learn.stepped:
            for g in learn.opt.param_groups: g['lr'] *= .9

@ways
def test_it_compiles_a_few_times_only(what):
    "Whatever the learning rate is, and however often the last batch is short; a second fit finds everything"
    torch._dynamo.reset()
    counters.clear()
    hook = Compile(what=what, backend='aot_eager')
    learn = make_learner(small(), batches(), batches(), optim=OPTIMS['sgd'], hooks=[hook, Slower()])
    learn.fit(2)
    n = counters['stats']['unique_graphs']
    assert 2 <= n <= 5
    learn.fit(3)
    learn.fit(2)
    assert counters['stats']['unique_graphs'] == n and not hook.reasons

# Schedules

COUNTED = []
def counted(gm, inputs):
    COUNTED.append(gm)
    return gm.forward

class SteppedDecay(Hook):
    def before_step(self, learn):
        for g in learn.opt.param_groups: g['weight_decay'] = .1/(1 + learn.state.optimizer_step)

TORCH = torch.optim.lr_scheduler
SCHEDULES = {
    'OneCycle': lambda: OneCycle(.1), 'WarmupCosine': lambda: WarmupCosine(.1), 'weight decay': SteppedDecay,
    'Sequential': lambda: LRScheduler(
        lambda opt: TORCH.SequentialLR(opt, [TORCH.ConstantLR(opt, .1, 3), TORCH.ExponentialLR(opt, .9)], [3]))}
SCHEDULED = {
    'Adam': lambda p: torch.optim.Adam(p, .01, weight_decay=.1),
    'AdamW': lambda p: torch.optim.AdamW(p, .01, fused=True),
    'SGD': lambda p: torch.optim.SGD(p, .01, momentum=.9, weight_decay=.1, nesterov=True),
    'RMSprop': lambda p: torch.optim.RMSprop(p, .01, momentum=.9, weight_decay=.1)}

@pytest.mark.parametrize('optim, schedule', [
    ('Adam', 'OneCycle'), ('SGD', 'weight decay'), ('AdamW', 'WarmupCosine'), ('RMSprop', 'Sequential')])
def test_schedules_compile_one_graph(optim, schedule):
    """Rates, betas, momentum and weight decay change at each step, down to a rate of 0

    Some entries of the input are always 0, and so are their gradients.
    """
    def fit(*hooks):
        torch.manual_seed(0)
        data = [(x*torch.tensor([1., 0., 1., 1.]), y) for x, y in batches(bs=4)]
        learn = make_learner(nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)), data, optim=SCHEDULED[optim],
                             hooks=hooks)
        learn.fit(2)
        return learn
    COUNTED.clear()
    with reasons(): learn = fit(SCHEDULES[schedule](), Compile(what='step', backend=counted))
    plain = fit(SCHEDULES[schedule]())
    assert len(COUNTED) == 1 and close(learn, plain, 2e-5 if optim == 'RMSprop' else 5e-6)
    assert [g['lr'] for g in learn.opt.param_groups] == [g['lr'] for g in plain.opt.param_groups]

# What cannot be compiled

def broken(gm, inputs): raise RuntimeError('no compiler here')

def test_a_backend_that_fails():
    parts = 'backward', 'forward of Sequential', 'optimizer'
    with reasons(*[f'does not compile the {o}, because of .*' for o in parts]):
        learn = run([Compile(what='step', backend=broken)])
    assert same(weights(learn.model), weights(run().model)) and record(learn) == record(run())

@ways
def test_after_an_error_the_model_is_plain(what):
    learn = make_learner(small(), batches(),
                         hooks=[Compile(what=what, backend='eager'), LambdaHook(after_step=lambda learn: 1/0)])
    with pytest.raises(ZeroDivisionError): learn.fit(1)
    assert learn.model._compiled_call_impl is None and not getattr(torch._dynamo.config, 'trace_autograd_ops', False)

def test_gradients_of_gradients_name_the_hook():
    "A penalty on gradients, of a compiled model: torch's error did not say whose compilation it meant"
    torch.compiler.reset()
    from torch._functorch import config
    def step(batch, learn):
        x = batch[0].requires_grad_()
        grad, = torch.autograd.grad(learn.model(x).sum(), x, create_graph=True)
        return {'loss': grad.square().mean()}
    error = pytest.raises(RuntimeError, match='double backward|create_graph=False')
    with config.patch(donated_buffer=True), error as e:
        make_learner(small(), batches(), train_step=step, hooks=[Compile(backend='aot_eager')]).fit(1)
    assert any(o.startswith('Compile: the step differentiates gradients') for o in e.value.__notes__)

class Switch(Hook):
    "Freezes or unfreezes the first layer at the start of an epoch, or in the middle of one"
    def __init__(self, at): self.at = at
    def before_step(self, learn):
        if learn.training and (now := self.at.get(learn.state.optimizer_step)) is not None:
            learn.model[0].requires_grad_(now)

def two_layers(optim, *hooks):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    learn = make_learner(model, batches(), optim=optim, hooks=hooks)
    learn.fit(3)
    return learn

def test_what_is_frozen_and_unfrozen_during_a_fit():
    def fit(*more): return two_layers(OPTIMS['adamw'], Switch({0: False, 3: True, 7: False}), GradClip(1.), *more)
    with reasons(): learn = fit(Compile(what='step', backend='aot_eager'))
    assert close(learn, fit(), 1e-6)

def dampened(p):
    p = list(p)
    return torch.optim.SGD([{'params': p[:2]}, {'params': p[2:]}], .03, momentum=.9, dampening=.3)

@pytest.mark.parametrize('optim, why', [(lambda p: torch.optim.ASGD(p, .05), ['optimizer, because of ASGD']),
                                        (dampened, [])], ids=['ASGD', 'dampened'])
def test_optimizers_that_torch_compiles_wrongly_or_not_at_all(optim, why):
    "torch's error about the second one ends no fit: its step has a graph of its own"
    with reasons(*why): learn = two_layers(optim, Compile(what='step', backend='aot_eager'))
    assert close(learn, two_layers(optim), 1e-6)
