"Sparse gradients are accumulated and guarded as dense ones are"
import warnings

import pytest, torch
from torch import nn

from common import make_learner, same, stop_when, weights
from trainer_nb.all import Checkpoint, GradAccum, LambdaHook, NaNGuard


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(7, 3, sparse=True), nn.Linear(3, 2)
    def forward(self, x): return self.head(self.embed(x).mean(1))

def data(n=5):
    "Words come twice in a batch, and some never"
    g = torch.Generator().manual_seed(1)
    return [(torch.randint(0, 5, (4, 3), generator=g), torch.randint(0, 2, (4,), generator=g)) for _ in range(n)]

def sparse_adam(params):
    params = list(params)
    return {'a': torch.optim.SparseAdam(params[:1], lr=.01), 'b': torch.optim.SGD(params[1:], lr=.5)}

@pytest.mark.parametrize('bad', [None, 'gradient', 'loss'])
def test_a_guard_of_sparse_gradients(bad):
    def make(*hooks):
        torch.manual_seed(0)
        model = Words()
        return make_learner(model, data(), optim=sparse_adam(model.parameters()), hooks=hooks)
    def is_sixth(learn): return learn.training and learn.state.optimizer_step == 6
    def loss(learn):
        if bad == 'loss' and is_sixth(learn): learn.loss = learn.loss*float('nan')
    def gradient(learn):
        if bad == 'gradient' and is_sixth(learn): learn.model.embed.weight.grad._values()[2, 0] = float('nan')
    learn = make(NaNGuard(every=1), LambdaHook(ord=-30, after_loss=loss, after_backward=gradient))
    plain = make()
    if not bad:
        learn.fit(2)
        plain.fit(2)
    else:
        what = {'loss': 'the loss', 'gradient': 'the gradient of embed.weight'}[bad]
        with pytest.raises(FloatingPointError, match=f'{what} is not finite in epoch 1, batch 1'): learn.fit(2)
        plain.fit(max_steps=6)
    assert same(weights(learn.model), weights(plain.model))
    assert same(*[[s['exp_avg'] for s in o.opts['a'].state.values()] for o in (learn, plain)])

@pytest.mark.parametrize('optim', [lambda params: torch.optim.SGD(params, .5), sparse_adam], ids=['one', 'two'])
def test_a_window_of_sparse_gradients_is_saved(optim, tmp_path):
    "Nothing was saved, so a fit that was stopped in a window could not be resumed"
    def make(*hooks):
        torch.manual_seed(0)
        model = Words()
        with warnings.catch_warnings(action='ignore'): tables = torch.eye(3).to_sparse(), torch.eye(3).to_sparse_csr()
        for i, t in enumerate(tables): model.register_buffer(f't{i}', t, persistent=i == 0)
        return make_learner(model, data(), optim=optim(model.parameters()), hooks=[GradAccum(3), *hooks])
    (whole := make()).fit(3)
    stopped = make(Checkpoint(tmp_path, strict=True))
    stopped.fit(3, hooks=[stop_when(lambda learn: (learn.state.epoch, learn.state.batch_idx) == (1, 2))])
    stopped.save(tmp_path/'a.pt')
    (again := make(Checkpoint(tmp_path))).fit(3, resume=True)
    (loaded := make()).load(tmp_path/'a.pt')
    loaded.resume()
    for o in again, loaded: assert same(*[[p.detach() for p in learn.model.parameters()] for learn in (whole, o)])
