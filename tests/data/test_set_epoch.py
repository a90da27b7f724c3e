"Samplers, datasets and loaders that seed themselves by the epoch are told its number, as in a plain loop"
from operator import attrgetter

import pytest, torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, DistributedSampler, RandomSampler

from common import check_resume, make_learner, plain_loop, problem, same, stop_at, weights
from trainer_nb.features.gradients import GradAccum
from trainer_nb.loop.hooks import LambdaHook
from trainer_nb.data.loaders import SeededLoader


def order(epoch, n=24): return torch.randperm(n, generator=torch.Generator().manual_seed(epoch)).tolist()

class Points(Dataset):
    "Its samples depend on the epoch"
    def __init__(self): self.epoch, self.data = None, problem()
    def set_epoch(self, epoch): self.epoch = epoch
    def __len__(self): return 24
    def __getitem__(self, i): return self.data[0][i]*(1 + self.epoch), self.data[1][i]

class Batches(BatchSampler):
    def set_epoch(self, epoch): self.epoch = epoch
    def __iter__(self):
        for i in range(0, 24, 5): yield order(self.epoch)[i:i + 5]

class Loader:
    "Any iterable"
    def set_epoch(self, epoch): self.epoch = epoch
    def __len__(self): return 5
    def __iter__(self):
        for i in range(0, 24, 5): yield tuple(o[order(self.epoch)[i:i + 5]] for o in problem())

class Shuffles(list):
    "It shuffles when it is told, at random"
    def set_epoch(self, epoch): self[:] = torch.randperm(24).tolist()

def stock(data=None, **kwargs):
    return DataLoader(list(zip(*problem())) if data is None else data, **{'batch_size': 5, **kwargs})

def distributed(): return DistributedSampler(range(24), num_replicas=1, rank=0, seed=3)

CASES = {   # name: loader, and what a plain loop tells
    'sampler': (lambda: stock(sampler=distributed()), 'sampler'),
    'batch sampler': (lambda: stock(batch_sampler=Batches(RandomSampler(range(24)), 5, False), batch_size=1),
                      'batch_sampler'),
    'dataset': (lambda: stock(Points(), shuffle=True), 'dataset'),
    'dataset in workers': (lambda: stock(Points(), shuffle=True, num_workers=1), 'dataset'),
    'loader': (Loader, ''),
    'a shuffle when told': (lambda: stock(sampler=Shuffles(range(24))), 'sampler'),
}

def plain(make, path, n_epochs):
    torch.manual_seed(5)
    model, dl = torch.nn.Linear(4, 3), make()
    opt = torch.optim.SGD(model.parameters(), lr=.1)
    torch.manual_seed(7)
    def of_epoch(epoch):
        (attrgetter(path)(dl) if path else dl).set_epoch(epoch)
        return dl
    losses = plain_loop(model, opt, of_epoch, n_epochs)
    return weights(model), losses

def learner(make, hooks=()):
    torch.manual_seed(5)
    model = torch.nn.Linear(4, 3)
    return make_learner(model, make(), optim=torch.optim.SGD(model.parameters(), lr=.1), seed=7, hooks=hooks)

@pytest.mark.filterwarnings('ignore:resume. train_dl')
@pytest.mark.parametrize('key', CASES)
def test_each_pass_is_told_its_epoch_also_after_a_resume(key, tmp_path):
    make, path = CASES[key]
    expected, losses = plain(make, path, 3)
    learn, *_ = check_resume(lambda: learner(make), tmp_path, stop_at(7), n_epochs=3)
    assert same(weights(learn.model), expected) and learn.history.steps['train_loss'] == pytest.approx(losses)

def test_it_is_told_once_for_a_pass_and_by_nobody_else():
    told = []
    class Sampler(RandomSampler):
        def set_epoch(self, epoch): told.append(epoch)
    dl = stock(sampler=Sampler(range(24), generator=torch.Generator()))
    learn = make_learner(train_dl=dl, valid_dl=stock(sampler=Sampler(range(5))))
    learn.fit(2, valid_every=3)
    learn.validate()
    learn.fit(1)
    assert told == [0, 1, 2]

def test_workers_that_stay_have_the_dataset_of_their_epoch():
    "Those of a SeededLoader, whose copies nobody tells, are started again"
    def make(n_workers):
        return SeededLoader(Points(), 5, shuffle=True, num_workers=n_workers,
                            generator=torch.Generator().manual_seed(0))
    few, many = (learner(lambda: make(n)) for n in (0, 1))
    for o in few, many: o.fit(2)
    assert same(weights(few.model), weights(many.model)) and few.train_dl.dataset.dataset.epoch == 1
    many.train_dl._iterator._shutdown_workers()

@pytest.mark.parametrize('sizes, how', [((24, 12), 'set_epoch'), ((12, 24), 'before_epoch')])
def test_an_epoch_of_another_length_has_whole_windows(sizes, how):
    "The last window of each epoch is stepped with, wherever it ends"
    class Course(Points):
        n = sizes[0]
        def set_epoch(self, epoch):
            super().set_epoch(epoch)
            if how == 'set_epoch': self.n = sizes[epoch]
        def __len__(self): return self.n
    steps, data = [], Course()
    def begin(learn):
        if how == 'before_epoch': data.n = sizes[learn.state.epoch]
    look = LambdaHook(before_epoch=begin, after_step=lambda learn: steps.append((learn.stepped, learn.n_batches)))
    learn = make_learner(train_dl=stock(data, batch_size=2), hooks=[GradAccum(4), look])
    learn.fit(2)
    expected = [((i + 1) % 4 == 0 or i + 1 == n//2, n//2) for n in sizes for i in range(n//2)]
    assert steps == expected

@pytest.mark.filterwarnings('ignore:resume. train_dl')
@pytest.mark.parametrize('key', ['sampler', 'dataset', 'loader', 'dataset in workers'])
def test_what_a_hook_sets_wins_also_after_a_resume(key, tmp_path):
    "Epochs in another order, one of them twice"
    make, path = CASES[key]
    told = [3, 0, 0]
    def part(dl): return attrgetter(path)(dl) if path else dl
    tell = LambdaHook(before_epoch=lambda learn: part(learn.train_dl).set_epoch(told[learn.state.epoch]))
    learn, *_ = check_resume(lambda: learner(make, [tell]), tmp_path, stop_at(7), n_epochs=3)
    torch.manual_seed(5)
    model, dl = torch.nn.Linear(4, 3), make()
    opt = torch.optim.SGD(model.parameters(), lr=.1)
    torch.manual_seed(7)
    def of_epoch(epoch):
        part(dl).set_epoch(told[epoch])
        return dl
    losses = plain_loop(model, opt, of_epoch, 3)
    assert same(weights(learn.model), weights(model)) and learn.history.steps['train_loss'] == pytest.approx(losses)
