"A pass that ends early, is longer than it claims, or finds another loader equals a plain loop, or is refused"
import multiprocessing
from itertools import islice

import psutil, pytest, torch, torch.nn.functional as F
from torch.optim import SGD
from torch.utils.data import DataLoader

from common import (
    Noisy, Stream, alive, batches, check_resume, digest, make_learner, make_model, plain_loop, problem, same, shuffled,
    stop_at, stop_when, told, weights
)
from trainer_nb.all import CancelEpoch, GradAccum, LambdaHook, Loaders
from trainer_nb.data import end_workers, is_warm

SAMPLES = list(zip(*problem()))

def loader(): return DataLoader(Noisy(*problem()), batch_size=5, shuffle=True, num_workers=1, persistent_workers=True)

def test_passes_that_end_early_keep_persistent_workers_as_break_does():
    "Their random states, and the order of the next pass, are those of a plain loop with `break`"
    torch.manual_seed(0)
    model, dl = make_model(), loader()
    plain_loop(model, SGD(model.parameters(), lr=.1), lambda epoch: islice(dl, 4), 4)
    torch.manual_seed(0)
    learn = make_learner(make_model(), loader(), optim=SGD, lr=.1)
    def cancel(learn):
        if learn.state.batch_idx == 4: raise CancelEpoch
    for _ in range(2): learn.fit(max_steps=4)
    learn.fit(2, hooks=[LambdaHook(after_step=cancel)])
    assert same(weights(model), weights(learn.model))

@pytest.mark.parametrize('make', [loader, lambda: Loaders({'a': loader()})], ids=['stock', 'several'])
def test_a_pass_inside_another_one_over_kept_workers_leaves_it_alone(make):
    "torch has one iterator for both: the second pass would end the first one"
    dl, n = make(), []
    def look(learn):
        if learn.training and learn.state.batch_idx == 2: n.append(len(learn.predict(dl)))
    def step(batch, learn):
        x, y = batch['a'] if isinstance(batch, dict) else batch
        pred = learn.model(x)
        return {'loss': F.cross_entropy(pred, y), 'pred': pred, 'targ': y}
    learn = make_learner(train_dl=dl, valid_dl=dl, train_step=step, hooks=[LambdaHook(after_step=look)])
    learn.fit(2, valid_every=2)
    assert learn.state.optimizer_step == 10 and n == [24]*2
    assert is_warm(dl) and len(multiprocessing.active_children()) <= 1
    end_workers(dl)

# Loaders that do not know their length

class Claims:
    "Says that it has `n` batches"
    def __init__(self, n): self.n = n
    def __len__(self): return self.n
    def __iter__(self): return iter(batches())

class Short(DataLoader):
    def __iter__(self): return islice(super().__iter__(), 5)

@pytest.mark.parametrize('dl', [Claims(3), Claims(7), Short(SAMPLES + SAMPLES[:11], batch_size=5)],
                         ids=['fewer', 'more', 'subclass'])
def test_accumulation_over_a_loader_with_a_wrong_length(dl):
    "The windows of five batches are (3, 2) samples: the last one is stepped with its own weight, once"
    torch.manual_seed(0)
    model, data = make_model().eval(), list(dl)
    windows = [[torch.cat(o) for o in zip(*w)] for w in (data[:3], data[3:])]
    plain_loop(model, SGD(model.parameters(), lr=.1), windows, 2)
    torch.manual_seed(0)
    learn = make_learner(make_model(), dl, optim=SGD, lr=.1,
                         hooks=[GradAccum(3), LambdaHook(before_step=lambda learn: learn.model.eval())])
    learn.fit(2)
    assert learn.state.optimizer_step == 4 and len(data) == 5
    for a, b in zip(weights(model), weights(learn.model)): torch.testing.assert_close(a, b)

class Drawn:
    "Of unknown number; each batch moves the global stream"
    def __iter__(self):
        for batch in batches():
            torch.rand(7)
            yield batch

STOP = stop_when(lambda learn: (learn.state.epoch, learn.state.batch_idx) == (1, 2))

@pytest.mark.parametrize('kind', ['drawn', 'stateful'])
def test_a_batch_that_was_read_ahead_is_neither_lost_nor_drawn_twice(tmp_path, kind):
    "Accumulation asks whether there is a next one, and a checkpoint is saved then"
    if kind == 'stateful': stateful = pytest.importorskip('torchdata.stateful_dataloader').StatefulDataLoader
    def make():
        torch.manual_seed(0)
        return make_learner(make_model(), Drawn() if kind == 'drawn' else stateful(Stream(SAMPLES), batch_size=5),
                            hooks=[GradAccum(3)])
    with told(): check_resume(make, tmp_path, STOP, n_epochs=2)

# Wrappers

class DeviceLoader:
    "As everybody has written one: it moves the batches of a loader"
    def __init__(self, loader, name): setattr(self, name, loader)
    def __len__(self): return len(*vars(self).values())
    def __iter__(self):
        for batch in [*vars(self).values()][0]: yield [o.to('cpu') for o in batch]

@pytest.mark.filterwarnings('ignore:resume. train_dl')
@pytest.mark.parametrize('name, stays', [('dl', False), ('dataloader', True)])
def test_a_wrapper_is_looked_through(name, stays, tmp_path):
    "The generator of the loader inside is part of a stop, and no worker is left of it"
    def make():
        torch.manual_seed(0)
        dl = shuffled(generator=torch.Generator().manual_seed(3), num_workers=1, persistent_workers=stays)
        return make_learner(train_dl=DeviceLoader(dl, name))
    before = {o.pid for o in psutil.Process().children(recursive=True)}
    check_resume(make, tmp_path, stop_at(7), n_epochs=2)
    make().fit(1, hooks=stop_at(4))
    assert not [o for o in psutil.Process().children(recursive=True) if o.pid not in before and alive(o.pid)]

# Other loaders

def test_a_loader_that_a_hook_replaces_is_used_from_the_next_epoch_on_or_refused():
    n = []
    def replace(learn): learn.train_dl = batches(bs=12)
    count = LambdaHook(after_step=lambda learn: n.append(learn.n_batches))
    make_learner(train_dl=batches(), hooks=[count, LambdaHook(after_epoch=replace)]).fit(2)
    assert n == [5]*5 + [2]*2
    with pytest.raises(ValueError, match='replaced train_dl in before_epoch'):
        make_learner(train_dl=batches(), hooks=[LambdaHook(before_epoch=replace)]).fit(2)

def test_another_loader_in_the_middle_of_a_pass_is_refused(tmp_path):
    "Nothing has changed: with the first one it goes on as if nothing had happened, also from a file"
    def make(seed, *hooks):
        torch.manual_seed(seed)
        return make_learner(train_dl=shuffled(), seed=7, hooks=[GradAccum(3), *hooks])
    whole, stopped, loaded = make(0), make(0, STOP), make(1)
    whole.fit(2)
    stopped.fit(2)
    stopped.save(tmp_path/'state.pt')
    loaded.load(tmp_path/'state.pt')
    for learn in stopped, loaded:
        first, learn.train_dl = learn.train_dl, batches(40)
        with pytest.raises(ValueError, match='train_dl was replaced.* 2 batches.*put the first'): learn.resume()
        learn.train_dl = first
        learn.resume()
        assert digest(learn) == digest(whole)
