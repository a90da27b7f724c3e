"What four documents ask of the API: calls and names of other trainers, the whole lifecycle, a clip, a call, a config"
import dataclasses, json, os, re, threading, types
from collections import namedtuple

import pytest, torch, torch.nn.functional as F
from torch import nn

from common import batches, make_learner, make_model, plain_model, problem, same, weights
from trainer_nb.all import (AMP, EMA, Accelerate, Compile, GradAccum, GradClip, GradNorm, Hook, LambdaHook, Learner,
                            NaNGuard)
from trainer_nb.loop.hooks import LIFECYCLE
from trainer_nb.loop.mistakes import EVENT_NAMES

X, Y = problem()

def sgd(params): return torch.optim.SGD(params, lr=.5)

def learner(*hooks, model=None, **kwargs):
    return make_learner(model, batches(), **{'optim': sgd, 'hooks': hooks, **kwargs})


# Calls of `fit` as other trainers take them

ARRAYS = dict(x=X.numpy(), y=Y.numpy())
CALLS = {       # what a user types → what the one sentence shows
    'tensors': ((X, Y), dict(epochs=5, batch_size=32, validation_data=(X, Y)),
                'Learner(model, (x, y), (x_valid, y_valid), bs=32, ...).fit(5)'),
    'arrays': (tuple(ARRAYS.values()), dict(epochs=2), 'Learner(model, (x, y), ...).fit(2)'),
    'by name': ((), dict(**ARRAYS, epochs=2, batch_size=8), 'Learner(model, (x, y), bs=8, ...).fit(2)'),
    'a split': ((X, Y), dict(validation_split=.2), 'Learner(model, *split((x, y), valid=0.2), ...).fit(n_epochs)'),
    'loaders': ((batches(),), dict(epochs=3, validation_data=batches()),
                'Learner(model, train_dl, valid_dl, ...).fit(3)'),
    'the model, too': ((make_model(), batches()), {}, 'Learner(model, train_dl, ...).fit(n_epochs)'),
    'other names': ((X, Y), dict(epochs=5, callbacks=[], verbose=0), 'here it is hooks=[...]'),
    'a rate': ((5, 1e-3), {}, 'fit(5, lr=0.001)'),
    'epochs only': ((), dict(epochs=5), 'n_epochs'),
}

@pytest.mark.parametrize('name', CALLS)
def test_a_call_of_fit_from_elsewhere(name):
    args, kwargs, shown = CALLS[name]
    learn = learner()
    before = weights(learn.model)
    with pytest.raises(TypeError) as e: learn.fit(*args, **kwargs)
    text = str(e.value)
    assert shown in text and '\n' not in text and len(text) < 320, text
    assert same(weights(learn.model), before) and not learn.history.n_steps


# Names of events of other trainers

OURS = {'begin_fit': 'before_fit', 'begin_epoch': 'before_epoch', 'on_epoch_end': 'after_epoch', 'on_log': 'history',
        'training_step': 'train_step', 'on_train_batch_end': 'after_step', 'iteration_completed': 'after_step',
        'on_grad_computed': 'after_backward', 'on_evaluate': 'after_valid'}

def test_events_of_other_trainers():
    for name, ours in EVENT_NAMES.items():
        assert name not in LIFECYCLE and OURS.get(name, '') in ours
        for make in (lambda: type('Mine', (Hook,), {name: lambda self, learn: None}),
                     lambda: LambdaHook(**{name: lambda learn: None})):
            with pytest.raises(TypeError) as e: make()
            assert f'`{name}`, which the loop never calls. Here it is {ours}' in str(e.value)
    assert OURS.keys() <= EVENT_NAMES.keys()
    own = {name: lambda self: None for name in ('on_click', 'setup', 'log')}
    learner(type('Mine', (Hook,), own)()).fit(1)        # names of one's own are free


# The lifecycle

POINTS = re.compile(rf'^\s*({"|".join(LIFECYCLE)})\b', re.M)

@pytest.mark.parametrize('kwargs, unreached', [({'valid_dl': batches()}, []), ({}, ['before_valid', 'after_valid'])])
def test_the_whole_lifecycle(kwargs, unreached):
    "Of a learner; the notebook of the table has the rest"
    learn = learner(GradClip(1.), **kwargs)
    assert POINTS.findall(str(learn.describe_hooks())) == ['before_fit', 'do_opt_step']
    assert POINTS.findall(str(learner().describe_hooks())) == list(LIFECYCLE)
    for _ in range(2):      # before and after a fit
        text = str(learn.describe_hooks(all=True))
        assert POINTS.findall(text) == list(LIFECYCLE) and 'the training pass opens' in text
        assert [o.split()[0] for o in text.splitlines() if '(never reached)' in o] == unreached
        learn.fit(1)


# Clipping by the norm of each tensor

def make_net(double=True): return plain_model().double() if double else plain_model()

def data(double=True): return [(x.double() if double else x, y) for x, y in zip(X.split(4), Y.split(4))]

def by_hand(bounds, double=True):
    "Plain PyTorch: t*bound/max(norm, bound), as TensorFlow computes it; `bounds`: of each parameter, or None"
    model = make_net(double)
    opt = sgd(model.parameters())
    for x, y in data(double):
        F.cross_entropy(model(x), y).backward()
        for p, bound in zip(model.parameters(), bounds, strict=True):
            if bound is not None: p.grad = p.grad*bound/max(p.grad.norm().item(), bound)
        opt.step()
        opt.zero_grad()
    return weights(model)

def close(a, b, atol=1e-12): return all(torch.allclose(v, w, rtol=0, atol=atol) for v, w in zip(a, b, strict=True))

def clipped(*hooks, double=True, optim=lambda net: sgd(net.parameters())):
    net = make_net(double)
    learn = make_learner(net, data(double), hooks=hooks, optim=optim(net))
    learn.fit(1)
    return learn

def test_norm_per_tensor_equals_a_plain_loop():
    learn = clipped(GradClip(norm_per_tensor=.1), NaNGuard(), norms := GradNorm())
    assert close(weights(learn.model), by_hand([.1]*4))
    for other in clipped(GradClip(.1)), clipped(): assert not close(weights(learn.model), weights(other.model))
    assert len(learn.history.steps['grad_norm']) == 6 and norms.norms[''] > .1      # of the gradients before
    def zero(learn): learn.model[0].weight.grad.zero_()
    learn = clipped(GradClip(norm_per_tensor=.1), LambdaHook(after_backward=zero))
    assert torch.equal(learn.model[0].weight, make_net()[0].weight) and not weights(learn.model)[2].isnan().any()
    # of one optimizer
    learn = clipped(GradClip(norm_per_tensor={'b': .05}),
                    optim=lambda net: {'a': sgd(net[0].parameters()), 'b': sgd(net[2].parameters())})
    assert close(weights(learn.model), by_hand([None, None, .05, .05]))
    with pytest.raises(ValueError, match="GradClip names the optimizer 'c'"):
        learn.fit(1, hooks=[type('Other', (GradClip,), {})(norm_per_tensor={'c': .05})])

def test_norm_per_tensor_after_unscaling():
    "The bound is below some norms and above others, which would all exceed it if they were still scaled"
    def scaler(device): return torch.amp.GradScaler(device, init_scale=2.**8)
    learn, scaled = (clipped(amp, GradClip(norm_per_tensor=.2), double=False)
                     for amp in (AMP('bf16'), AMP('fp16', scaler=scaler)))
    assert scaled.state.optimizer_step == 6 and close(weights(learn.model), weights(scaled.model), .02)
    assert close(weights(scaled.model), by_hand([.2]*4, double=False), 2e-3)
    assert not close(weights(scaled.model), by_hand([1e-3]*4, double=False), .05)

def test_the_host_reads_no_norm():
    from test_no_sync import counted
    found = []
    for n in 2, 8:
        learn = make_learner(make_net(False), data(False)[:3]*n, optim=sgd, hooks=[GradClip(norm_per_tensor=.1)])
        with counted() as seen: learn.fit(1)
        found.append(dict(seen))
    assert found[0] == found[1]         # nothing is read in a step

def test_norm_per_tensor_of_ranks():
    "Two real processes, each with all parameters"
    from test_distributed import check_equal, close as close_to, learner as whole
    def make(*hooks): return whole('plain', *hooks, GradClip(norm_per_tensor=.02), GradAccum(2))
    alone, learn = make(), make(Accelerate(cpu=True))
    alone.fit(1)
    assert not all(close_to(v, w) for v, w in zip(weights(alone.model), weights(whole('plain').model)))
    learn.launch(2, 1)
    check_equal(alone, learn)


# `learn(x)`

class Nested(nn.Module):
    "Takes a nesting by position and by name, and returns one"
    def __init__(self):
        super().__init__()
        self.lin, self.drop = nn.Linear(4, 3), nn.Dropout(.5)
    def forward(self, xs, extra=None):
        out = self.drop(self.lin(xs['a']) + self.lin(xs['b'][0]))
        return {'out': out if extra is None else out + extra, 'modes': [self.training, torch.is_grad_enabled()]}

def state_of(learn):
    "What a call must leave as it was"
    modes = [m.training for m in learn.model.modules()]
    return learn.batch, learn.pred, learn.loss, learn.training, modes, learn.history.n_steps, torch.is_grad_enabled()

def test_a_call_evaluates_the_model():
    learn = learner()
    learn.model[0].eval()       # a mode of the user's own
    before = state_of(learn)
    expected = learn.predict((X,))
    assert torch.equal(learn(X), expected) and not learn(X).requires_grad
    assert torch.equal(learn(X.numpy()), expected) and torch.equal(learn(X.numpy().astype('float64')), expected)
    with pytest.raises(RuntimeError): learn(torch.ones(2, 5))
    assert state_of(learn) == before
    learn.fit(1)

def test_nested_inputs():
    learn = make_learner(Nested(), train_step=lambda batch, learn: {'loss': learn.model(batch)['out'].mean()})
    res = learn({'a': X, 'b': [X.numpy()]}, extra=torch.ones(3))
    assert res['modes'] == [False, False] and res['out'].shape == (24, 3)
    Pair = namedtuple('Pair', 'a b')
    learn = make_learner(type('Of', (nn.Linear,), {'forward': lambda self, p: F.linear(p.a + p.b, self.weight)})(4, 3))
    assert learn(Pair(X, X)).shape == (24, 3)

def test_a_call_in_a_fit_changes_nothing():
    "In the thread of the fit; in another one it is refused"
    seen, errors, runs = [], [], []
    def call(learn):
        before = state_of(learn)
        seen.append(learn(X))
        assert state_of(learn) == before
    def fails(learn):
        try: learn(X)
        except RuntimeError as e: errors.append(str(e))
    def other(learn):
        t = threading.Thread(target=fails, args=[learn])
        t.start()
        t.join()
    for hooks in [], [LambdaHook(after_step=call, before_step=call, after_epoch=call, after_loss=call),
                      LambdaHook(after_step=other)]:
        torch.manual_seed(2)
        runs.append(learner(*hooks, valid_dl=batches()))
        runs[-1].fit(2)
    assert same(*(weights(o.model) for o in runs)) and len(seen) > 20
    assert runs[0].history.steps == runs[1].history.steps and torch.equal(seen[-1], runs[1](X))
    assert len(errors) == 20 and all('in another thread' in o for o in errors)

@pytest.mark.parametrize('hook', [lambda: EMA(.5), lambda: AMP('bf16'), lambda: Compile(backend='eager')],
                         ids=['EMA', 'AMP', 'Compile'])
def test_a_call_sees_what_predict_sees(hook):
    found = []
    learn = learner(hook(), LambdaHook(after_epoch=lambda learn: found.append((learn(X), learn.predict((X,))))))
    learn.fit(2)
    found.append((learn(X), learn.predict((X,))))
    assert len(found) == 3 and all(torch.equal(a, b) for a, b in found)


# The config

PLAIN = {'width': 8, 'name': 'a', 'parts': [1, 2]}
Config = dataclasses.make_dataclass('Config', PLAIN)

def test_the_config_reaches_exports_and_runs(tmp_path):
    from trainer_nb.runs.program import settings
    for i, config in enumerate([PLAIN, Config(8, 'a', (1, 2)), types.SimpleNamespace(**PLAIN)]):
        learn = Learner(make_model(), (X, Y), (X, Y), loss_fn=F.cross_entropy, bs=8, display=False, config=config)
        learn.export(tmp_path/f'{i}')
        assert json.loads((tmp_path/f'{i}'/'config.json').read_text())['config'] == PLAIN
        assert settings(learn, (), {})['config'] == PLAIN, i
    run = learn.start(2, folder=tmp_path/'run')
    run.wait(300)
    info = run.folder.read('run.json')
    assert info['settings']['config'] == PLAIN and info['environment']['device'] == 'cpu'
    assert info['data']['train'] == info['data']['valid']
    text = json.dumps({k: info[k] for k in ('settings', 'data', 'versions', 'environment')})
    for word in 'width', 'name', 'float32', 'torch': assert word in text
    assert str(tmp_path) not in text and os.uname().nodename not in text
