"`find_batch_size`: within 10 % of the true limit, and nothing about the learner changes"

import pytest, torch
from torch import nn

from common import make_learner
from trainer_nb.all import GradClip, LambdaHook
from trainer_nb.base import TensorMeter

def data(n=600, width=4): return torch.randn(n, width), torch.randint(3, (n,))

class Limited(nn.Module):
    "Finds no memory for more than `most` samples"
    def __init__(self, most, error=None):
        super().__init__()
        self.lin, self.drop, self.most, self.error = nn.Linear(4, 3), nn.Dropout(.5), most, error
        self.norm = nn.BatchNorm1d(3)
    def forward(self, x):
        if self.most and len(x) > self.most:
            if self.error: raise self.error
            torch.empty(2**52)
        return self.drop(self.norm(self.lin(x)))

@pytest.mark.parametrize('most, error', [
    (3, None), (100, torch.OutOfMemoryError('CUDA out of memory')), (100, MemoryError())], ids=str)
def test_within_a_tenth_of_the_true_limit(most, error):
    found = make_learner(Limited(most, error), data(), bs=16).find_batch_size(limit=2**40)
    assert .95*most - 1 <= found.largest <= most and found.outcome == 'memory' and found.failed > most
    assert found.fastest <= found.largest and found.sizes == sorted(found.sizes)
    if most == 3: assert 'do not fit' in found.advice and 'GradAccum(' in found.advice

def wide(): return nn.Sequential(nn.Linear(64, 500), nn.Tanh(), nn.Linear(500, 500), nn.Tanh(), nn.Linear(500, 3))

def true_peak(hooks, size):
    "What a step of a fit takes, after another one: tensors there were, and those that it makes"
    learn = make_learner(wide(), [tuple(o[:size] for o in data(3000, 64))]*2, hooks=hooks)
    meter, held = TensorMeter(), []
    def before(learn):
        if learn.state.batch_idx: meter.__enter__()
    def after(learn):
        if learn.state.batch_idx == 2: meter.__exit__(None, None, None)
        else: held.append(sum(o.nbytes for o in (*learn.model.parameters(), *(
            v for s in learn.opt.state.values() for v in s.values() if isinstance(v, torch.Tensor)))))
    learn.fit(1, hooks=[LambdaHook(before_step=before, ord=-999), LambdaHook(after_step=after, ord=999)])
    x, y = learn.train_dl[0]
    return held[0] + meter.peak + x.nbytes + y.nbytes

def test_a_given_limit_is_kept_and_used(hooks=(GradClip(1.),)):
    "The peak of a real step at the size found is at most 90 % of the limit, and close to it"
    limit = 16*2**20
    found = make_learner(wide(), data(3000, 64), bs=64, hooks=hooks).find_batch_size(limit=limit)
    assert .9*.95*.95*limit < true_peak(hooks, found.largest) <= .9*limit and found.outcome == 'memory'
    assert make_learner(wide(), data(3000, 64)).find_batch_size(limit=limit/2**30, most=5).limit == limit

def test_with_batch_norm_in_samples_of_a_generator_and_a_validation_that_does_not_fit():
    class Stream:
        def __iter__(self):
            while True: yield torch.randn(5, 4), torch.zeros(5).long()
    found = make_learner(nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)), Stream()).find_batch_size(most=24)
    assert found.sizes[0] == 2 and found.current == 5 and found.sizes[-1] <= 24
    learn = make_learner(Limited(30), data(), data(64), bs=40)
    with pytest.raises(RuntimeError, match="can't allocate") as e: learn.find_batch_size()
    assert 'smaller batches in valid_dl' in '\n'.join(e.value.__notes__)

def test_what_cannot_be_joined_is_told():
    ragged = [(torch.zeros(4, n), torch.zeros(4).long()) for n in (4, 5, 6)]
    class Net(nn.Linear):
        def forward(self, x): return super().forward(x[:, :4])
    learn = make_learner(Net(4, 3), ragged)
    with pytest.raises(ValueError, match=r'shapes \(4, 4\), \(4, 5\) cannot be joined: pad them'):
        learn.find_batch_size()
    for wrong in 0, -1, True, '4':
        with pytest.raises(ValueError, match='limit is'): learn.find_batch_size(limit=wrong)
    with pytest.raises(ValueError, match='most'): learn.find_batch_size(most=0)

def test_nothing_fits():
    found = make_learner(Limited(None), data(64), bs=4).find_batch_size(limit=1)
    assert found.largest is found.fastest is None and 'not even the smallest' in str(found)
    found.chart().png()
