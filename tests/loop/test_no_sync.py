"""Between display ticks the loop never reads a tensor's value on the host

Two counters: of the methods that read values, and of the operations that PyTorch marks as needing a value on the
host (`nonzero`, an index by mask, `if tensor:` in C++, ...). A plain loop of the same steps sets what is allowed.
"""
import sys
from collections import Counter
from contextlib import contextmanager
from functools import cache

import pytest, torch, torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import DataLoader, TensorDataset

from common import make_learner
from trainer_nb.features.weights import EMA
from trainer_nb.look import TrackSamples, data_map
from trainer_nb.loop import steps
from trainer_nb.loop.metrics import Metric, accuracy
from trainer_nb.loop.hooks import EVENTS, CancelStep, Hook, LambdaHook
from trainer_nb.runs import Fingerprint
from trainer_nb.save import SpikeGuard

READS = ('item', 'tolist', 'numpy', 'cpu', '__float__', '__bool__', '__int__', '__index__', '__array__',
         '__contains__', '__format__')
N_TRAIN, N_VALID, N_EPOCHS = 300, 50, 2        # batches; more in a pass than the library packs together
# the first batch of a fit whose default step has a cross entropy: are its logits none, or its targets no probabilities?
FIRST = 1

class HostOps(TorchDispatchMode):
    "Counts operations whose result cannot be known without reading a value"
    def __init__(self, count):
        super().__init__()
        self.count = count
    def __torch_dispatch__(self, f, types, args=(), kwargs=None):
        needs_value = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape} & set(f.tags)
        if f.overloadpacket is torch.ops.aten.index:        # a mask does, integers do not
            needs_value = any(i is not None and i.dtype in (torch.bool, torch.uint8) for i in args[1])
        elif f is torch.ops.aten.repeat_interleave.Tensor:
            needs_value = (kwargs or {}).get('output_size') is None
        if needs_value: self.count(f.overloadpacket.__name__)
        return f(*args, **(kwargs or {}))

@contextmanager
def counted():
    "Counts of reads, with the CPU as the device; those that the display does stand apart"
    seen, on_host = Counter(), steps.on_host
    def count(name):
        frame, where = sys._getframe(1), ''
        while frame and not where:
            if frame.f_code.co_filename.endswith('display.py') and 'trainer_nb' in frame.f_code.co_filename:
                where = 'display '
            frame = frame.f_back
        seen[where + name] += 1
    def patched(name, f):
        def g(self, *args, **kwargs):
            count(name)
            return f(self, *args, **kwargs)
        return g
    own = {name: vars(Tensor)[name] for name in READS if name in vars(Tensor)}
    for name in READS: setattr(Tensor, name, patched(name, getattr(Tensor, name)))
    steps.on_host = lambda t: False
    try:
        with HostOps(count): yield seen
    finally:
        steps.on_host = on_host
        for name in READS:
            if name in own: setattr(Tensor, name, own[name])
            else: delattr(Tensor, name)

@pytest.fixture(scope='module', autouse=True)
def warm():
    "What the library tries once in a process is tried before anything is counted"
    for optim in torch.optim.SGD, torch.optim.AdamW:
        make_learner(nn.Linear(4, 3), in_list(3), optim=optim, hooks=[EMA()]).fit(1)

def data(n):
    g = torch.Generator().manual_seed(0)
    return torch.randn(2*n, 4, generator=g), torch.randint(0, 3, (2*n,), generator=g)

def in_list(n): return list(zip(*(o.split(2) for o in data(n))))
def in_loader(n): return DataLoader(TensorDataset(*data(n)), batch_size=2, shuffle=True)

@cache
def allowed_reads(optim=torch.optim.SGD, make_dl=in_list):
    "What the plain loop of a linear model reads"
    model, train_dl, valid_dl = nn.Linear(4, 3), make_dl(N_TRAIN), make_dl(N_VALID)
    opt = optim(model.parameters())
    with counted() as seen:
        for _ in range(N_EPOCHS):
            train(model, opt, train_dl)
            with torch.no_grad():
                for x, y in valid_dl: F.cross_entropy(model(x), y)
    return seen

def train(model, opt, batches):
    for x, y in batches:
        F.cross_entropy(model(x), y).backward()
        opt.step()
        opt.zero_grad()

def fit(learn):
    with counted() as seen: learn.fit(N_EPOCHS)
    assert learn.state.batch_idx == N_TRAIN and len(learn.history) == N_EPOCHS
    return seen

def assert_allowed(seen, allowed, n=FIRST):
    "`tolist` more often than the plain loop: `n` times, of which `FIRST` are in the first batch; nothing else"
    own = Counter({name: n for name, n in seen.items() if not name.startswith('display ')})
    own.subtract(allowed)
    assert {name: n for name, n in own.items() if n} == ({'tolist': n} if n else {})

def test_the_counters_count():
    x = torch.tensor([1., 2.])
    reads = {'item': lambda: x[0].item(), '__float__': lambda: float(x[0]), '__bool__': lambda: bool(x[0]),
             'tolist': lambda: x.tolist(), 'cpu': lambda: x.cpu(), 'numpy': lambda: x.numpy(),
             'nonzero': lambda: x.nonzero(), 'index': lambda: x[x > 1], 'equal': lambda: torch.equal(x, x),
             '_local_scalar_dense': lambda: torch.full((2,), x[0])}
    for name, f in reads.items():
        with counted() as seen: f()
        assert seen[name] == 1, name
    with counted() as seen: (x @ x + x.sum()).detach().double().to('cpu', non_blocking=True)
    assert not seen and 'item' not in vars(Tensor)

def square(pred, targ): return pred.square().mean() + targ.float().mean()

@pytest.mark.parametrize('optim, make_dl, display', [
    (torch.optim.SGD, in_list, 'tty'), (torch.optim.AdamW, in_loader, 'html')])
def test_metrics_hooks_and_display(optim, make_dl, display, capsys, cell):
    allowed = allowed_reads(optim, make_dl)
    hooks = [LambdaHook(**{e: lambda learn: None for e in EVENTS}),
             LambdaHook(do_opt_step=lambda learn, nxt: nxt(), do_step=lambda learn, nxt: nxt())]
    learn = make_learner(nn.Linear(4, 3), make_dl(N_TRAIN), make_dl(N_VALID), optim=optim, lr=.01,
                         metrics=[accuracy, square], hooks=hooks, display=display)
    assert_allowed(fit(learn), allowed)
    if display == 'html': assert learn.display.budget.n > 1

class Total:
    "A metric object that reads nothing until `compute`; the loop makes its value a float"
    def reset(self): self.n = 0.
    def update(self, pred, targ): self.n = self.n + pred.sum()
    def compute(self): return self.n

class Skip(Hook):
    def after_loss(self, learn):
        if learn.state.batch_idx % 7 == 3: raise CancelStep
    def do_opt_step(self, learn, nxt): return nxt() if learn.state.batch_idx % 2 else False

def token_step(batch, learn):
    "A number of tokens is known on the device only"
    pred = learn.model(batch[0])
    return {'loss': F.cross_entropy(pred, batch[1]), 'pred': pred, 'targ': batch[1], 'n': (batch[1] > 0).sum() + 1}

def two_losses(batch, learn):
    pred = learn.model['a'](batch[0])
    yield 'a', F.cross_entropy(pred, batch[1])
    if learn.state.batch_idx % 2: yield 'b', learn.model['b'](batch[0]).square().mean()
    return {'pred': pred, 'targ': batch[1]}

def two_models(): return nn.ModuleDict({o: nn.Linear(4, 3) for o in 'ab'})

def whole_metric(): return Metric(lambda pred, targ: 0., 'zero', whole=True, train=True)

N_PASSES, N_READS = 2*N_EPOCHS, -(-N_EPOCHS*(N_TRAIN + N_VALID)//10//16)
# what the learner is given: reads that the plain loop does not make, and how often `tolist` is called
CASES = {
    'a metric object is read once in a pass': (
        lambda: dict(metrics=[Total()]), {'__float__': N_PASSES, '_local_scalar_dense': N_PASSES}, FIRST),
    'of a whole metric, predictions, targets and the value': (
        lambda: dict(metrics=[whole_metric()]),
        {'numpy': 2*N_PASSES, '__float__': N_PASSES, '_local_scalar_dense': N_PASSES}, FIRST),
    'weights that are tensors': (lambda: dict(train_step=token_step, metrics=[accuracy, square]), {}, 0),
    'several optimizers': (
        lambda: dict(model=two_models(), train_step=two_losses, optim=dict.fromkeys('ab', torch.optim.SGD)), {}, 0),
    'skipped and cancelled steps': (lambda: dict(metrics=[accuracy], hooks=[Skip()]), {}, FIRST),
    'a spike guard, when it looks': (
        lambda: dict(hooks=[SpikeGuard('skip', every=20)]), {}, FIRST + N_EPOCHS*N_TRAIN//20),
    # besides, it describes once what the objects hold: the first hundred batches of training, and all of validation
    'a fingerprint, of sixteen batches at a time': (
        lambda: dict(hooks=[Fingerprint(10)]), {'cpu': N_READS, 'numpy': N_READS}, FIRST + 2*(100 + N_VALID)),
}

@pytest.mark.parametrize('key', CASES)
def test_reads_of(key):
    make, more, n = CASES[key]
    options = {'model': nn.Linear(4, 3), 'train_dl': in_list(N_TRAIN), 'valid_dl': in_list(N_VALID),
               'optim': torch.optim.SGD, **make()}
    assert_allowed(fit(make_learner(**options)), allowed_reads() + Counter(more), n)

def test_tracked_samples_are_read_once_in_an_epoch(monkeypatch):
    monkeypatch.setattr(data_map, '_EACH', 10**6)       # on the host they are written in between
    seen = fit(make_learner(nn.Linear(4, 3), in_loader(N_TRAIN), optim=torch.optim.SGD, hooks=[TrackSamples()]))
    seen.subtract(allowed_reads(torch.optim.SGD, in_loader))
    assert seen['cpu'] == 4*N_EPOCHS and max(seen.values()) < 12*N_EPOCHS     # of 600 batches
