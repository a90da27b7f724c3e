"A `DataLoader` over tensors yields the same batches by rows, bit for bit, and draws the same random numbers"
import random

import pytest, torch
from torch import nn
from torch.utils.data import (
    BatchSampler, DataLoader, RandomSampler, Subset, SubsetRandomSampler, TensorDataset, WeightedRandomSampler,
    random_split
)

from common import equal
from trainer_nb.all import Learner
from trainer_nb.base import rng_state, set_seed
from trainer_nb.data import Batch, Pass
from trainer_nb.data.rows import rows_of

DTYPES = torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64

def tensor(n, r, g):
    dtype, shape = r.choice(DTYPES), [n, *r.choices([1, 2, 3], k=r.randint(0, 3))]
    res = torch.randn(shape, generator=g).mul_(3).to(dtype)
    if dtype.is_floating_point: res.view(-1)[r.randrange(res.numel())] = r.choice([torch.nan, torch.inf, -0.])
    return res.transpose(1, 2) if r.random() < .3 and res.ndim > 2 else res

def loader(seed):
    "A random loader over tensors"
    r, g = random.Random(seed), torch.Generator().manual_seed(seed)
    n = r.randint(1, 40)
    dataset = TensorDataset(*(tensor(n, r, g) for _ in range(r.randint(1, 3))))
    for _ in range(r.choice([0, 0, 1, 2])):
        if r.random() < .5: dataset = Subset(dataset, r.choices(range(-n, n), k=r.randint(1, n)))
        else: dataset = random_split(dataset, [n - n//3, n//3], generator=g)[0]
        n = len(dataset)
    own, at = torch.Generator().manual_seed(seed + 1), r.sample(range(n), r.randint(1, n))
    sampler = r.choice([None, SubsetRandomSampler(r.choice([at, torch.tensor(at)]), own),
                        WeightedRandomSampler(torch.rand(n, generator=g), 2*n, generator=r.choice([own, None])),
                        RandomSampler(dataset, replacement=True, num_samples=3*n)])
    bs, drop_last, g = r.randint(1, 9), r.random() < .3, r.choice([None, own])
    if sampler is not None and r.random() < .3:     # the loader's `sampler` and `drop_last` say nothing then
        return DataLoader(dataset, batch_sampler=BatchSampler(sampler, bs, drop_last), generator=g)
    return DataLoader(dataset, bs, r.random() < .6 if sampler is None else None, sampler, drop_last=drop_last,
                      generator=g)

def data_of(batches): return (o.data if isinstance(o, Batch) else o for o in batches)

def check_same(a, b):
    assert type(a) is type(b) is list and len(a) == len(b)
    for x, y in zip(a, b):
        assert type(x) is type(y) and x.dtype == y.dtype and x.shape == y.shape and x.stride() == y.stride()
        assert x.contiguous().view(torch.uint8).equal(y.contiguous().view(torch.uint8))

@pytest.mark.parametrize('seed', [*range(6), *(pytest.param(o, marks=pytest.mark.soak) for o in range(6, 60))])
def test_batches_and_random_numbers_are_the_same(seed):
    "Two whole passes, with random numbers drawn in between, then one that resumes in the middle"
    passes, after = [], []
    for kind in iter, Pass:
        dl = loader(seed)
        assert rows_of(dl)
        set_seed(seed)
        passes.append([(b, torch.rand(1)) for _ in range(2) for b in data_of(kind(dl))])
        after.append((rng_state(), dl.generator and dl.generator.get_state()))
    for (a, drawn), (b, drawn_here) in zip(*passes, strict=True):
        check_same(a, b)
        assert drawn == drawn_here
    assert equal(*after)
    if not passes[0]: return

    n = random.Random(seed).randint(1, len(passes[0])//2)
    set_seed(seed)
    first, again = Pass(loader(seed)), Pass(loader(seed))
    for _ in zip(range(n), first):
        first.done()
        torch.rand(1)
    set_seed(9)
    again.load_state_dict(first.state_dict())
    for a, (b, _) in zip(data_of(again), passes[0][n:len(passes[0])//2], strict=True): check_same(a, b)

def test_a_fit_reads_rows_and_may_write_to_them(monkeypatch):
    seen, get, x = [], TensorDataset.__getitem__, torch.ones(20, 3)
    monkeypatch.setattr(TensorDataset, '__getitem__', lambda self, i: [seen.append(i), get(self, i)][1])
    dl = DataLoader(TensorDataset(x, torch.randn(20, 1)), 5, shuffle=True)
    Learner(nn.Sequential(nn.ReLU(inplace=True), nn.Linear(3, 1)), dl, loss_fn=nn.MSELoss(), display=False).fit(3)
    for b in Pass(dl): b.data[0].zero_()
    assert not seen and (x == 1).all()

class OtherData(TensorDataset):
    def __getitem__(self, i): return tuple(2*o for o in super().__getitem__(i))

class OtherLoader(DataLoader):
    def __iter__(self): return (b for b in ())

def test_other_loaders_are_left_alone():
    x = torch.ones(8)
    for dl in (DataLoader(TensorDataset(x), sampler=range(8)), DataLoader(OtherData(x)), OtherLoader(TensorDataset(x)),
               DataLoader(TensorDataset(x.to_sparse()))):
        assert not rows_of(dl)

@pytest.mark.parametrize('n, drop_last, stop', [(20, False, 5), (22, False, 2), (22, True, 4)])
def test_a_pass_that_is_left_draws_no_more_than_torchs(n, drop_last, stop):
    "At the end of a pass, torch draws from the loader's generator once more"
    orders = []
    for kind in iter, Pass:
        g, seen = torch.Generator().manual_seed(3), []
        dl = DataLoader(TensorDataset(torch.arange(n)), 5, True, drop_last=drop_last, generator=g)
        for k in stop, stop, 9: seen += [b.tolist() for _, (b,) in zip(range(k), data_of(kind(dl)), strict=False)]
        orders.append((seen, g.get_state().tolist()))
    assert orders[0] == orders[1]
