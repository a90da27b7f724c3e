"""What a checkpoint holds besides weights, under which names, and which validation it was judged by"""
import random, signal
from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest, torch
from torch import nn

from common import batches, digest, make_learner, same, stop_at, told, weights
from trainer_nb.all import Checkpoint, GradAccum, LambdaHook
from trainer_nb.save import checkpoint
from trainer_nb.save.files import BadCheckpoint, Lock

class Noisy(nn.Module):
    "Draws from generators of its own, counts its calls, and anneals a temperature"
    def __init__(self):
        super().__init__()
        self.out, self.drop, self.n, self.heat, self.p, self.kind = nn.Linear(4, 3), nn.Dropout(.5), 0, 1., .5, 'a'
        self.torchs, self.pythons = torch.Generator().manual_seed(3), random.Random(4)
        self.olds, self.numpys = np.random.RandomState(5), np.random.default_rng(6)

    def forward(self, x):
        self.n += 1
        self.heat *= .9
        if self.n > 7: self.kind = 'b'
        noise = self.pythons.random()*self.olds.rand()*self.numpys.random()*self.heat
        return self.out(self.drop(x + float(noise)*torch.rand(x.shape, generator=self.torchs)))

def attributes(model): return model.n, model.heat, model.kind, model.p

def noisy(*hooks, seed=0):
    torch.manual_seed(seed)
    return make_learner(Noisy(), batches(), batches(seed=2), hooks=hooks, seed=1)

def test_generators_and_counters_of_a_model_are_restored(tmp_path):
    "In a new learner, and in the same one by rewind to where one had not changed yet; the user's own changes stay"
    whole = noisy(Checkpoint(tmp_path/'a', every=1, keep=99))
    whole.fit(2)
    noisy().fit(2, hooks=[stop_at(3), Checkpoint(tmp_path/'b')])
    again = noisy(Checkpoint(tmp_path/'b'), seed=5)
    again.model.p = .7
    with told() as said: again.fit(2, resume=True)
    assert digest(again) == digest(whole) and not said
    assert attributes(again.model) == (*attributes(whole.model)[:3], .7)
    expected, whole.model.p = digest(whole), .2
    whole.rewind(step=1)
    assert attributes(whole.model) == (1, .9, 'a', .2)
    whole.resume()
    assert digest(whole) == expected and attributes(whole.model)[:3] == attributes(again.model)[:3]

def test_collections_of_a_model_that_changed_are_named(tmp_path):
    class Listing(nn.Linear):
        def __init__(self):
            super().__init__(4, 3)
            self.seen, self.sizes = [], {4: 3}
        def forward(self, x):
            self.seen.append(len(x))
            return super().forward(x)
    learn = make_learner(Listing(), batches(), hooks=[Checkpoint(tmp_path)])
    with told() as said: learn.fit(1)
    assert len(said) == 1 and 'no checkpoint holds model.seen, which changed' in said[0]
    with told() as said: make_learner(Listing(), batches()).load(tmp_path)
    assert len(said) == 1 and 'model.seen changed in the fit, and the checkpoint does not hold it' in said[0]

WRAPS = {'plain': lambda m: m, 'compiled': lambda m: torch.compile(m, backend='eager'), 'parallel': nn.DataParallel,
         'inside': lambda m: nn.Sequential(torch.compile(m[0], backend='eager'), *m[1:])}

@pytest.mark.parametrize('there, here', [*product(WRAPS, WRAPS)])
def test_wrapped_models_save_and_load_plain_names(tmp_path, there, here):
    def make(kind, seed, *hooks):
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.BatchNorm1d(8), nn.Linear(8, 3))
        return make_learner(WRAPS[kind](model), batches(), batches(seed=2), hooks=hooks, seed=1)
    learn, other = make(there, 0, Checkpoint(tmp_path)), make(here, 5)
    learn.fit(2, hooks=[stop_at(7)])
    state = torch.load(max(tmp_path.glob('*.pt')), weights_only=True)
    assert [*state['modules']['model']['state']] == [*make('plain', 0).model.state_dict()]
    other.load(tmp_path)
    assert same(weights(other.model), weights(learn.model))
    for o in learn, other: o.resume()
    assert other.history.steps == learn.history.steps and same(weights(other.model), weights(learn.model))
    other.load_best(tmp_path)

def test_a_bare_state_dict_says_what_it_is(tmp_path):
    torch.save((learn := make_learner()).model.state_dict(), tmp_path/'a.pt')
    with pytest.raises(BadCheckpoint, match=r"state_dict of a module, model.load_state_dict\(torch.load\('a.pt'\)\)"):
        learn.load(tmp_path/'a.pt')

# Which validation

def rising(folder, monitor='valid_loss', **kwargs):
    "Good for ten steps, then worse and worse"
    def step(batch, learn):
        loss = nn.functional.cross_entropy(learn.model(batch[0]), batch[1])
        return {'loss': loss if not learn.training or learn.state.optimizer_step < 10 else -loss}
    hook = Checkpoint(folder, monitor=monitor, **kwargs)
    return make_learner(nn.Linear(4, 3), batches()*8, batches(), train_step=step, lr=.1, optim=torch.optim.SGD,
                        hooks=[hook])

def test_each_validation_is_judged_and_the_best_one_saved_there(tmp_path):
    learn, seen = rising(tmp_path, every=1000, keep=1), []
    learn.fit(max_steps=60, valid_every=5, hooks=[LambdaHook(after_valid=lambda o: seen.append(weights(o.model)))])
    losses = learn.history.valids['valid_loss']
    best = losses.index(min(losses))
    assert 0 < best < len(losses) - 2 and learn.history.valid_rows[best]['step'] % 40
    found = learn.get_hook('Checkpoint').folder.manifests()
    assert [o['step'] for o in found] == [learn.history.valid_rows[best]['step'], 60]
    assert found[0]['metric'] == min(losses) and found[1]['metric'] == losses[-1] and found[0]['in_epoch']
    for o in learn, rising(tmp_path/'other'):
        o.load_best(tmp_path)
        assert same(weights(o.model), seen[best]) and o.validate()['valid_loss'] == pytest.approx(min(losses))
    again = rising(tmp_path)
    again.load(tmp_path/found[0]['file'])
    assert same(weights(again.model), seen[best]) and 'valid' not in again.position

def test_a_column_of_epochs_alone_is_judged_after_each(tmp_path):
    learn = rising(tmp_path, 'train_loss', every=7, keep=99, mode='max')
    learn.fit(2, valid_every=5)
    found = learn.get_hook('Checkpoint').folder.manifests()
    rated = [(o['epoch'], o['metric']) for o in found if o['metric'] is not None]
    losses = learn.history.epochs['train_loss']
    assert rated[:1] == [(1, losses[0])] and rated[-1] == (2, losses[1]) and len(rated) == 2
    learn.load_best()

def test_a_validation_of_earlier_weights_does_not_rate_an_epoch(tmp_path):
    learn = rising(tmp_path, keep=99)
    learn.fit(2, valid_every=15, valid_every_epochs=2)
    of_epochs = [o for o in learn.get_hook('Checkpoint').folder.manifests() if not o['in_epoch']]
    assert [o['metric'] is None for o in of_epochs] == [True, False]

# Once is enough

def test_the_state_is_tried_once(tmp_path, monkeypatch):
    "Not in each batch until the first optimizer step, nor in validation"
    n, real = [], checkpoint.capture
    monkeypatch.setattr(checkpoint, 'capture', lambda *args, **kwargs: n.append(1) or real(*args, **kwargs))
    learn = make_learner(None, batches(), batches(seed=2), hooks=[GradAccum(4), Checkpoint(tmp_path, monitor=None)])
    learn.fit(1, valid_first=True)
    assert len(n) == 2      # tried, and saved

def test_a_lock_that_cannot_be_written_is_given_back(tmp_path):
    import resource
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    old, lock = signal.signal(signal.SIGXFSZ, signal.SIG_IGN), Lock(tmp_path)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
        seen = []       # an error that is kept holds what its frames hold
        for _ in range(2):
            with pytest.raises(OSError, match='File too large') as e: lock.acquire()
            seen.append(e.value)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, old)
    lock.acquire()
    assert (tmp_path/'.lock').read_text().startswith('process')
    lock.release()

def test_an_error_of_one_rank_is_raised_on_all():
    def rank(n, first): return SimpleNamespace(is_main=n == 0, world=SimpleNamespace(first=first))
    def fail(): raise FileNotFoundError('here')
    with pytest.raises(FileNotFoundError): checkpoint._agreed(rank(0, lambda x: x), fail)
    with pytest.raises(ValueError): checkpoint._agreed(rank(1, lambda x: ValueError('there')), lambda: 1)
    assert checkpoint._agreed(rank(1, lambda x: 2), fail) == 2

def test_sparse_gradients_of_an_open_window(tmp_path):
    def make():
        torch.manual_seed(0)
        net, data = torch.nn.Embedding(9, 3, sparse=True), [(torch.tensor([i, 8 - i]), torch.tensor([0, 1]))
                                                           for i in range(4)]
        return make_learner(net, data, optim=torch.optim.SGD, lr=.1, hooks=[GradAccum(4), Checkpoint(tmp_path)])
    (whole := make()).fit(1)
    make().fit(1, hooks=[stop_at(3)])
    (other := make()).fit(1, resume=True)
    assert torch.equal(other.model.weight, whole.model.weight)
