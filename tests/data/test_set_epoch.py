"Samplers, datasets and loaders that seed themselves by the epoch are told its number, as in a plain loop"
from operator import attrgetter

import pytest, torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler, RandomSampler

from common import check_resume, make_learner, plain_loop, problem, same, stop_at, weights
from trainer_nb.all import GradAccum, LambdaHook, SeededLoader
from trainer_nb.data import end_workers

X, Y = problem()

def order(epoch, n=24): return torch.randperm(n, generator=torch.Generator().manual_seed(epoch)).tolist()

class Points(Dataset):
    "Its samples depend on the epoch"
    epoch, n = None, 24
    def set_epoch(self, epoch): self.epoch = epoch
    def __len__(self): return self.n
    def __getitem__(self, i): return X[i]*(1 + self.epoch), Y[i]

class Loader:
    "Any iterable"
    def set_epoch(self, epoch): self.epoch = epoch
    def __len__(self): return 5
    def __iter__(self): return ((X[i], Y[i]) for i in torch.tensor(order(self.epoch)).split(5))

class Shuffles(list):
    "It shuffles when it is told, at random"
    def set_epoch(self, epoch): self[:] = torch.randperm(24).tolist()

def stock(data=None, **kwargs): return DataLoader(data or list(zip(X, Y)), **{'batch_size': 5, **kwargs})

CASES = {   # name: loader, and what a plain loop tells
    'sampler': (lambda: stock(sampler=DistributedSampler(range(24), num_replicas=1, rank=0, seed=3)), 'sampler'),
    'dataset': (lambda: stock(Points(), shuffle=True), 'dataset'),
    'dataset in workers': (lambda: stock(Points(), shuffle=True, num_workers=1), 'dataset'),
    'loader': (Loader, ''),
    'a shuffle when told': (lambda: stock(sampler=Shuffles(range(24))), 'sampler'),
}

@pytest.mark.filterwarnings('ignore:resume. train_dl')
@pytest.mark.parametrize('key', CASES)
def test_each_pass_is_told_its_epoch_also_after_a_resume(key, tmp_path):
    make, path = CASES[key]
    def start():
        torch.manual_seed(5)
        model = torch.nn.Linear(4, 3)
        return model, torch.optim.SGD(model.parameters(), lr=.1)
    def learner():
        model, opt = start()
        return make_learner(model, make(), optim=opt, seed=7)
    (model, opt), dl = start(), make()
    torch.manual_seed(7)
    def of_epoch(epoch):
        (attrgetter(path)(dl) if path else dl).set_epoch(epoch)
        return dl
    losses = plain_loop(model, opt, of_epoch, 3)
    learn, *_ = check_resume(learner, tmp_path, stop_at(7), n_epochs=3)
    assert same(weights(learn.model), weights(model)) and learn.history.steps['train_loss'] == pytest.approx(losses)

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

@pytest.mark.parametrize('cls', [DataLoader, SeededLoader])
def test_workers_that_stay_have_the_dataset_of_their_epoch(cls):
    "They have copies, which nobody tells: they are started again"
    seen = []
    look = LambdaHook(before_step=lambda learn: seen.append(learn.batch[0]))
    learn = make_learner(train_dl=cls(Points(), 24, num_workers=1, persistent_workers=True), hooks=[look])
    learn.fit(3)
    end_workers(learn.train_dl)
    assert same(seen, [X*(1 + epoch) for epoch in range(3)])

@pytest.mark.parametrize('sizes', [(24, 12), (12, 24)])
def test_an_epoch_of_another_length_has_whole_windows(sizes):
    "The last window of each epoch is stepped with, wherever it ends"
    class Course(Points):
        def set_epoch(self, epoch): self.epoch, self.n = epoch, sizes[epoch]
    steps = []
    look = LambdaHook(after_step=lambda learn: steps.append((learn.stepped, learn.n_batches)))
    make_learner(train_dl=stock(Course(), batch_size=2), hooks=[GradAccum(4), look]).fit(2)
    assert steps == [((i + 1) % 4 == 0 or i + 1 == n//2, n//2) for n in sizes for i in range(n//2)]
