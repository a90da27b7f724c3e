"A search for a learning rate changes nothing, steps where it says, and suggests what fastai's own rules suggest"
import collections, functools, itertools, json, math, random, signal, threading, types
from pathlib import Path

import numpy as np, pytest, torch, torch.nn.functional as F
from torch import nn
from torch.optim import SGD, AdamW
from torch.utils.data import DataLoader, Dataset, Subset

from common import (
    Counted, Scaled, Unsized, batches, digest, make_learner, make_model, plain_loop, problem, same, shuffled, weights
)
from trainer_nb.draw import GREY, smooth
from trainer_nb.data.loaders import TensorLoader
from trainer_nb.learner import Learner
from trainer_nb.loop.hooks import CancelEpoch, CancelFit, CancelStep, Hook, LambdaHook, MainProcessHook
from trainer_nb.show.lr_find import RULES, LRCurve, trailing_average
from trainer_nb.loop.metrics import accuracy
from trainer_nb.features.gradients import AMP, GradAccum, GradClip
from trainer_nb.features.schedules import LRScheduler, OneCycle
from trainer_nb.features.weights import EMA


# A look at everything that can be reached from some objects. None of it is the library's code.

ATOMS = (type(None), bool, int, str, bytes, complex, type, torch.dtype, torch.device, torch.layout)
OPAQUE = (types.FunctionType, types.BuiltinFunctionType, types.ModuleType, types.GeneratorType, types.CodeType,
          type(threading.Lock()), type(threading.RLock()))

def raw(t): return t.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() if t.numel() else b''

def look(o, seen):
    "`o` as something that `==` compares, bit for bit; `seen` keeps what was met, and so alive"
    if isinstance(o, ATOMS): return o
    if isinstance(o, float): return o.hex()
    if id(o) in seen: return 'seen', seen[id(o)][0]
    seen[id(o)] = len(seen), o
    again = lambda x: look(x, seen)
    if isinstance(o, torch.Tensor):
        grad = again(o.grad) if o.is_leaf else None
        return id(o), str(o.dtype), tuple(o.shape), o.requires_grad, raw(o), grad, again(vars(o))
    if isinstance(o, np.ndarray): return 'array', o.shape, o.tobytes()
    if isinstance(o, torch.Generator): return 'generator', raw(o.get_state())
    if isinstance(o, random.Random): return 'random', o.getstate()
    if isinstance(o, np.random.Generator): return 'random', repr(o.bit_generator.state)
    if isinstance(o, OPAQUE) or type(o).__name__.endswith('DataLoaderIter'): return type(o).__name__, id(o)
    if isinstance(o, types.MethodType): return o.__func__.__qualname__, again(o.__self__)
    if isinstance(o, functools.partial): return 'partial', again(o.func), again(o.args), again(o.keywords)
    kind = type(o).__name__, id(o) if isinstance(o, (nn.Module, Hook, torch.optim.Optimizer)) else 0
    parts = [[again(k), again(v)] for k, v in o.items()] if isinstance(o, dict) else []
    if isinstance(o, (list, tuple, collections.deque)): parts = [again(v) for v in o]
    if isinstance(o, (set, frozenset)): parts = sorted(map(repr, o))
    slots = itertools.chain.from_iterable(getattr(c, '__slots__', ()) for c in type(o).__mro__)
    parts += [[k, again(getattr(o, k))] for k in [*slots, *getattr(o, '__dict__', ())] if hasattr(o, k)]
    return kind, parts

def snapshot(learn):
    files = [(str(p), p.read_bytes()) for p in sorted(Path().rglob('*')) if p.is_file()]
    counts = [(r.point, r.hook, r.calls) for r in learn.describe_hooks().rows]
    return {'learn': look(learn, {}), 'counts': counts, 'files': files, 'python': random.getstate(),
            'numpy': look(np.random.get_state(legacy=False), {}), 'torch': raw(torch.get_rng_state())}

def check_same(before, after, what=''):
    for k in before: assert before[k] == after[k], f'{what}: {k} changed'


# Learners of many kinds

class Drawing:
    "State: a count, and generators of three kinds"
    def __init__(self):
        self.n = 0
        self.gen, self.np, self.rand = torch.Generator().manual_seed(1), np.random.default_rng(1), random.Random(3)
    def noise(self):
        self.n += 1
        return self.n*.1*(torch.rand((), generator=self.gen) + self.np.normal() + self.rand.random())

class Moving(Drawing):
    "And tensors, set anew and changed in place"
    def __init__(self):
        super().__init__()
        self.now, self.total = torch.zeros(4), torch.zeros(4)
    def move(self, x):
        self.now = x.detach().mean(0)
        self.total += self.now
        return x + self.now + .1*self.total*self.noise()

class Odd(nn.Module, Moving):
    "Buffers of both kinds, other attributes, a shared parameter, parts in other modes, and dropout"
    def __init__(self):
        super().__init__()
        Moving.__init__(self)
        self.a, self.norm, self.b, self.c = nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 8), nn.Linear(8, 3)
        self.d = nn.Linear(8, 8)
        self.d.weight = self.b.weight
        self.register_buffer('kept', torch.zeros(()))
        self.register_buffer('hidden', torch.zeros(2), persistent=False)
        self.name = None
    def forward(self, x):
        if self.training:
            x = self.move(x)
            self.name = f'after {self.n}'
            self.hidden += 1
            self.kept += random.random() + np.random.rand()
            self.norm.weight.requires_grad_(self.n % 3 > 0)
        return self.c(F.dropout(self.d(torch.tanh(self.b(self.norm(self.a(x))))), .3, self.training))

class Logger(MainProcessHook):
    "Writes to a file in every event"
    def write(self, learn):
        with open('log.txt', 'a') as f: f.write('x')
    before_fit = before_step = after_loss = after_step = after_epoch = after_fit = write

class Stateful(Drawing):
    "A loader with hidden state"
    def __iter__(self):
        for x, y in self.rand.sample(batches(), 5): yield x + self.noise(), y

class Noisy(Drawing, Dataset):
    "Augments with generators of its own"
    data = problem()
    def __len__(self): return 24
    def __getitem__(self, i): return self.data[0][i] + self.noise(), self.data[1][i]

def loss_of(learn, batch): return F.cross_entropy(learn.model(batch[0]), batch[1])

class Steps(Moving):
    "A method as the step"
    def step(self, batch, learn): return {'loss': loss_of(learn, (self.move(batch[0]), batch[1]))}

class Mine(Moving, Learner):
    "What a subclass holds is its own"
    def __init__(self, *args, **kwargs):
        Learner.__init__(self, *args, **kwargs)
        Moving.__init__(self)
    def train_step(self, batch): return {'loss': loss_of(self, (self.move(batch[0]), batch[1]))}

class Carry(Moving, Hook):
    "A hook that changes what comes next, and counts in a list"
    def before_fit(self, learn): self.log = {'n': [0]}
    def before_step(self, learn):
        learn.batch = self.move(learn.batch[0]), learn.batch[1]
        self.log['n'][0] += 1

def in_place(batch, learn):
    batch[0].sub_(batch[0].mean(0)).mul_(1.5)       # on a CPU the batch is what the list holds
    return {'loss': loss_of(learn, batch)}

def gan_step(batch, learn):
    x, y = batch
    yield 'd', F.cross_entropy(learn.model.d(x), y)
    yield 'g', F.mse_loss(learn.model.g(x), x) - .1*F.cross_entropy(learn.model.d(learn.model.g(x)), y)

def gan(**kwargs):
    model = nn.ModuleDict({'d': make_model(), 'g': nn.Linear(4, 4)})
    optim = {'d': AdamW(model.d.parameters(), lr=.01), 'g': SGD(model.g.parameters(), lr=.02, momentum=.9)}
    return make_learner(model, train_step=gan_step, optim=optim, **kwargs)

def groups(kind=SGD, lrs=(.01, .1), **kwargs):
    model = make_model()
    return dict(model=model, optim=kind([{'params': model[0].parameters(), 'lr': lrs[0]},
                                         {'params': model[3].parameters(), 'lr': lrs[1]}], **kwargs))

def seeded(): return TensorLoader(*problem(), bs=5, shuffle=True, generator=torch.Generator().manual_seed(5))

def plateau(): return LRScheduler(lambda opt: torch.optim.lr_scheduler.ReduceLROnPlateau(opt, patience=0), 'metric')

LEARNERS = {
    'odd': lambda: make_learner(Odd(), shuffled(bs=6), loss_fn=Scaled()),
    'accumulation': lambda: make_learner(hooks=[GradAccum(2), GradClip(.1)]),
    'AMP fp16': lambda: make_learner(hooks=[AMP('fp16', torch.amp.GradScaler), EMA()]),
    'one cycle': lambda: make_learner(hooks=[OneCycle(.1)], **groups(momentum=.9)),
    'validation': lambda: make_learner(valid_dl=shuffled(seed=2), metrics=[accuracy], hooks=[plateau()]),
    'logger': lambda: make_learner(hooks=[Logger()], train_dl=seeded(), metrics=[accuracy]),
    'two optimizers': gan,
    'tensor lr': lambda: make_learner(**groups(AdamW, (torch.tensor(.01), torch.tensor(.1)))),
    'stateful loader': lambda: make_learner(train_dl=Stateful()),
    'noisy data': lambda: make_learner(train_dl=DataLoader(Subset(Noisy(), range(20)), batch_size=5, shuffle=True)),
    'method': lambda: make_learner(train_step=Steps().step),
    'in place': lambda: make_learner(train_dl=batches(), train_step=in_place),
    'subclass': lambda: make_learner(cls=Mine, loss_fn=None),
    'hook with state': lambda: make_learner(hooks=[Carry()])}

@pytest.fixture(autouse=True)
def _aside(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path('there.txt').write_text('before')
    random.seed(0)
    np.random.seed(0)

def made(kind, n_epochs=0):
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
    learn = LEARNERS[kind]()
    learn.add_hook(LambdaHook(after_fit=lambda learn: None))
    if n_epochs: learn.fit(n_epochs)
    for p in learn.model.parameters():
        p.grad = torch.randn_like(p) if p.requires_grad else None       # as a cell of the user's left them
    return learn

def find(learn, **kwargs):
    return learn.lr_find(**{'n_steps': 13, 'end': 1., 'opt': 'd' if 'd' in learn.opts else None, **kwargs})


# How a search may end

class Boom(Exception): pass

def raises(e, point, at):
    "A hook that raises an error, or calls a function, in its `at`-th call; what it counts is nobody's"
    calls = []
    def f(learn, nxt=lambda: None):
        calls.append(1)
        if len(calls) == at and isinstance(e, type): raise e('here')
        if len(calls) == at: e()
        return nxt()
    return LambdaHook(**{point: f if point.startswith('do_') else lambda learn: f(learn)})

def once(): signal.raise_signal(signal.SIGINT)

def twice(): once(), once()

POINTS = ('before_step', 'after_pred', 'after_loss', 'after_backward',
          'do_step', 'do_backward', 'do_opt_step', 'do_zero_grad')

def endings(rand, n_points):
    yield 'success', None, {}, None
    yield 'divergence', None, dict(start=1., end=1e30, n_steps=30), None
    for point in rand.sample(POINTS, n_points):
        yield f'error in {point}', raises(Boom, point, rand.randint(1, 5)), {}, Boom
    for e in CancelStep, CancelEpoch, CancelFit:
        yield e.__name__, raises(e, rand.choice(POINTS[:6]), rand.randint(1, 7)), {}, None
    yield 'interrupt', raises(once, rand.choice(POINTS), 1), {}, None
    yield 'two interrupts', raises(twice, rand.choice(POINTS), 1), {}, KeyboardInterrupt

@pytest.mark.parametrize('kind, n_epochs', [*((o, 1) for o in LEARNERS), ('odd', 0), ('two optimizers', 0)])
def test_nothing_changes(kind, n_epochs):
    rand, threads = random.Random(kind + str(n_epochs)), threading.active_count()
    learn = made(kind, n_epochs)
    for how, hook, kwargs, error in endings(rand, 8 if kind == 'odd' else 2):
        if hook is not None: learn.add_hook(hook)
        before, outcome = snapshot(learn), None
        if error is None: outcome = find(learn, **kwargs).outcome
        else:
            with pytest.raises(error): find(learn, **kwargs)
        check_same(before, snapshot(learn), f'{kind}, {how}')
        if how in ('CancelFit', 'interrupt'): assert outcome == 'stopped', how
        if hook is not None: learn.remove_hook(hook)
    assert threading.active_count() <= threads

VERBS = {'find_batch_size': lambda o: o.find_batch_size(most=20), 'summary': lambda o: o.summary(),
         'show_batch': lambda o: (o.show_batch(), o.valid_dl is None or o.show_batch(valid=True)),
         'doctor': lambda o: o.doctor(), 'plot_schedule': lambda o: o.plot_schedule(2)}

@pytest.mark.parametrize('verb', VERBS)
def test_other_dry_runs_change_nothing(verb):
    # the doctor counts its calls of `do_step`, and a count of samples is told once for each loader
    left_out = {'doctor': ['AMP fp16', 'accumulation'], 'find_batch_size': ['validation']}.get(verb, [])
    for kind in 'odd', 'AMP fp16', 'accumulation', 'logger', 'noisy data', 'validation', 'one cycle':
        if kind in left_out: continue
        learn = made(kind, 1)
        for hook in None, raises(Boom, 'after_pred', 2), raises(once, 'after_pred', 2):
            if hook is not None: learn.add_hook(hook)
            before = snapshot(learn)
            try: VERBS[verb](learn)
            except (Boom, KeyboardInterrupt): assert hook is not None
            check_same(before, snapshot(learn), f'{kind}, {verb}')
            if hook is not None: learn.remove_hook(hook)

class Refusing:
    "Its state cannot be restored"
    def state_dict(self): return {}
    def load_state_dict(self, state): raise OSError('the disk is full')

def test_weights_and_random_states_are_put_back_whatever_a_part_does():
    "They would else be those of a search that has diverged"
    learn = make_learner(train_dl=batches(), state=[Refusing()])
    before, drawn = weights(learn.model), torch.get_rng_state()
    with pytest.raises(OSError, match='disk'): learn.lr_find(n_steps=10)
    assert same(weights(learn.model), before) and torch.equal(torch.get_rng_state(), drawn)

@pytest.mark.parametrize('kind, at', [('odd', 1), ('accumulation', 5), ('one cycle', 4), ('two optimizers', 7),
                                      ('stateful loader', 7), ('validation', 7)])
def test_in_mid_run(kind, at):
    def stopped():
        learn = made(kind)
        learn.add_hook(Counted(at))
        learn.fit(2)
        assert learn.cancelled == 'stop'
        return learn
    plain, searched = stopped(), stopped()
    before = snapshot(searched)
    find(searched)
    find(searched, n_steps=3)
    check_same(before, snapshot(searched))
    for learn in plain, searched: learn.resume()
    assert digest(plain) == digest(searched)

# Where the steps are

class Spy(SGD):
    "Writes down the rates of its real steps"
    log = []
    def step(self, closure=None):
        Spy.log.append([float(g['lr']) for g in self.param_groups])
        return super().step(closure)

def spied(**kwargs):
    Spy.log.clear()
    return make_learner(**groups(Spy), **kwargs)

@pytest.mark.parametrize('n, start, end', [(40, 1e-7, 10.), (2, 1e-3, 1e-2)])
def test_rates_at_real_steps(n, start, end):
    curve = spied().lr_find(start, end, n, stop_div=False)
    assert len(Spy.log) == len(curve.lrs) == len(curve.losses) == n
    assert [high for _, high in Spy.log] == curve.lrs
    assert curve.lrs == pytest.approx([start*(end/start)**(i/(n - 1)) for i in range(n)], rel=1e-12)
    assert [low for low, _ in Spy.log] == pytest.approx([o/10 for o in curve.lrs], rel=1e-9)    # groups of .01 and .1

@pytest.mark.parametrize('n_accum, train_dl', [(3, 5), (4, 3), (2, 'no length')])
def test_accumulation_steps_where_it_steps(n_accum, train_dl):
    "Windows continue past the end of a loader; a point is the mean over the samples of its window"
    data = Unsized(batches()) if train_dl == 'no length' else batches()[:train_dl]
    seen = []
    see = LambdaHook(after_loss=lambda learn: seen.append((learn.loss.item(), len(learn.batch[0]))))
    curve = spied(train_dl=data, hooks=[GradAccum(n_accum), see]).lr_find(n_steps=20, end=1e-3, stop_div=False)
    assert len(Spy.log) == len(curve.losses) == 20 and len(seen) == 20*n_accum
    for i, loss in enumerate(curve.losses):
        window = seen[i*n_accum:(i + 1)*n_accum]
        assert loss == pytest.approx(sum(v*n for v, n in window)/sum(n for _, n in window), rel=1e-5)

def test_losses_are_those_of_plain_pytorch():
    learn = make_learner(train_dl=batches(), optim=SGD)
    model = make_model()
    model.load_state_dict(learn.model.state_dict())
    rng = torch.get_rng_state()
    curve = learn.lr_find(1e-3, 1., 17, stop_div=False)
    torch.set_rng_state(rng)
    opt = SGD(model.parameters(), lr=1.)
    def step_of(i):
        opt.param_groups[0]['lr'] = curve.lrs[i]
        return [batches()[i % 5]]
    assert curve.losses == pytest.approx(plain_loop(model, opt, step_of, 17), rel=1e-6)

def test_one_of_two_optimizers():
    seen = []
    def see(learn, nxt):
        seen.append((learn.opt_name, learn.opt.param_groups[0]['lr']))
        return nxt()
    learn = gan(hooks=[LambdaHook(do_opt_step=see)])
    curve = learn.lr_find(1e-5, 1e-2, 10, opt='d')
    assert {lr for name, lr in seen if name == 'g'} == {.02} and [lr for name, lr in seen if name == 'd'] == curve.lrs
    with pytest.raises(ValueError, match="'d', 'g'"): learn.lr_find()
    with pytest.raises(ValueError, match=r"of \[''\]"): make_learner().lr_find(opt='d')


# What is suggested

data = json.loads((Path(__file__).parents[1]/'data'/'lr_curves.json').read_text(encoding='utf-8'))
RECORDED = {o['name']: o for o in data['curves']}
SILENT = {'flat': '1 %', 'falls': 'larger end', 'diverges': 'points'}       # and what they say

def curve_of(o, **kwargs):
    curve = LRCurve(o['start'], o['end'], o['n_steps'], tuple(RULES), losses=o['losses'], outcome=o['outcome'],
                    **kwargs)
    curve.lrs = np.geomspace(o['start'], o['end'], o['n_steps']).tolist()[:len(curve.losses)]
    return curve

def check_shown(curve):
    "Range, table and picture agree; what is below the range is marked so, and the suggestion is inside, in bold"
    (low, high), (_, *rows), (panel,) = curve.good_range, curve.rows(), curve.chart().panels
    assert rows[curve.bold][1:] == [f'{curve.suggestion:.2g}', 'inside'] and low <= curve.suggestion <= high
    offered = {name: lr for name, lr in curve.suggestions.items() if lr <= high}
    assert rows == [[k, f'{offered[k]:.2g}', 'below' if offered[k] < low else 'inside'] for k in RULES if k in offered]
    marks, seen = [o for o in panel.lines if o.end], smooth(curve.losses)
    for o, (name, lr, where) in zip(marks, rows, strict=True):
        assert o.end == f'{name} {lr}' and o.xs == [offered[name]] and (o.color == GREY) == (where == 'below')
        near = min(range(len(curve.lrs)), key=lambda i: abs(math.log(curve.lrs[i]/offered[name])))
        assert o.ys == [seen[near]]          # on the curve that is seen
    places = sorted(y for _, y, text, *_ in panel.texts() if text in [o.end for o in marks])
    assert len(places) == len(marks) and all(b - a > 14.9 for a, b in zip(places, places[1:]))
    assert panel.shade == (max(low, curve.start), high)
    for (x, text), lr, loss, v in zip(panel.hover, curve.lrs, curve.losses, seen, strict=True):
        assert x == lr and text == f'lr {lr:.2g}\nloss {loss:.4g}\nsmoothed {v:.4g}'
    return rows[-1][-1] == 'below'

def test_suggestions_are_fastais_and_shown_as_they_are():
    below = []
    for name, recorded in RECORDED.items():
        curve, theirs = curve_of(recorded), dict(recorded['suggestions'])
        theirs.pop('steepest', None)
        kind = name.split(':')[0].split()[0]
        if kind in SILENT:
            assert curve.suggestion is None and curve.suggestions == {} and SILENT[kind] in curve.why, name
            assert curve.why in curve.title(), name
        else:
            assert curve.suggestions == pytest.approx(theirs, rel=1e-9), name
            best = next(k for k in ('minimum', 'valley', 'steep') if curve.suggestions[k] <= curve.good_range[1])
            assert not curve.why and curve.suggestion == curve.suggestions[best], name
            below.append(check_shown(curve))
        # the rules themselves, even where nothing is suggested
        assert not theirs or {k: RULES[k](*curve.inner()) for k in theirs} == pytest.approx(theirs, rel=1e-9), name
        assert curve.smoothed == trailing_average(curve.losses, .98)
    assert len(RECORDED) > 9 and any(below) and not all(below)

@pytest.mark.parametrize('name', ['digits, mlp, AdamW, bs 64', 'noisy: digits, conv, RMSprop, bs 2'])
def test_no_rate_past_the_lowest_loss_is_offered(name):
    "fastai's average lags so far that it may fall fastest where the losses themselves rise"
    curve = curve_of(RECORDED[name])
    means = [sum(curve.losses[i - 2:i + 3])/5 for i in range(2, len(curve.losses) - 2)]
    lowest = curve.lrs[means.index(min(means)) + 2]        # of a plain moving average over five batches
    assert [k for k, lr in curve.suggestions.items() if lr > 1.2*lowest] == ['steep']
    low, high = curve.good_range
    assert .25 < high/lowest < 4 and f'good range {low:.2g} to {high:.2g}' in str(curve)
    curve.suggest = 'steep',
    assert curve.suggestion is curve.good_range is None and 'steep' in curve.why and curve.why in curve.title()

def test_a_search_that_ends_before_its_first_step_can_be_shown():
    curve = make_learner(hooks=[raises(CancelFit, 'before_step', 1)]).lr_find()
    assert curve.outcome == 'stopped' and not curve.losses and 'no step' in curve.why and curve.plot() is not None
