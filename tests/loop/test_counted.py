"What a batch weighs, and what is a list of samples: against plain loops"

import pytest, torch, torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from trainer_nb.all import GradAccum, LambdaHook, Learner

x = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
y = x.sum(1, keepdim=True) + x[:, :1]**2

def make(*args, model=None, **kwargs):
    torch.manual_seed(0)
    kwargs = {'loss_fn': F.mse_loss, 'optim': torch.optim.SGD, 'lr': .1, 'bs': 8, 'display': False} | kwargs
    return Learner(model or nn.Linear(3, 1), *args, **kwargs)

def loader(): return DataLoader(TensorDataset(x, y), 8)

def test_filtered_batches_count_what_is_left():
    "In the epoch's values, and in a window of accumulated gradients"
    def keep_large(learn):
        i = (learn.batch[0].sum(1) > 0).nonzero()[:, 0]
        learn.batch = [o[i] for o in learn.batch]
    learn = make(loader(), loader(), hooks=[GradAccum(5), LambdaHook(before_step=keep_large)])
    plain, large = make().model, x.sum(1) > 0
    learn.fit(1)
    loss = F.mse_loss(plain(x[large]), y[large])
    loss.backward()
    row = learn.history.epoch_rows[0]
    assert row['train_loss'] == pytest.approx(loss.item()) and learn.state.samples_seen == large.sum()
    assert row['valid_loss'] == pytest.approx(F.mse_loss(learn.model(x[large]), y[large]).item())
    for p, q in zip(plain.parameters(), learn.model.parameters()): assert torch.allclose(p - .1*p.grad, q, atol=1e-6)

class Graph(nn.Linear):
    def forward(self, first, second=None):
        if second is not None: return super().forward(second)       # (adj, x)
        if isinstance(first, dict): return super().forward(first['x'])
        return super().forward(first).mean(0)                       # time-major, (T, B, 3) → (B, 1)

adj = torch.ones(7, 7)

@pytest.mark.parametrize('form', [
    lambda x, y: ({'x': x, 'adj': adj}, y), lambda x, y: (adj, x, y),
    lambda x, y: (x.expand(5 + len(x), *x.shape), y)], ids=['dict', 'first', 'time'])
def test_what_prediction_and_target_share_is_counted(form):
    batches = [form(x[i:i + 16], y[i:i + 16]) for i in (0, 16, 32)]      # 16, 16 and 8 samples
    learn = make(batches, batches, model=Graph(3, 1), lr=1e-20, metrics=[lambda pred, targ: (pred - targ).abs().mean()])
    learn.fit(1)
    pred, row = learn.model(None, x), learn.history.epoch_rows[0]
    assert row['train_loss'] == pytest.approx(F.mse_loss(pred, y).item()) == row['valid_loss']
    assert row['valid_lambda'] == pytest.approx((pred - y).abs().mean().item()) and learn.state.samples_seen == 40

# Data

class Named(nn.Linear):
    def forward(self, x): return super().forward(x)

@pytest.mark.parametrize('data, targ', [
    ([{'x': a, 'labels': b} for a, b in zip(x, y)], y), ([(a, a) for a in x], x)], ids=['dicts', 'autoencoder'])
def test_samples_are_a_data_set(data, targ):
    learn = make(data, data, model=Named(3, targ.shape[1]))
    loss = F.mse_loss(learn.model(x), targ).item()
    assert learn.validate()['valid_loss'] == pytest.approx(loss) and len(learn.valid_dl) == 5
    learn.fit(1)
    assert learn.state.samples_seen == 40
