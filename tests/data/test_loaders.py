"Loaders: what a pass costs in waiting, and a stop in the middle of one that is copied beside a GPU's work"

import random

import numpy as np, pytest, torch
from torch.utils.data import DataLoader

from common import make_learner, problem, same
from trainer_nb.base import rng_state, set_seed
from trainer_nb.data import TensorLoader
from trainer_nb.loop.hooks import LambdaHook
from trainer_nb.data import Pass


def test_a_read_only_array_is_copied_without_a_warning(recwarn):
    x = np.broadcast_to(np.float32(1), (10, 3))
    for xb, in TensorLoader(x, bs=4): xb.zero_()
    assert (x == 1).all() and not recwarn.list

@pytest.mark.parametrize('wait, work, said, n', [(.3, .1, 75, 1000), (.01, .1, 0, 5), (.004, .001, 80, 5)])
def test_the_status_says_that_the_loop_waits(wait, work, said, n, monkeypatch):
    "And nothing in the first two seconds, nor where it does not wait; validation does not count"
    now, lines = [0.], []
    def clock(): return now[0]
    class Loader:
        def __init__(self, n, wait): self.n, self.wait = n, wait
        def __len__(self): return self.n
        def __iter__(self):
            for _ in range(self.n):
                now[0] += self.wait
                yield torch.zeros(1, 4), torch.zeros(1, dtype=torch.long)
    def look(learn):
        now[0] += work
        if clock() > look.next:       # as the display does, now and then
            lines.append((clock(), learn.display.status(learn).text()))
            look.next = clock() + .2
    look.next = 0
    for o in 'data.passes', 'show.display': monkeypatch.setattr(f'trainer_nb.{o}.perf_counter', clock)
    learn = make_learner(train_dl=Loader(n, wait), valid_dl=Loader(3, 0), hooks=[LambdaHook(after_step=look)],
                         display='text')
    learn.fit(max_steps=1000)
    assert all(('waiting for data' in o) == bool(said and t > 4) for t, o in lines if t > 4 or t < 1.8)
    if said:
        shares = [int(o.split('waiting for data: ')[1].split(' %')[0]) for t, o in lines if t > 4]
        assert 'the Loader is slower than the model' in lines[-1][1] and all(abs(o - said) <= 2 for o in shares)
    assert learn.display.screen is None

class Own(TensorLoader):
    "Draws its order from Python's stream, of which its base class knows nothing"
    def iter_from(self, start):
        order = random.sample(range(len(self.tensors[0])), len(self.tensors[0]))
        return iter([(self.tensors[0][order[i:i + self.bs]],) for i in range(start*self.bs, len(order), self.bs)])

def test_a_pass_over_a_subclass_goes_on_elsewhere_whatever_it_draws_from():
    set_seed(0)
    dl = Own(torch.arange(12.), bs=2)
    pass_, seen = Pass(dl), []
    for batch in pass_:
        seen.append(batch.data[0])
        pass_.done()
        if pass_.n == 2: break
    state = pass_.state_dict()
    rest = [batch.data[0] for batch in pass_]
    assert torch.equal(torch.cat(seen + rest).sort().values, torch.arange(12.)) and len(rest) == 4
    set_seed(99)
    before, again = rng_state(), Pass(dl)
    again.load_state_dict(state)
    assert same([batch.data[0] for batch in again], rest)
    assert rng_state()['python'] == before['python'] and torch.equal(rng_state()['torch'], before['torch'])

class Rising(torch.nn.Module):
    "Writes to its input"
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 3)

    def forward(self, x, **kwargs): return self.linear(x.relu_().sub_(1))

def test_a_step_that_writes_in_place_leaves_the_users_data_alone():
    "Tensors of a tuple, in each verb; the values are those of a loop over copies"
    x, y = problem()
    valid, train = (x.clone(), y.clone()), TensorLoader(x.clone(), y.clone(), bs=5)
    learn = make_learner(Rising(), train, valid, bs=5, eval_step=lambda b, learn: learn.train_step([b[0], b[1]]))
    learn.fit(2)
    with torch.no_grad(): loss = torch.nn.functional.cross_entropy(learn.model(x.clone()), y)
    assert learn.validate()['valid_loss'] == pytest.approx(loss.item(), rel=1e-5)
    learn.predict(valid)
    learn.eval_step = lambda batch, learn: {'pred': learn.model(**batch)}
    learn.predict({'x': valid[0]})
    assert all(o.equal(x) for o in (valid[0], train.tensors[0])) and valid[1].equal(y)

class Whole(torch.utils.data.IterableDataset):
    def __init__(self, sharded=False, constant=False): self.sharded, self.constant = sharded, constant
    def __iter__(self):
        info = torch.utils.data.get_worker_info()
        samples = [(x*(not self.constant), y*(not self.constant)) for x, y in zip(*problem())]
        return iter(samples[info.id::info.num_workers] if self.sharded else samples)

@pytest.mark.parametrize('dataset, n_workers', [(Whole(), 2), (Whole(), 1), (Whole(True), 2), (Whole(False, True), 2)])
def test_workers_that_all_read_the_whole_data_are_told_of(dataset, n_workers, recwarn):
    dl = DataLoader(dataset, 5, num_workers=n_workers)
    assert len(list(Pass(dl))) == len(list(dl))
    told = [str(o.message) for o in recwarn if 'get_worker_info' in str(o.message)]
    assert len(told) == (n_workers == 2 and not dataset.sharded and not dataset.constant)

@pytest.mark.parametrize('data', [(torch.ones(3), torch.ones(3)), [1, 2]], ids=['tuple', 'list'])
def test_a_tensor_loader_takes_tensors_one_by_one(data):
    with pytest.raises(TypeError, match=rf'got a {type(data).__name__}: expected tensors or arrays, one by one'):
        TensorLoader(data)
