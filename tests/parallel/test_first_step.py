"A loss that several processes cannot train on is refused at the first batch; what is compared leaves no trace"
import random

import pytest, torch, torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader

from common import weights
from trainer_nb.all import Accelerate
from trainer_nb.data import end_workers
from test_distributed import DATA, SAMPLES, learner

def summed(pred, targ): return F.cross_entropy(pred, targ, reduction='sum')
def contrast(pred, targ): return F.cross_entropy(pred @ pred.T, torch.arange(len(pred)))

def sum_with_small_n(batch, learn):
    x, y = batch
    here = x[:, 0] > -1
    return {'loss': summed(learn.model(x)[here], y[here]), 'n': here.sum()*.01}

@pytest.mark.parametrize('given', [dict(loss_fn=summed), dict(train_step=sum_with_small_n)],
                         ids=['a sum', 'a sum with a weight below 1'])
def test_a_sum_is_refused(given):
    learn = learner(dict(given, metrics=[]))
    before = weights(learn.model)
    with pytest.raises(ValueError, match='loss is a sum: .* n'): learn.launch(2, 1)
    assert all(map(torch.equal, before, weights(learn.model))) and not learn.history.n_steps

def test_another_loss_is_said():
    with pytest.warns(UserWarning, match='first batch is .* mean of'):
        learner(dict(loss_fn=contrast)).launch(2, 1)

class Noisy(nn.Module):
    "Dropout, batch statistics, noise, Python's numbers, and a count of its calls"
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.lstm, self.n = nn.LSTM(4, 4, 2, dropout=.3), 0
        self.net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(), nn.Linear(8, 3))
    def forward(self, x):
        self.n += 1
        x = self.lstm(x[None].expand(3, -1, -1))[0][-1]*(1.5 - .5*(self.n % 2))*(.5 + random.random())
        return self.net(x + .3*torch.randn_like(x)*torch.rand(len(x), 1))

def test_what_is_compared_leaves_no_trace(monkeypatch):
    "And chance alone is no reason to refuse"
    monkeypatch.setitem(DATA, 'pairs', lambda: DataLoader(SAMPLES, 9, True, num_workers=1, persistent_workers=True,
                                                          drop_last=True))
    found = [learner(dict(model=Noisy, data='pairs'), Accelerate(check=check, cpu=True)) for check in (True, False)]
    try:
        for o in found: o.launch(2, 2)
    finally:        # no worker outlives the test, however it ends
        for o in found: end_workers(o.train_dl)
    assert all(map(torch.equal, *(weights(o.model) for o in found)))
    assert found[0].history.steps == found[1].history.steps and found[0].model.n == found[1].model.n
