"What four documents ask of the API: calls and names of other trainers, the whole lifecycle, a clip, a call, a config"
import dataclasses, json, os, re, threading, types

import pytest, torch, torch.nn.functional as F
from torch import nn

from common import batches, make_learner, make_model, plain_model, problem, same, weights
from trainer_nb.all import AMP, EMA, Compile, GradClip, GradNorm, Hook, LambdaHook, Learner
from trainer_nb.loop.hooks import LIFECYCLE

X, Y = problem()

def sgd(params): return torch.optim.SGD(params, lr=.5)

def learner(*hooks, model=None, **kwargs):
    return make_learner(model, batches(), **{'optim': sgd, 'hooks': hooks, **kwargs})


# Calls of `fit` as other trainers take them

CALLS = {       # what a user types → what the one sentence shows
    'tensors': ((X, Y), dict(epochs=5, batch_size=32, validation_data=(X, Y)),
                'Learner(model, (x, y), (x_valid, y_valid), bs=32, ...).fit(5)'),
    'arrays by name': ((), dict(x=X.numpy(), y=Y.numpy(), epochs=2), 'Learner(model, (x, y), ...).fit(2)'),
    'a split': ((X, Y), dict(validation_split=.2), 'Learner(model, *split((x, y), valid=0.2), ...).fit(n_epochs)'),
    'loaders': ((batches(),), dict(epochs=3, validation_data=batches()),
                'Learner(model, train_dl, valid_dl, ...).fit(3)'),
    'the model, too': ((make_model(), batches()), {}, 'Learner(model, train_dl, ...).fit(n_epochs)'),
    'other names': ((X, Y), dict(epochs=5, callbacks=[], verbose=0), 'here it is hooks=[...]'),
    'a rate': ((5, 1e-3), {}, 'fit(5, lr=0.001)'),
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


# Names of events of other trainers, and ours

OURS = {'begin_fit': 'before_fit', 'on_epoch_end': 'after_epoch', 'on_log': 'history', 'training_step': 'train_step',
        'iteration_completed': 'after_step', 'on_grad_computed': 'after_backward'}

def test_events_of_other_trainers():
    for name, ours in OURS.items():
        for make in (lambda: type('Mine', (Hook,), {name: lambda self, learn: None}),
                     lambda: LambdaHook(**{name: lambda learn: None})):
            with pytest.raises(TypeError, match=rf'`{name}`, which the loop never calls\. .*{ours}'): make()
    own = {name: lambda self: None for name in ('on_click', 'setup', 'log')}
    learner(type('Mine', (Hook,), own)()).fit(1)        # names of one's own are free

@pytest.mark.parametrize('kwargs, unreached', [({'valid_dl': batches()}, []), ({}, ['before_valid', 'after_valid'])])
def test_the_whole_lifecycle(kwargs, unreached):
    "Of a learner; the notebook of the table has the rest"
    learn = learner(GradClip(1.), **kwargs)
    for _ in range(2):      # before and after a fit
        text = str(learn.describe_hooks(all=True))
        assert re.findall(rf'^\s*({"|".join(LIFECYCLE)})\b', text, re.M) == list(LIFECYCLE)
        assert [o.split()[0] for o in text.splitlines() if '(never reached)' in o] == unreached
        learn.fit(1)


# Clipping by the norm of each tensor; the notebook compares it with a plain loop

def clipped(*hooks, model=None):
    learn = learner(*hooks, model=model or plain_model())
    learn.fit(1)
    return learn

def by_hand(bound):
    "Plain PyTorch: t*bound/max(norm, bound), as TensorFlow computes it"
    model = plain_model()
    opt = sgd(model.parameters())
    for x, y in batches():
        F.cross_entropy(model(x), y).backward()
        for p in model.parameters(): p.grad *= bound/max(p.grad.norm().item(), bound)
        opt.step()
        opt.zero_grad()
    return weights(model)

def close(a, b, atol): return all(torch.allclose(v, w, rtol=0, atol=atol) for v, w in zip(a, b, strict=True))

def test_norm_per_tensor_clips_what_was_unscaled():
    "The bound is below some norms and above others, which would all exceed it if they were still scaled"
    def scaler(device): return torch.amp.GradScaler(device, init_scale=2.**8)
    learn, plain = clipped(AMP('fp16', scaler=scaler), GradClip(norm_per_tensor=.2), norms := GradNorm()), by_hand(.2)
    assert learn.state.optimizer_step == 5 and close(weights(learn.model), plain, 2e-3)
    assert not close(by_hand(1e-3), plain, .05) and norms.norms[''] > .2      # of the gradients before
    def zero(learn): learn.model[0].weight.grad.zero_()
    learn = clipped(GradClip(norm_per_tensor=.1), LambdaHook(after_backward=zero))
    assert torch.equal(learn.model[0].weight, plain_model()[0].weight) and not weights(learn.model)[2].isnan().any()

def test_the_host_reads_no_norm():
    from test_no_sync import counted
    found = []
    for n in 1, 4:
        learn = make_learner(plain_model(), batches()*n, optim=sgd, hooks=[GradClip(norm_per_tensor=.1)])
        with counted() as seen: learn.fit(1)
        found.append(dict(seen))
    assert found[0] == found[1]         # nothing is read in a step


# `learn(x)`

class Nested(nn.Module):
    "Takes a nesting by position and by name, and returns one"
    def __init__(self):
        super().__init__()
        self.lin, self.drop = nn.Linear(4, 3), nn.Dropout(.5)
    def forward(self, xs, extra=None):
        out = self.drop(self.lin(xs['a']) + self.lin(xs['b'][0])) + extra
        return {'out': out, 'modes': [self.training, torch.is_grad_enabled()]}

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
    assert torch.equal(learn(X.numpy().astype('float64')), expected)
    with pytest.raises(RuntimeError): learn(torch.ones(2, 5))
    assert state_of(learn) == before
    learn.fit(1)
    res = learner(model=Nested())({'a': X, 'b': [X.numpy()]}, extra=torch.ones(3))
    assert res['modes'] == [False, False] and res['out'].shape == (24, 3)

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
    learn.fit(1)
    found.append((learn(X), learn.predict((X,))))
    assert all(torch.equal(a, b) for a, b in found)


# The config

PLAIN = {'width': 8, 'name': 'a', 'parts': [1, 2]}
Config = dataclasses.make_dataclass('Config', PLAIN)

@pytest.mark.parametrize('config', [PLAIN, Config(8, 'a', (1, 2)), types.SimpleNamespace(**PLAIN)],
                         ids=['dict', 'dataclass', 'namespace'])
def test_the_config_reaches_exports_and_runs(config, tmp_path):
    "And what a run writes names no machine"
    from trainer_nb.runs.program import info_of
    learn = Learner(make_model(), (X, Y), (X, Y), loss_fn=F.cross_entropy, bs=8, display=False, config=config)
    learn.export(tmp_path)
    assert json.loads((tmp_path/'config.json').read_text())['config'] == PLAIN
    info = info_of(learn, (), {})
    assert info['settings']['config'] == PLAIN and info['environment']['device'] == 'cpu'
    assert info['data']['train'] == info['data']['valid'] and os.uname().nodename not in json.dumps(info)
