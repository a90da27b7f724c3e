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
from trainer_nb.loop import steps
from trainer_nb.loop.metrics import Metric, accuracy
from trainer_nb.loop.hooks import EVENTS, CancelStep, Hook, LambdaHook
from trainer_nb.runs import Fingerprint
from trainer_nb.save import SpikeGuard

READS = ('item', 'tolist', 'numpy', 'cpu', '__float__', '__bool__', '__int__', '__index__', '__array__',
         '__contains__', '__format__')
N_TRAIN, N_VALID, N_EPOCHS = 300, 200, 2        # 1,000 batches in all; more in a pass than the library packs together
PER_EPOCH = 0       # values leave the device in bulk, without these methods, and means are computed on the host
# the first batch of a fit whose default step has a cross entropy: are its logits none, or its targets no probabilities?
FIRST = 1

class HostOps(TorchDispatchMode):
    "Counts operations whose result cannot be known without reading a value"
    def __init__(self, count): super().__init__(); self.count = count
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
def allowed_reads(optim=torch.optim.SGD, make_dl=None):
    "What the plain loop of a linear model reads"
    model = nn.Linear(4, 3)
    opt = optim(model.parameters())
    return raw(model, opt, make_dl or in_list, cross_entropy)

def raw(model, opt, make_dl, loss_of):
    "The plain loop"
    train_dl, valid_dl = make_dl(N_TRAIN), make_dl(N_VALID)
    with counted() as seen:
        for _ in range(N_EPOCHS):
            for batch in train_dl:
                loss_of(model, batch).backward()
                opt.step()
                opt.zero_grad()
            with torch.no_grad():
                for batch in valid_dl: loss_of(model, batch)
    return seen

def fit(learn):
    with counted() as seen: learn.fit(N_EPOCHS)
    assert learn.state.batch_idx == N_TRAIN and len(learn.history) == N_EPOCHS
    return seen

def assert_allowed(seen, allowed, per_epoch=PER_EPOCH, first=FIRST):
    "`tolist` more often than the plain loop: `per_epoch` times in an epoch, `first` times in the first batch"
    own = Counter({name: n for name, n in seen.items() if not name.startswith('display ')})
    own.subtract(allowed)
    n = per_epoch*N_EPOCHS + first
    assert {name: n for name, n in own.items() if n} == ({'tolist': n} if n else {})

def cross_entropy(model, batch): return F.cross_entropy(model(batch[0]), batch[1])

def linear(**kwargs):
    "A learner of the linear model"
    return make_learner(nn.Linear(4, 3), in_list(N_TRAIN), in_list(N_VALID), **{'optim': torch.optim.SGD, **kwargs})

def test_the_counters_count():
    x = torch.tensor([1., 2.])
    reads = {'item': lambda: x[0].item(), '__float__': lambda: float(x[0]), '__bool__': lambda: bool(x[0]),
             '__int__': lambda: int(x[0]), 'tolist': lambda: x.tolist(), 'cpu': lambda: x.cpu(),
             'numpy': lambda: x.numpy(), 'nonzero': lambda: x.nonzero(), 'index': lambda: x[x > 1],
             'masked_select': lambda: x.masked_select(x > 1), 'equal': lambda: torch.equal(x, x),
             '_local_scalar_dense': lambda: torch.full((2,), x[0])}
    for name, f in reads.items():
        with counted() as seen: f()
        assert seen[name] == 1, name
    with counted() as seen: (x @ x + x.sum()).detach().double().to('cpu', non_blocking=True)
    assert not seen and 'item' not in vars(Tensor)

def square(pred, targ): return pred.square().mean() + targ.float().mean()

class Total:
    "A metric object that reads nothing until `compute`; `means` makes its value a float"
    def reset(self): self.n = 0.
    def update(self, pred, targ): self.n = self.n + pred.sum()
    def compute(self): return self.n

@pytest.mark.parametrize('optim, make_dl, display', [
    (torch.optim.SGD, in_list, 'tty'), (torch.optim.SGD, in_loader, 'html'), (torch.optim.AdamW, in_loader, False)])
def test_metrics_hooks_and_display(optim, make_dl, display, capsys, cell):
    allowed = allowed_reads(optim, make_dl)
    hooks = [LambdaHook(**{e: lambda learn: None for e in EVENTS}),
             LambdaHook(do_opt_step=lambda learn, nxt: nxt(), do_step=lambda learn, nxt: nxt())]
    learn = make_learner(nn.Linear(4, 3), make_dl(N_TRAIN), make_dl(N_VALID), optim=optim, lr=.01,
                         metrics=[accuracy, square], hooks=hooks, display=display)
    seen = fit(learn)
    assert_allowed(seen, allowed)
    if display == 'html': assert learn.display.budget.n > 1

def test_metric_objects_are_read_once_in_a_pass():
    allowed = Counter(allowed_reads())
    seen = fit(linear(metrics=[Total()]))
    # one read for each pass, seen by both nets
    allowed.update(dict.fromkeys(['__float__', '_local_scalar_dense'], 2*N_EPOCHS))
    assert_allowed(seen, allowed)

def test_whole_metrics_are_read_once_in_a_pass():
    "Predictions and targets as arrays, and the value, at the end of a validation, and of training if asked"
    allowed = Counter(allowed_reads())
    seen = fit(linear(metrics=[Metric(lambda pred, targ: 0., 'zero', whole=True, train=True)]))
    allowed.update({'numpy': 2*2*N_EPOCHS, **dict.fromkeys(['__float__', '_local_scalar_dense'], 2*N_EPOCHS)})
    assert_allowed(seen, allowed)

def token_step(batch, learn):
    pred = learn.model(batch[0])
    return {'loss': F.cross_entropy(pred, batch[1]), 'pred': pred, 'targ': batch[1], 'n': (batch[1] > 0).sum() + 1}

def test_weights_that_are_tensors(metrics=(accuracy, Metric(square, name='s'))):
    "A number of tokens is known on the device only"
    assert_allowed(fit(linear(train_step=token_step, metrics=metrics)), allowed_reads(), first=0)

def two_losses(batch, learn):
    pred = learn.model(batch[0])
    yield '0', F.cross_entropy(pred, batch[1])
    if learn.state.batch_idx % 2: yield '2', learn.model(batch[0]).square().mean()
    return {'pred': pred, 'targ': batch[1]}

def test_several_optimizers_and_groups():
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 3))
    groups = torch.optim.SGD([{'params': [model[0].weight]}, {'params': [model[0].bias], 'lr': .1}], lr=.01)
    learn = make_learner(model, in_list(N_TRAIN), in_list(N_VALID), train_step=two_losses,
                         optim={'0': groups, '2': torch.optim.SGD(model[2].parameters())}, metrics=[accuracy])
    assert_allowed(fit(learn), Counter(), first=0)

def test_skipped_steps_and_cancels():
    class Skip(Hook):
        def after_loss(self, learn):
            if learn.state.batch_idx % 7 == 3: raise CancelStep
        def do_opt_step(self, learn, nxt): return nxt() if learn.state.batch_idx % 2 else False
    assert_allowed(fit(linear(metrics=[accuracy], hooks=[Skip()])), Counter())

@pytest.mark.parametrize('action', ['note', 'skip'])
def test_a_spike_guard_reads_only_when_it_looks(action):
    learn = linear(hooks=[SpikeGuard(action, every=20)])
    assert_allowed(fit(learn), allowed_reads(), per_epoch=PER_EPOCH + N_TRAIN//20)

@pytest.mark.parametrize('every', [1, 10])
def test_a_fingerprint_reads_sixteen_batches_at_a_time(every):
    "Besides, it describes once what the objects hold: the first hundred batches of each list"
    reads = -(-N_EPOCHS*(N_TRAIN + N_VALID)//every//16)
    allowed = allowed_reads() + Counter(cpu=reads, numpy=reads, tolist=2*2*100)
    assert_allowed(fit(linear(hooks=[Fingerprint(every)])), allowed)
