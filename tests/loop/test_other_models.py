"A checkpoint of a model that was written another way is refused with nothing changed"

import pytest, torch, torch.nn.functional as F
from torch import nn

from common import batches, make_learner, same, weights


class Net(nn.Module):
    "Its layers are defined in some order; the forward pass is the same"
    def __init__(self, names):
        super().__init__()
        for o in names: setattr(self, o, nn.Linear(4, 4))

    def forward(self, x): return self.c(torch.tanh(self.b(torch.tanh(self.a(x)))))[:, :3]

@pytest.mark.parametrize('order, first', [('cba', 'c'), ('abc', 'b')])
def test_an_optimizer_of_other_parameters_is_refused_and_nothing_changes(order, first, tmp_path):
    "Layers that are defined in another order, and another one in the first group"
    def learner(order, first):
        model = Net(order)
        parts = getattr(model, first), *(m for k, m in model.named_children() if k != first)
        groups = [{'params': o.parameters()} for o in parts]
        return make_learner(model, batches(), optim=torch.optim.AdamW(groups, lr=.05))
    learn, other = learner('abc', 'a'), learner(order, first)
    learn.fit(1)
    learn.save(tmp_path/'state.pt')
    before = weights(other.model)
    with pytest.raises(ValueError, match='it steps other parameters, or the same ones in another order'):
        other.load(tmp_path/'state.pt')
    assert same(before, weights(other.model)) and not other.opt.state


# Buffers of another shape

class Observer(nn.Module):
    "Keeps the range of each channel, in buffers that grow when it first sees some, like torch.ao's observers"
    def __init__(self):
        super().__init__()
        self.register_buffer('low', torch.tensor(torch.inf))
        self.register_buffer('high', torch.empty(0))
        self.register_buffer('scale', torch.ones(()))

    def forward(self, x):
        if self.training:
            if not self.low.ndim: self.low.resize_(x.size(1)).fill_(torch.inf)
            with torch.no_grad(): self.low.copy_(torch.minimum(self.low, x.amin(0)))
            self.high = x.detach().amax(0)
            self.scale.data = x.detach().std(0)
        return x + self.scale

def test_lr_find_puts_back_buffers_that_were_resized_or_replaced():
    "Whether it fails or not; each tensor is the same object, in the memory that its views know"
    for fails in False, True:
        def step(batch, learn):
            if fails and learn.state.batch_idx == 2: raise ZeroDivisionError
            return {'loss': F.cross_entropy(learn.model(batch[0]), batch[1])}
        learn = make_learner(nn.Sequential(Observer(), nn.Linear(4, 3)), batches(), train_step=step)
        own = {k: (t, t.detach(), t.clone()) for k, t in learn.model.named_buffers()}
        if fails:
            with pytest.raises(ZeroDivisionError): learn.lr_find(n_steps=20)
        else: learn.lr_find(n_steps=20)
        assert own.keys() == dict(learn.model.named_buffers()).keys()
        for k, t in learn.model.named_buffers():
            assert t is own[k][0] and t.data_ptr() == own[k][1].data_ptr() and torch.equal(t, own[k][2]), k

def test_buffers_of_another_shape_are_refused_and_nothing_changes(tmp_path):
    def make(n):
        return make_learner(nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3, affine=False) if n == 3 else Fixed(n)),
                            batches())
    class Fixed(nn.Module):
        def __init__(self, n):
            super().__init__()
            self.register_buffer('running_mean', torch.zeros(n))
            self.register_buffer('running_var', torch.ones(n))
            self.register_buffer('num_batches_tracked', torch.tensor(0))
        def forward(self, x): return x
    learn, other = make(3), make(5)
    learn.fit(1)
    learn.save(tmp_path/'state.pt')
    before = weights(other.model)
    with pytest.raises(ValueError, match=r'1\.running_mean is \(3,\) there and \(5,\) here'):
        other.load(tmp_path/'state.pt')
    assert same(before, weights(other.model)) and other.state.epoch == 0
