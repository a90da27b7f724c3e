"Read again, the order of a pass is the same, whatever draws it, or the difference is named; batches know their samples"
import random
from itertools import count, islice

import numpy as np, pytest, torch
from torch.utils.data import BatchSampler, DataLoader, Sampler, Subset, TensorDataset

from common import check_resume, equal, make_learner, problem, stop_at, told
from trainer_nb.all import Checkpoint, Hook, SeededLoader, TensorLoader
from trainer_nb.base import rng_state
from trainer_nb.data import Pass

X, Y = problem()
SAMPLES = list(zip(X, Y))

class Own(Sampler):
    "Draws from what it holds"
    def __init__(self, held, draw): self.held, self.draw, self.n_passes = held, draw, 0
    def __len__(self): return 24
    def __iter__(self): return iter(self.draw(self))

def counted(sampler):
    sampler.n_passes += 1
    return torch.randperm(24, generator=torch.Generator().manual_seed(sampler.n_passes)).tolist()

class Noisy:
    "Samples draw from a generator of the dataset, and so does a hook"
    def __init__(self): self.rng = np.random.default_rng(3)
    def __len__(self): return 24
    def __getitem__(self, i): return X[i] + float(self.rng.random()), Y[i]

class Draws(Hook):
    def before_step(self, learn):
        if isinstance(learn.train_dl.dataset, Noisy): learn.train_dl.dataset.rng.random()

def drawn(held, draw=lambda s: s.held.permutation(24), **kwargs):
    return DataLoader(SAMPLES, 5, sampler=Own(held, draw), **kwargs)

OWN = {
    'torch': lambda: drawn(torch.Generator().manual_seed(1), lambda s: torch.randperm(24, generator=s.held).tolist()),
    'numpy': lambda: drawn(np.random.default_rng(1)),
    'random': lambda: drawn(random.Random(1), lambda s: s.held.sample(range(24), 24)),
    'counter': lambda: drawn(None, counted),
    'counter, worker': lambda: drawn(None, counted, num_workers=1),
    'dataset': lambda: DataLoader(Noisy(), 5, shuffle=True)}

@pytest.mark.parametrize('kind', OWN)
def test_what_an_order_or_a_sample_draws_from_is_restored(kind, tmp_path):
    "In the middle of the second epoch, in the learner that was stopped and in another one"
    def make():
        torch.manual_seed(0)
        return make_learner(train_dl=OWN[kind](), hooks=[Draws()])
    with told() as said: check_resume(make, tmp_path, stop_at(7), n_epochs=2)
    assert not [o for o in said if 'cannot be repeated' in o]

TURN = count()

def restless(sampler):
    "Draws from what nobody sees"
    return torch.randperm(24, generator=torch.Generator().manual_seed(next(TURN))).tolist()

@pytest.mark.parametrize('draw, n', [(restless, 1), (lambda s: range(24), 0)], ids=['other', 'same'])
@pytest.mark.parametrize('make, n_workers', [
    (lambda sampler: DataLoader(SAMPLES, 5, sampler=sampler, num_workers=1), 1),
    (lambda sampler: DataLoader(TensorDataset(X, Y), batch_sampler=BatchSampler(sampler, 5, False)), 0),
    (lambda sampler: SeededLoader(SAMPLES, 5, sampler=sampler), 0)], ids=['workers', 'batch sampler', 'seeded'])
def test_an_order_that_cannot_be_had_again_is_named(make, n_workers, draw, n, tmp_path):
    "Once, and by the sampler's name; also where it was stopped, if workers end there"
    def learner(): return make_learner(train_dl=make(Own(None, draw)), hooks=[Checkpoint(tmp_path)])
    stopped = learner()
    stopped.fit(1, hooks=[stop_at(3)])
    with told() as there: learner().fit(1, resume=True)
    with told() as here: stopped.resume()
    assert [len([o for o in said if 'first 3 batches of Own' in o]) for said in (there, here)] == [n, n*n_workers]

LOADERS = {
    'rows': lambda: DataLoader(Subset(TensorDataset(X, Y), [*range(23, -1, -1)]), 5, shuffle=True),
    'workers': lambda: DataLoader(SAMPLES, 5, shuffle=True, num_workers=2),
    'sampler': lambda: drawn(np.random.default_rng(1)),
    'seeded': lambda: SeededLoader(SAMPLES, 5, shuffle=True), 'tensors': lambda: TensorLoader(X, Y, bs=5, shuffle=True),
    'tensors in order': lambda: TensorLoader(X, Y, bs=5)}

@pytest.mark.parametrize('kind', LOADERS)
def test_a_batch_knows_the_indices_of_its_samples(kind):
    "Also in a pass that begins in the middle"
    torch.manual_seed(0)
    first, again = Pass(LOADERS[kind]()), Pass(LOADERS[kind]())
    data = first.dl.dataset if kind == 'rows' else SAMPLES
    def check(batches):
        n = 0
        for b in batches:
            n += b.n
            first.done()
            assert b.n == b.total == len(b.indices) == len(b.data[0])
            for x, y, i in zip(*b.data, b.indices): assert torch.equal(x, data[int(i)][0]) and y == data[int(i)][1]
        return n
    assert check(islice(first, 2)) == 10
    state = first.state_dict()
    first.close()
    again.load_state_dict(state)
    assert check(again) == 14

def test_a_seeded_loader_leaves_the_global_rngs_alone():
    dl = SeededLoader(SAMPLES, 5, generator=torch.Generator())
    before = rng_state()
    for _ in dl: assert equal(rng_state(), before)
