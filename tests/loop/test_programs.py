"""Real programs train with `Learner` as with the loops that their authors wrote

Five checks of each: the same weights, bit for bit; a stop in the middle of an epoch that another learner resumes; a
search of the learning rate that leaves no trace; two processes; the compiled model. What cannot be done is refused,
with the message that stands here.
"""
import importlib, pkgutil, random, re
from functools import cache
from itertools import product
from shutil import which
from types import SimpleNamespace

import pytest, torch, torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

import programs
from common import Counted, reasons, record, told
from trainer_nb.all import Checkpoint, Compile, LambdaHook

NAMES = sorted(o.name for o in pkgutil.iter_modules(programs.__path__))

LAUNCH = {      # what two processes refuse, and why
    'word_lm': 'a tensor of shape .20,. cannot be divided into samples: the batch has 5',
    'gcn': 'cannot be multiplied',
    'fixmatch': 'Loaders.* cannot be sharded over several processes: pass a single loader',
}
READ_AGAIN = {  # what a resumed fit says, and which loader it reads again: it is exact here
    'nano_gpt': 'train_dl is a Blocks, whose first .* batches are read again',
}
OFTEN_LAUNCHED, OFTEN_COMPILED = ('dcgan', 'graphs', 'word_lm'), ()     # others in `make soak`

def parts(*often):
    rare = [pytest.param(o, marks=pytest.mark.soak) for o in NAMES if o not in often]
    return pytest.mark.parametrize('name', [*often, *rare])

each = pytest.mark.parametrize('name', NAMES)
IN_EXAMPLES = 'fixmatch', 'gcn', 'nano_gpt', 'reinforce', 'sam'     # pages of nbs/examples have their loops by hand

def program(name):
    try: return importlib.import_module(f'programs.{name}')
    except ImportError as e: pytest.skip(f'{name}: {e}')

def tensors(modules):
    both = torch.nn.ModuleList(modules)
    return {k: v.detach().clone() for k, v in both.state_dict().items()}

def listed(o): return list(o) if isinstance(o, (list, tuple)) else [o]

def result(name, learn):
    p = program(name)
    return tensors(listed(p.result(learn) if hasattr(p, 'result') else learn.model))

def start(name, **kwargs):
    random.seed(0)
    return program(name).learner(display=False, **kwargs)

@cache
def whole(name):
    "The fit without a stop: what it trained and recorded, and which of its batches are for training"
    learn, seen = start(name), []
    look = LambdaHook(after_step=lambda learn: seen.append(learn.training))
    learn.fit(program(name).N_EPOCHS, hooks=[look])
    return SimpleNamespace(weights=result(name, learn), record=record(learn), seen=seen)

def check_same(a, b, tol=0.):
    assert a.keys() == b.keys()
    far = {k: ((v.double() - b[k])/(1 + v.double().abs())).abs().max().item() for k, v in a.items()}
    wrong = {k: v for k, v in far.items() if not v <= tol}
    assert not wrong, wrong

@pytest.mark.parametrize('name', [o for o in NAMES if o not in IN_EXAMPLES])
def test_weights_are_those_of_the_plain_loop(name):
    "And what it tells, too"
    random.seed(0)
    modules, said = program(name).plain()
    learn = whole(name)
    check_same(tensors(listed(modules)), learn.weights)
    for k, values in said.items():
        assert (learn.record['steps'].get(k) or learn.record['epochs'][k]) == pytest.approx(values, rel=2e-6), k

def resumed(name, n, folder, by):
    "A fit that stops after `n` batches, and goes on in another learner after other random numbers"
    n_epochs, learn = program(name).N_EPOCHS, start(name)
    learn.fit(n_epochs, hooks=[Counted(n), *([Checkpoint(folder)] if by == 'fit' else [])])
    assert learn.cancelled == 'stop'
    if by == 'load': learn.save(folder/'state.pt')
    other = start(name)
    random.seed(5)
    torch.manual_seed(5)
    with torch.no_grad():
        for p in other.model.parameters(): p.add_(1)
    with told() as said:
        if by == 'fit': other.fit(n_epochs, hooks=[Checkpoint(folder)], resume=True)
        else:
            other.load(folder/'state.pt')
            other.resume()
    unexpected = [o for o in said if not re.search(READ_AGAIN.get(name, '^$'), o)]
    assert not unexpected, unexpected
    return other

@each
@pytest.mark.parametrize('anywhere', [False, pytest.param(True, marks=pytest.mark.soak)])
def test_a_stopped_fit_goes_on_in_another_learner(name, anywhere, tmp_path):
    "In the middle of the last epoch but one, or of the last one"
    seen = whole(name).seen
    trained = [i + 1 for i, training in enumerate(seen) if training]
    places = [('fit', trained[len(trained)*2 // 3 - 1]), ('load', trained[-2])]
    for by, n in product(['fit', 'load'], range(1, len(seen))) if anywhere else places:
        (folder := tmp_path/f'{by}{n}').mkdir()
        other = resumed(name, n, folder, by)
        check_same(whole(name).weights, result(name, other))
        assert record(other) == whole(name).record

@each
def test_lr_find_leaves_no_trace(name):
    learn = start(name)
    before = torch.get_rng_state(), random.getstate(), result(name, learn)
    for opt in learn.opts: learn.lr_find(n_steps=8, opt=opt or None)
    after = torch.get_rng_state(), random.getstate(), result(name, learn)
    assert torch.equal(before[0], after[0]) and before[1] == after[1]
    check_same(before[2], after[2])
    learn.fit(program(name).N_EPOCHS)
    check_same(whole(name).weights, result(name, learn))
    assert record(learn) == whole(name).record

class Quiet(TorchDispatchMode):
    "Noise and dropout are constant, and draw nothing; weights, data and orders are as ever"
    noise = re.compile('dropout|bernoulli|multinomial|randn$|rand.*_like|rnn|lstm|gru')
    off = {'dropout_p': 0., 'dropout': 0., 'train': False}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name, kwargs = func._schema.name.split('::')[-1].rstrip('_'), kwargs or {}
        if not self.noise.search(name) or kwargs.get('generator') is not None: return func(*args, **kwargs)
        params, before = func._schema.arguments, torch.get_rng_state()
        names = [o.name for o in params]
        off = self.off.keys() & ({'dropout_p', 'dropout'} if re.search('rnn|lstm|gru', name) else names)
        args = [self.off[k] if k in off else o for k, o in zip(names, args)]
        res = func(*args, **{k: self.off[k] if k in off else o for k, o in kwargs.items()})
        torch.set_rng_state(before)
        if off & {*names} or not isinstance(res, torch.Tensor): return res
        given = {**{o.name: o.default_value for o in params}, **dict(zip(names, args)), **kwargs}
        if name == 'bernoulli':
            p = torch.as_tensor(given.get('p', given['self']))
            return res.copy_(p if res.is_floating_point() else p >= .5)
        if name != 'multinomial': return res.fill_(.5)
        return res.copy_(given['self'].topk(given['num_samples']).indices)

@pytest.fixture
def quiet(monkeypatch):
    "What each process has of its own is the same in all: random numbers, and statistics of a batch"
    def normalized(self, x):
        return F.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps)
    monkeypatch.setattr(torch.nn.modules.batchnorm._BatchNorm, 'forward', normalized)
    monkeypatch.setattr(random, 'random', lambda: .3)
    with Quiet(): yield

@parts(*OFTEN_LAUNCHED)
def test_two_processes_train_as_one_or_say_why_not(name, quiet):
    learn, n_epochs = start(name), program(name).N_EPOCHS
    before = result(name, learn)
    if name in LAUNCH:
        with pytest.raises((ValueError, RuntimeError), match='(?s)' + LAUNCH[name]): learn.launch(2, n_epochs)
        return check_same(before, result(name, learn))
    learn.launch(2, n_epochs)
    one = start(name)
    one.fit(n_epochs)
    after = result(name, learn)
    check_same(result(name, one), after, 1e-5)
    assert len(learn.history) == n_epochs and not all(torch.equal(after[k], before[k]) for k in before)

@parts(*OFTEN_COMPILED)
def test_the_compiled_model_is_the_plain_one(name):
    backend = 'inductor' if name == 'ddpm' and (which('g++') or which('clang++')) else 'aot_eager'
    learn, hooks = start(name), [Compile(backend=backend)]
    torch._dynamo.reset()
    with reasons(): learn.fit(program(name).N_EPOCHS, hooks=hooks)
    check_same(whole(name).weights, result(name, learn), 1e-5)
