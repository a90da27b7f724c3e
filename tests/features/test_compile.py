"A compiled model gives the results of the plain one, compiles a few times only, and reports what is not compiled"
from functools import partial
from shutil import which

import pytest, torch, torch.nn.functional as F
from torch import nn

from common import batches, make_learner, reasons, record, same, sgd, weights
from trainer_nb.all import (
    AMP, Compile, GradAccum, GradClip, Hook, LambdaHook, LRScheduler, Metric, OneCycle, accuracy
)

def small():
    "BatchNorm, dropout, and no parameter whose gradient is rounding only"
    torch.manual_seed(0)
    body = nn.Linear(4, 8, bias=False), nn.BatchNorm1d(8), nn.Tanh()
    return nn.Sequential(*body, nn.Dropout(.2), nn.Linear(8, 3))

def adamw(p): return torch.optim.AdamW(p, .01)
def fused(p): return torch.optim.AdamW(p, .01, fused=True)
def lbfgs(p): return torch.optim.LBFGS(p, .1, max_iter=3)

def slower(opt): return torch.optim.lr_scheduler.ExponentialLR(opt, .9)

def run(hooks=(), n=2, m=None, **kwargs):
    torch._dynamo.reset()
    options = {'train_dl': batches(), 'valid_dl': batches(), 'optim': adamw, **kwargs}
    learn = make_learner(small() if m is None else m, **options, hooks=hooks)
    torch.manual_seed(1)
    learn.fit(n)
    return learn

def check_close(a, b, tol=1e-5):
    for x, y in zip(weights(a.model), weights(b.model), strict=True): assert torch.allclose(x, y, rtol=0, atol=tol)
    for x, y in (a.history.steps, b.history.steps), (a.history.epochs, b.history.epochs):
        for k in x.keys() - {'time_s'}: assert x[k] == pytest.approx(y[k], abs=tol), k

class Graphs(list):
    "A backend that runs graphs as they are, and lists the names of what they call"
    def __call__(self, graph, inputs):
        self.append(' '.join(str(o.target) for o in graph.graph.nodes))
        return graph.forward
    def count(self, *names): return sum(all(o in graph for o in names) for graph in self)

class Shown(Hook):
    provides = ('display',)
    def __init__(self): self.texts = []
    def annotate(self, learn, *texts): self.texts.append(texts)

@pytest.mark.parametrize('backend', ['aot_eager', pytest.param('inductor', marks=[
    pytest.mark.soak, pytest.mark.skipif(not (which('g++') or which('clang++')), reason='needs a C++ compiler')])])
def test_equals_the_plain_step(backend):
    "Dropout draws the same numbers; the model does not change, neither after the fit nor in it; the display tells"
    seen, shown = [], Shown()
    def state(model): return type(model), [*model.state_dict()], model.forward, model._compiled_call_impl
    look = LambdaHook(after_step=lambda learn: seen.append(state(learn.own_model)))
    model, kwargs = small(), {'metrics': [accuracy], 'optim': fused}
    before = state(model)
    with reasons(): learn = run([Compile(backend=backend), shown, look], m=model, **kwargs)
    check_close(learn, run(**kwargs))
    assert len(seen) == 20 and all(o == before for o in [*seen, state(model)]) and learn.model is model
    assert [o[0] for o in shown.texts] == ['compiling…', '']*2      # for training and validation, each once

class Named(nn.Module):
    "Returns a dict"
    def __init__(self):
        super().__init__()
        self.body = small()
    def forward(self, x, scale=None): return {'logits': self.body(x), 'scale': scale}

def ignoring(out, targ): return F.cross_entropy(out['logits'], targ, ignore_index=0)

NAMED = [{'x': x, 'scale': torch.ones(len(x)), 'labels': y} for x, y in batches()]

@pytest.mark.parametrize('make', [
    lambda: {'loss_fn': nn.CrossEntropyLoss(weight=torch.tensor([1., 2., 3.]), ignore_index=1)},
    lambda: {'loss_fn': partial(F.cross_entropy, reduction='sum')},
    lambda: {'m': Named(), 'loss_fn': ignoring, 'train_dl': NAMED, 'valid_dl': NAMED,
             'metrics': [Metric(accuracy, pred='logits')]},
    lambda: {'hooks': [GradAccum(2), AMP(), GradClip(1.)]},
    lambda: {'optim': lbfgs},
], ids=['weights', 'sum', 'named', 'hooks', 'closure'])
def test_losses_and_their_weights(make):
    def fit(*hooks):
        options = {'m': small(), 'optim': sgd, 'hooks': [], **make()}
        return run([*hooks, *options.pop('hooks')], **options)
    graphs = Graphs()
    with reasons(): learn = fit(Compile(backend=graphs))
    assert graphs.count('cross_entropy') == len(graphs) > 0
    check_close(learn, fit(), 2e-2 if learn.provider('precision') else 1e-5)

# What a hook or a step of the user's sees

class Penalty(Hook):
    def after_loss(self, learn): learn.loss = learn.loss + .1*learn.pred.square().mean()

def test_hooks_between_model_loss_and_backward_work():
    "A prediction that no hook may need has no graph, which would cost memory and time"
    def halve(learn): learn.pred = learn.pred/2
    graphs, graphed = Graphs(), []
    learn = run([Compile(backend=graphs), LambdaHook(after_pred=halve)])
    assert len(graphs) and not graphs.count('cross_entropy')
    check_close(learn, run([LambdaHook(after_pred=halve)]))
    check_close(run([Compile(backend='aot_eager'), Penalty()]), run([Penalty()]))
    run([Compile(backend='eager'), LambdaHook(after_step=lambda learn: graphed.append(learn.pred.requires_grad))])
    assert not any(graphed)

def two_steps(batch, learn):
    x, y = batch
    yield 'a', F.cross_entropy(learn.model.a(x), y)
    yield 'b', F.cross_entropy(learn.model['b'](x), y)

def test_a_step_of_the_users_own_gets_a_compiled_model():
    def fit(*hooks):
        m = nn.ModuleDict({'a': small(), 'b': small()})
        optim = {k: sgd(m[k].parameters()) for k in 'ab'}
        return run(hooks, m=m, valid_dl=None, train_step=two_steps, loss_fn=None, optim=optim)
    graphs = Graphs()
    with reasons(): learn = fit(Compile(backend=graphs))
    assert graphs.count('linear') and not graphs.count('cross_entropy')
    check_close(learn, fit())

# What cannot be compiled

def broken(gm, inputs): raise RuntimeError('no compiler here')

def test_what_is_not_compiled_is_reported():
    "A backend that fails: all is as without it; a step that does not call the model"
    with reasons('forward of Sequential and its loss'): learn = run([Compile(backend=broken)])
    assert same(weights(learn.model), weights((plain := run()).model)) and record(learn) == record(plain)
    model = small()
    def step(batch): return {'loss': F.cross_entropy(model(batch[0]), batch[1])}
    with reasons('compiled nothing'): run([Compile(backend='eager')], m=model, loss_fn=None, train_step=step)

# The optimizer's step

def test_a_compiled_optimizer():
    "A schedule changes no code, and rates stay numbers; SGD makes its momentum in the first step"
    def hooks(): return [LRScheduler(slower), GradClip(1.)]
    graphs = Graphs()
    with reasons(): learn = run([*hooks(), Compile(backend=graphs, optimizer=True)], optim=sgd)
    assert len(graphs) - graphs.count('cross_entropy') == 2
    check_close(learn, run(hooks(), optim=sgd), 2e-6)
    assert all(type(g['lr']) is float for g in learn.opt.param_groups)

@pytest.mark.parametrize('why, optim, make', [
    ('fused', fused, list), ('closure', lbfgs, list), ('momentum', adamw, lambda: [OneCycle(.1)])])
def test_an_optimizer_that_stays_plain(why, optim, make):
    with reasons(f'step of .* because of .*{why}'):
        learn = run([Compile(backend='eager', optimizer=True), *make()], optim=optim)
    check_close(learn, run(make(), optim=optim), 2e-6)
