"""Real programs train with `Learner` as with the loops that their authors wrote

Five checks of each: the same weights, bit for bit; a stop in the middle of an epoch that another learner resumes; a
search of the learning rate that leaves no trace; two processes; the compiled model. What cannot be done is refused,
with the message that stands here.
"""
import importlib, pkgutil, random, re
from functools import cache
from types import SimpleNamespace

import pytest, torch, torch.nn.functional as F

import programs
from common import Counted, reasons, record, told
from trainer_nb.all import Checkpoint, Compile, LambdaHook

NAMES = sorted(o.name for o in pkgutil.iter_modules(programs.__path__))
IN_EXAMPLES = 'dcgan', 'fixmatch', 'gcn', 'nano_gpt', 'reinforce', 'sam'     # pages have their loops by hand

LAUNCH = {      # what two processes refuse, and why
    'word_lm': 'cannot be divided into samples', 'gcn': 'cannot be multiplied',
    'fixmatch': 'cannot be sharded.*: pass a single loader'}
READ_AGAIN = {'nano_gpt': 'train_dl is a Blocks.* read again'}     # what a resumed fit says; it is exact here

def each(*often):
    "These in each run, and the others in `make soak`"
    rare = [pytest.param(o, marks=pytest.mark.soak) for o in NAMES if o not in often]
    return pytest.mark.parametrize('name', [*often, *rare])

def program(name):
    try: return importlib.import_module(f'programs.{name}')
    except ImportError as e: pytest.skip(f'{name}: {e}')

def tensors(modules):
    both = torch.nn.ModuleList(modules if isinstance(modules, (list, tuple)) else [modules])
    return {k: v.detach().clone() for k, v in both.state_dict().items()}

def result(name, learn):
    p = program(name)
    return tensors(p.result(learn) if hasattr(p, 'result') else learn.model)

def start(name):
    random.seed(0)
    return program(name).learner(display=False)

@cache
def whole(name):
    "The fit without a stop: what it trained and recorded, and which of its batches are for training"
    learn, seen = start(name), []
    learn.fit(program(name).N_EPOCHS, hooks=[LambdaHook(after_step=lambda learn: seen.append(learn.training))])
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
    check_same(tensors(modules), learn.weights)
    for k, values in said.items():
        assert (learn.record['steps'].get(k) or learn.record['epochs'][k]) == pytest.approx(values, rel=2e-6), k

def check_resumed(name, n, folder, by):
    "A fit that stops after `n` batches, and goes on in another learner after other random numbers"
    n_epochs, learn, other = program(name).N_EPOCHS, start(name), start(name)
    learn.fit(n_epochs, hooks=[Counted(n), *[Checkpoint(folder)]*(by == 'fit')])
    assert learn.cancelled == 'stop'
    random.seed(5)
    torch.manual_seed(5)
    with torch.no_grad():
        for p in other.model.parameters(): p.add_(1)
    with told() as said:
        if by == 'fit': other.fit(n_epochs, hooks=[Checkpoint(folder)], resume=True)
        else:
            learn.save(folder/'state.pt')
            other.load(folder/'state.pt')
            other.resume()
    assert not [o for o in said if not re.search(READ_AGAIN.get(name, '^$'), o)], said
    check_same(whole(name).weights, result(name, other))
    assert record(other) == whole(name).record

@pytest.mark.parametrize('name', NAMES)
@pytest.mark.parametrize('anywhere', [False, pytest.param(True, marks=pytest.mark.soak)])
def test_a_stopped_fit_goes_on_in_another_learner(name, anywhere, tmp_path):
    "In the middle of the last epoch but one, and of the last one"
    seen = whole(name).seen
    trained = [i + 1 for i, training in enumerate(seen) if training]
    places = [(by, n) for by in ('fit', 'load') for n in range(1, len(seen))]
    for by, n in places if anywhere else [('fit', trained[len(trained)*2 // 3 - 1]), ('load', trained[-2])]:
        (folder := tmp_path/f'{by}{n}').mkdir()
        check_resumed(name, n, folder, by)

@each('dcgan', 'reinforce', 'word_lm')
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

@pytest.fixture
def quiet(monkeypatch):
    "What each process has of its own is the same in all: random numbers, and statistics of a batch"
    def normalized(self, x): return F.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias)
    monkeypatch.setattr(torch.nn.modules.batchnorm._BatchNorm, 'forward', normalized)
    monkeypatch.setattr(F, 'dropout', lambda x, *args, **kwargs: x)
    monkeypatch.setattr(torch, 'randn', lambda *size, **kwargs: torch.full(size, .5))
    monkeypatch.setattr(random, 'random', lambda: .3)

@each('dcgan', 'word_lm')
def test_two_processes_train_as_one_or_say_why_not(name, quiet):
    if name == 'encoder': pytest.skip('its attention draws in C++')
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

@each()
def test_the_compiled_model_is_the_plain_one(name):
    learn = start(name)
    torch._dynamo.reset()
    with reasons(): learn.fit(program(name).N_EPOCHS, hooks=[Compile(backend='aot_eager')])
    check_same(whole(name).weights, result(name, learn), 1e-5)
