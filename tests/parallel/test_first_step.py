"""Several processes train as one does, for every loader and loss, or say so at the first batch;
the references are fits in a single process"""
import random

import pytest, torch, torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from common import make_learner, problem, weights
from trainer_nb.all import (
    Accelerate, CancelStep, Hook, TensorLoader
)
from trainer_nb.data import end_workers
from test_distributed import check_equal

X, Y = problem(46)
DATA = TensorDataset(X, Y)

class Net(nn.Sequential):
    def __init__(self, *more):
        torch.manual_seed(0)
        more = [o() for o in more]
        super().__init__(nn.Linear(4, 8), nn.Tanh(), *more, nn.Linear(8, 3))

class Twins(nn.Module):
    "Two parts of the same shapes"
    def __init__(self):
        super().__init__()
        self.a, self.b = Net(), Net(nn.Tanh)
    def forward(self, x): return self.a(x) + self.b(x)

def sgd(params): return torch.optim.SGD(params, lr=.02, momentum=.9)

def sum_step(batch, learn): return {'loss': F.cross_entropy(learn.model(batch[0]), batch[1], reduction='sum')}

def sum_with_small_n(batch, learn):
    x, y = batch
    pred, here = learn.model(x), x[:, 0] > -1
    return {'loss': F.cross_entropy(pred[here], y[here], reduction='sum'), 'n': here.sum()*.01}

def mean_with_small_n(batch, learn):
    weights = batch[0][:, 0].sigmoid()*.01
    losses = F.cross_entropy(learn.model(batch[0]), batch[1], reduction='none')
    return {'loss': (losses*weights).sum()/weights.sum(), 'n': weights.sum()}

def yielded_sums(batch, learn):
    x, y = batch
    yield 'a', F.cross_entropy(learn.model(x), y, reduction='sum')
    yield 'b', learn.model(x).square().mean()

def twin_losses(batch, learn):
    x, y = batch
    for name in 'ab': yield name, F.cross_entropy(learn.model(x), y)

def scaled(batch, learn): return {'loss': F.cross_entropy(learn.model(batch[0]*.5), batch[1])}
def scaled_in_place(batch, learn): return {'loss': F.cross_entropy(learn.model(batch[0].mul_(.5)), batch[1])}

class SkipsTwo(Hook):
    "Batches that are read and not counted"
    ord = -99
    def before_step(self, learn):
        if learn.training and learn.state.epoch == 0 and learn.state.batch_idx < 2: raise CancelStep

class ZeroInPlace(Hook):
    "Gradients that are kept, and set to 0"
    def do_zero_grad(self, learn, nxt):
        learn.opt.zero_grad(set_to_none=False)
        return True

class Doubled(Accelerate):
    "A hook of one's own, which changes the loss"
    def do_backward(self, learn, nxt, loss): return super().do_backward(learn, nxt, 2*loss)

def twins(m): return {'a': sgd(m.a.parameters()), 'b': sgd(m.b.parameters())}
def halves(m): return {'a': sgd(m[0].parameters()), 'b': sgd(m[2].parameters())}

class Rows(nn.Module):
    "A sparse embedding: each process has gradients of other rows, and of as many as it pleases"
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.table, self.out = nn.Embedding(50, 4, sparse=True), nn.Linear(4, 3)
    def forward(self, x): return self.out(self.table(x[:, 0].abs().mul(10).long().clamp(max=49)))

# Loaders whose order is drawn along the way

class Generator:
    "As many write it: shuffled by `random`, batches drawn one by one"
    def __init__(self, draw): self.draw = draw
    def __iter__(self):
        for _ in range(5):
            idx = self.draw()
            yield X[idx], Y[idx]

class Counted(Generator):
    def __len__(self): return 5

class Stream(IterableDataset):
    def __iter__(self): return (DATA[i] for i in random.sample(range(46), 46))

def drawn(name):
    import numpy as np
    return {'torch': lambda: torch.randint(46, (9,)), 'python': lambda: torch.tensor(random.choices(range(46), k=9)),
            'numpy': lambda: torch.from_numpy(np.random.permutation(46)[:9])}[name]

def tensors(): return TensorLoader(X, Y, bs=9, shuffle=True)

WEIGHTED = nn.CrossEntropyLoss(torch.tensor([1., 5., 25.]), ignore_index=1)
EXACT = {   # loader, model, what else is given to the learner
    'a mean with weights below 1': (tensors, Net, dict(train_step=mean_with_small_n)),
    'a hook that doubles the loss': (tensors, Net, dict(hooks=[Doubled(cpu=True)])),
    'a step that writes to its batch': (lambda: Generator(drawn('torch')), Net,
                                        dict(train_step=scaled_in_place, eval_step=scaled)),
    'gradients set to 0 in place': (tensors, Twins, dict(train_step=twin_losses, optim=twins, hooks=[ZeroInPlace()])),
    'batches that are skipped': (tensors, Net, dict(hooks=[SkipsTwo()])),
    'drawn by Python, with a length': (lambda: Counted(drawn('python')), Net, {}),
    'a stream without workers': (lambda: DataLoader(Stream(), batch_size=9), Net, {}),
    'weights of classes': (tensors, Net, dict(loss_fn=WEIGHTED)),
    'sparse gradients': (tensors, Rows, {}),
}

def learner(case, **kwargs):
    dl, model, given = EXACT[case] if isinstance(case, str) else case
    given = {'loss_fn': F.cross_entropy, 'optim': sgd, **given, **kwargs}
    if 'train_step' in given: given.pop('loss_fn')
    optim, model = given.pop('optim'), model()
    return make_learner(model, dl(), TensorLoader(X[:31], Y[:31], bs=10), seed=5,
                        optim=optim(model) if optim in (halves, twins) else optim, **given)

OFTEN = ('gradients set to 0 in place', 'batches that are skipped', 'a step that writes to its batch',
         'drawn by Python, with a length', 'a mean with weights below 1', 'a stream without workers',
         'weights of classes', 'sparse gradients')

@pytest.mark.parametrize('case', [o if o in OFTEN else pytest.param(o, marks=pytest.mark.soak) for o in EXACT])
def test_equals_one_process(case):
    alone, learn = learner(case), learner(case)
    alone.fit(2)
    learn.launch(2, 2)
    check_equal(alone, learn, 1e-6)

# What is refused, or said

def contrast(pred, targ): return F.cross_entropy(pred @ pred.T, torch.arange(len(pred)))

class SystemSampler:
    def __len__(self): return 46
    def __iter__(self): return iter(random.SystemRandom().sample(range(46), 46))

SUM = 'the loss is a sum: return a mean, or its weight as n'
REFUSED = {
    'a sum': ((tensors, Net, dict(loss_fn=nn.CrossEntropyLoss(reduction='sum'))), SUM),
    'a sum of a step': ((tensors, Net, dict(train_step=sum_step)), SUM),
    'a sum with a weight below 1': ((tensors, Net, dict(train_step=sum_with_small_n)), SUM),
    'yielded sums': ((tensors, Net, dict(train_step=yielded_sums, optim=halves)), SUM),
}

@pytest.mark.parametrize('case', REFUSED)
def test_is_refused(case):
    what, message = REFUSED[case]
    learn = learner(what)
    before = weights(learn.model)
    with pytest.raises(ValueError, match=message): learn.launch(2, 1)
    assert all(map(torch.equal, before, weights(learn.model))) and not learn.history.n_steps

@pytest.mark.parametrize('given', [
    dict(loss_fn=contrast), dict(loss_fn=lambda p, t: F.cross_entropy(p, t, reduction='sum').sqrt())])
def test_another_loss_is_said(given):
    with pytest.warns(UserWarning, match='the loss of the first batch is .* as the mean of its shards in 2 processes'):
        learner((tensors, Net, given)).launch(2, 1)

# What is compared leaves no trace, and chance alone is no reason to refuse

class Noisy(nn.Module):
    "Dropout, batch statistics, noise, Python's numbers, and a count of its calls"
    def __init__(self):
        super().__init__()
        self.net, self.n = Net(lambda: nn.BatchNorm1d(8), nn.Dropout), 0
        self.lstm = nn.LSTM(4, 4, 2, dropout=.3)
    def forward(self, x):
        self.n += 1
        x = self.lstm(x[None].expand(3, -1, -1))[0][-1]*(1.5 - .5*(self.n % 2))*(.5 + random.random())
        return self.net(x + .3*torch.randn_like(x)*torch.rand(len(x), 1))

def with_workers(): return DataLoader(DATA, 9, shuffle=True, drop_last=True, num_workers=1, persistent_workers=True)

@pytest.mark.parametrize('dl', [lambda: TensorLoader(X, Y, bs=9, shuffle=True, drop_last=True), with_workers])
def test_leaves_no_trace(dl):
    found = [learner((dl, Noisy, {}), hooks=[Accelerate(check=check, cpu=True)]) for check in (True, False)]
    try:
        for o in found: o.launch(2, 2)
    finally:        # no worker outlives the test, however it ends
        for o in found: end_workers(o.train_dl)
    assert all(map(torch.equal, *(weights(o.model) for o in found)))
    assert found[0].history.steps == found[1].history.steps and found[0].model.n == found[1].model.n
