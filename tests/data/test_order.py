"Read again, the order of a pass is the same, whatever draws it, or the difference is named; batches know their samples"
import random
from itertools import count

import numpy as np, pytest, torch
from torch.utils.data import BatchSampler, DataLoader, Sampler, Subset, TensorDataset

from common import check_resume, make_learner, problem, stop_at, stop_when, told
from trainer_nb.all import Checkpoint, Hook, SeededLoader, TensorLoader
from trainer_nb.data import Pass

X, Y = problem()
SAMPLES = list(zip(X, Y))

class Own(Sampler):
    "Draws from what it holds"
    def __init__(self, held, draw): self.held, self.draw = held, draw
    def __len__(self): return 24
    def __iter__(self): return iter(self.draw(self))

def counted(sampler):
    sampler.n_passes += 1
    return torch.randperm(24, generator=torch.Generator().manual_seed(sampler.n_passes)).tolist()

def counting():
    res = Own(None, counted)
    res.n_passes = 0
    return res

OWN = {
    'torch': lambda: Own(torch.Generator().manual_seed(1), lambda s: torch.randperm(24, generator=s.held).tolist()),
    'numpy': lambda: Own(np.random.default_rng(1), lambda s: s.held.permutation(24)),
    'legacy numpy': lambda: Own(np.random.RandomState(1), lambda s: s.held.permutation(24)),
    'random': lambda: Own(random.Random(1), lambda s: s.held.sample(range(24), 24)),
    'counter': counting}

@pytest.mark.parametrize('n_workers', [0, 1])
@pytest.mark.parametrize('kind', OWN)
def test_what_a_sampler_draws_from_is_restored(kind, n_workers, tmp_path):
    "In the middle of the second epoch, in the learner that was stopped and in another one"
    def make():
        torch.manual_seed(0)
        return make_learner(train_dl=DataLoader(SAMPLES, 5, sampler=OWN[kind](), num_workers=n_workers))
    with told() as said: check_resume(make, tmp_path, stop_at(7), n_epochs=2)
    assert not [o for o in said if 'cannot be had again' in o]

TURN = count()

def restless(sampler):
    "Draws from what nobody sees"
    return torch.randperm(24, generator=torch.Generator().manual_seed(next(TURN))).tolist()

@pytest.mark.parametrize('make', [
    lambda sampler: DataLoader(SAMPLES, 5, sampler=sampler),
    lambda sampler: DataLoader(SAMPLES, 5, sampler=sampler, num_workers=1),
    lambda sampler: DataLoader(TensorDataset(X, Y), batch_sampler=BatchSampler(sampler, 5, False)),
    lambda sampler: SeededLoader(SAMPLES, 5, sampler=sampler)],
    ids=['no workers', 'workers', 'batch sampler', 'seeded'])
def test_an_order_that_cannot_be_had_again_is_named(make, tmp_path):
    "Once, and by the sampler's name; the order that is the same again is not"
    for draw, n in (restless, 1), (lambda s: range(24), 0):
        folder = tmp_path/str(n)
        def learner(): return make_learner(train_dl=make(Own(None, draw)), hooks=[Checkpoint(folder)])
        learner().fit(1, hooks=[stop_at(3)])
        with told() as said: learner().fit(1, resume=True)
        assert len([o for o in said if 'the first 3 batches of Own hold other samples now' in o]) == n, said

def test_the_order_of_a_pass_that_was_stopped_here_is_compared_too():
    "Workers end at a stop, and the pass is opened again"
    learn = make_learner(train_dl=DataLoader(SAMPLES, 5, sampler=Own(None, restless), num_workers=1))
    learn.fit(1, hooks=[stop_at(3)])
    with told() as said: learn.resume()
    assert any('batches of Own hold other samples now' in o for o in said)

LOADERS = {
    'stock': lambda: DataLoader(SAMPLES, 5, shuffle=True),
    'rows': lambda: DataLoader(TensorDataset(X, Y), 5, shuffle=True),
    'workers': lambda: DataLoader(SAMPLES, 5, shuffle=True, num_workers=2),
    'numpy': lambda: DataLoader(SAMPLES, 5, sampler=OWN['numpy']()),
    'subset': lambda: DataLoader(Subset(TensorDataset(X, Y), [*range(23, -1, -1)]), 5),
    'seeded': lambda: SeededLoader(SAMPLES, 5, shuffle=True), 'tensors': lambda: TensorLoader(X, Y, bs=5, shuffle=True),
    'tensors in order': lambda: TensorLoader(X, Y, bs=5)}

@pytest.mark.parametrize('kind', LOADERS)
def test_a_batch_knows_the_indices_of_its_samples(kind):
    "Also in a pass that begins in the middle"
    dl = LOADERS[kind]()
    data = dl.dataset.dataset if kind == 'seeded' else SAMPLES if kind[:7] == 'tensors' else dl.dataset
    def check(batches):
        batches, n = [*batches], 0
        for b in batches:
            n += b.n
            assert b.n == b.total == len(b.indices) == len(b.data[0])
            for x, y, i in zip(*b.data, b.indices): assert torch.equal(x, data[int(i)][0]) and y == data[int(i)][1]
        return n
    torch.manual_seed(0)
    assert check(Pass(dl)) == 24
    torch.manual_seed(0)
    first, again = Pass(LOADERS[kind]()), Pass(LOADERS[kind]())
    for _ in zip(range(2), first): first.done()
    state = first.state_dict()
    first.close()
    again.load_state_dict(state)
    assert check(again) == 14

@pytest.mark.parametrize('dl', [[(X, Y)], DataLoader([torch.ones(2)], None), iter([(X, Y)])],
                         ids=['list', 'samples', 'iterator'])
def test_a_batch_without_indices_is_counted(dl):
    [b] = Pass(dl)
    assert b.n == b.total == (24 if isinstance(b.data, tuple) else 2) and b.indices in (None, [0])

class Draws(Hook):
    "Draws from the generator of the data"
    def before_step(self, learn): learn.train_dl.dataset.rng.random()

class Noisy:
    def __init__(self): self.rng = np.random.default_rng(3)
    def __len__(self): return 24
    def __getitem__(self, i): return X[i] + float(self.rng.random()), Y[i]

def test_a_generator_of_the_data_goes_on(tmp_path):
    def make():
        torch.manual_seed(0)
        return make_learner(train_dl=DataLoader(Noisy(), 5, shuffle=True), hooks=[Draws()])
    check_resume(make, tmp_path, stop_when(lambda learn: learn.state.optimizer_step == 7), n_epochs=2)
