"Loaders: the user's data stay as they are, what a pass costs in waiting, and what workers read"
import numpy as np, pytest, torch, torch.nn.functional as F
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from common import make_learner, problem
from trainer_nb.data import Pass, TensorLoader
from trainer_nb.loop.hooks import LambdaHook

class Loader:
    "Each of its batches takes a while, on a clock"
    def __init__(self, n, wait, clock): self.n, self.wait, self.clock = n, wait, clock
    def __len__(self): return self.n
    def __iter__(self):
        for _ in range(self.n):
            self.clock.s += self.wait
            yield torch.zeros(1, 4), torch.zeros(1, dtype=torch.long)

class Clock:
    s = 0.
    def __call__(self): return self.s

@pytest.mark.parametrize('wait, work, percent, n', [(.3, .1, 75, 200), (.01, .1, 0, 5), (.04, .01, 80, 5)])
def test_the_status_says_that_the_loop_waits(wait, work, percent, n, monkeypatch):
    "And nothing in the first two seconds, nor where it does not wait; validation does not count"
    clock, lines = Clock(), []
    def look(learn):
        clock.s += work
        if not lines or clock.s > lines[-1][0] + .2:      # as the display does, now and then
            lines.append((clock.s, learn.display.status(learn).text()))
    for o in 'data.passes', 'show.display': monkeypatch.setattr(f'trainer_nb.{o}.perf_counter', clock)
    learn = make_learner(train_dl=Loader(n, wait, clock), valid_dl=Loader(3, 0, clock),
                         hooks=[LambdaHook(after_step=look)], display='text')
    learn.fit(max_steps=200)
    assert all(('waiting for data' in o) == (percent > 0 and t > 4) for t, o in lines if t > 4 or t < 1.8)
    if percent:
        shares = [int(o.split('waiting for data: ')[1].split(' %')[0]) for t, o in lines if t > 4]
        assert 'Loader is slower than the model' in lines[-1][1] and all(abs(o - percent) <= 2 for o in shares)

def test_a_tensor_alone_is_data_without_targets():
    "As of a GAN: its batches are those of `(x,)`; a loss function that needs a target refuses it at once"
    x, y = problem()
    def step(batch, learn):
        real, = batch
        return {'loss': learn.model(real).square().mean()}
    def losses(*data):
        torch.manual_seed(0)
        learn = make_learner(torch.nn.Linear(4, 1), *data, train_step=step, bs=8, seed=0)
        learn.fit(2)
        return [learn.history.epochs[k] for k in ('train_loss', 'valid_loss')]
    expected = losses((x,), (x[:8],))
    assert losses(x, x[:8]) == losses(x.numpy(), x[:8].numpy()) == expected
    for data in (x, None), ((x, y), y):
        with pytest.raises(TypeError, match='Tensor alone has no targets for loss_fn'): make_learner(None, *data)

class Rising(torch.nn.Linear):
    "Writes to its input"
    def forward(self, x, **kwargs): return super().forward(x.relu_().sub_(1))

def test_a_step_that_writes_in_place_leaves_the_users_data_alone(recwarn):
    "Tensors of a tuple, in each verb; the values are those of a loop over copies; and a read-only array"
    x, y = problem()
    valid, train = (x.clone(), y.clone()), TensorLoader(x.clone(), y.clone(), bs=5)
    learn = make_learner(Rising(4, 3), train, valid, bs=5, eval_step=lambda b, learn: learn.train_step([b[0], b[1]]))
    learn.fit(2)
    with torch.no_grad(): loss = F.cross_entropy(learn.model(x.clone()), y)
    assert learn.validate()['valid_loss'] == pytest.approx(loss.item(), rel=1e-5)
    learn.predict(valid)
    learn.eval_step = lambda batch, learn: {'pred': learn.model(**batch)}
    learn.predict({'x': valid[0]})
    assert all(o.equal(x) for o in (valid[0], train.tensors[0])) and valid[1].equal(y)
    ones = np.broadcast_to(np.float32(1), (10, 3))
    for xb, in TensorLoader(ones, bs=4): xb.zero_()
    assert (ones == 1).all() and not [o for o in recwarn if 'writable' in str(o.message)]

class Whole(IterableDataset):
    def __init__(self, sharded=False, constant=False): self.sharded, self.factor = sharded, 1 - constant
    def __iter__(self):
        info = get_worker_info()
        samples = [(x*self.factor, y*self.factor) for x, y in zip(*problem())]
        return iter(samples[info.id::info.num_workers] if self.sharded else samples)

@pytest.mark.parametrize('dataset, is_told', [(Whole(), True), (Whole(True), False), (Whole(False, True), False)],
                         ids=['whole', 'sharded', 'constant'])
def test_workers_that_all_read_the_whole_data_are_told_of(dataset, is_told, recwarn):
    dl = DataLoader(dataset, 5, num_workers=2)
    assert len(list(Pass(dl))) == (6 if dataset.sharded else 10)
    assert is_told == any('get_worker_info' in str(o.message) for o in recwarn)

def test_a_tensor_loader_takes_tensors_one_by_one():
    with pytest.raises(TypeError, match='got a tuple: .* one by one'): TensorLoader((torch.ones(3), torch.ones(3)))
