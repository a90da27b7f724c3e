"`find_batch_size`: a tenth below the true limit, and nothing about the learner changes"
import pytest, torch
from torch import nn

from common import make_learner
from trainer_nb.show.batch_size import _Search

def data(n=600): return torch.randn(n, 4), torch.randint(3, (n,))

class Limited(nn.Module):
    "Finds no memory for more than `most` samples"
    def __init__(self, most, error=None):
        super().__init__()
        self.lin, self.norm, self.most, self.error = nn.Linear(4, 3), nn.BatchNorm1d(3), most, error
    def forward(self, x):
        if len(x) > self.most:
            if self.error: raise self.error
            torch.empty(2**52)
        return self.norm(self.lin(x))

@pytest.mark.parametrize('most, error', [(3, None), (100, torch.OutOfMemoryError('CUDA out of memory'))], ids=str)
def test_a_tenth_below_the_true_limit(most, error, monkeypatch):
    monkeypatch.setattr(_Search, 'step', lambda self: self.r.train_batch() and 1.)      # larger batches are faster
    found = make_learner(Limited(most, error), data(), bs=16).find_batch_size()
    assert .9*.95*most - 1 <= found.largest <= max(.9*most, 1) and found.outcome == 'memory' and found.failed > most
    assert found.fastest <= found.largest and found.sizes == sorted(found.sizes)
    if most == 3: assert 'do not fit' in found.advice and 'GradAccum(' in found.advice

def test_samples_of_a_generator_and_what_does_not_fit():
    class Stream:
        def __iter__(self):
            while True: yield torch.randn(5, 4), torch.zeros(5).long()
    found = make_learner(Limited(30), Stream()).find_batch_size(most=24)
    assert found.sizes[0] == 2 and found.current == 5 and found.sizes[-1] <= 24     # batch norm needs two
    learn = make_learner(Limited(30), data(), data(64), bs=40)
    with pytest.raises(RuntimeError, match="can't allocate") as e: learn.find_batch_size()
    assert 'smaller batches in valid_dl' in '\n'.join(e.value.__notes__)
    found = make_learner(Limited(.5), data(64), bs=4).find_batch_size()
    assert found.largest is found.fastest is None and 'not even the smallest' in str(found)
