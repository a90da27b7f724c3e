"A checkpoint finds its way into a model that was written another way, or is refused with nothing changed"

import pytest, torch, torch.nn.functional as F
from torch import nn

from common import batches, check_resume, make_learner, same, stop_when, weights
from trainer_nb.save.checkpoint import Checkpoint
from trainer_nb.features.gradients import GradAccum


class Net(nn.Module):
    "Its layers are defined in some order; the forward pass is the same"
    def __init__(self, names=('a', 'b', 'c'), tied=None):
        super().__init__()
        for o in names: setattr(self, o, nn.Linear(4, 4))
        if tied: getattr(self, tied[0]).weight = getattr(self, tied[1]).weight

    def forward(self, x): return self.c(torch.tanh(self.b(torch.tanh(self.a(x)))))[:, :3]

def learner(model, **kwargs):
    torch.manual_seed(0)
    with torch.no_grad():
        for _, p in sorted(model.named_parameters()): p.copy_(torch.randn_like(p))
    return make_learner(model, batches(), lr=.05, **kwargs)

STOP = stop_when(lambda learn: learn.state.batch_idx == 3 and learn.state.epoch)

def by_name(learn): return dict(learn.model.named_parameters())

@pytest.mark.parametrize('tied, hooks', [
    (None, lambda: [GradAccum(2)]), ('cb', lambda: [])], ids=['accumulation', 'tied'])
def test_momentum_finds_its_weights_when_layers_are_defined_in_another_order(tmp_path, hooks, tied):
    "The reference is the same training without a stop, in the first order"
    def run(path, order, *more, **kwargs):
        learn = learner(Net(order, tied), hooks=[*hooks(), *more, Checkpoint(path)])
        learn.fit(3, **kwargs)
        return learn
    whole = run(tmp_path/'whole', 'abc')
    run(tmp_path/'run', 'abc', STOP)
    other = run(tmp_path/'run', 'cba', resume=True)
    mine, theirs = by_name(whole), by_name(other)
    if not tied: assert list(mine) != list(theirs)
    model = whole.model.state_dict()
    assert all(torch.equal(v, model[k]) for k, v in other.model.state_dict().items())

def test_an_optimizer_of_other_parameters_is_refused_by_name_and_nothing_changes(tmp_path):
    def groups(model, first):
        parts = getattr(model, first), *(m for k, m in model.named_children() if k != first)
        return torch.optim.AdamW([{'params': o.parameters()} for o in parts], lr=.05)
    first, second = Net(), Net()
    learn = learner(first, optim=groups(first, 'a'))
    learn.fit(1)
    learn.save(tmp_path/'state.pt')
    other = learner(second, optim=groups(second, 'c'))
    before = weights(second)
    with pytest.raises(ValueError,
                       match=r'group 0 steps model\.a\.weight, model\.a\.bias, '
                             'which group 0 of the AdamW here does not'):
        other.load(tmp_path/'state.pt')
    assert same(before, weights(second)) and not other.opt.state


# Buffers of another shape

class Observer(nn.Module):
    """Keeps the range of each channel, in buffers that grow when it first sees some, and that load what is as large;
    like torch.ao's observers"""
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

    def _load_from_state_dict(self, state, prefix, *args):
        for k in 'low', 'high', 'scale': getattr(self, k).resize_(state[prefix + k].shape)
        super()._load_from_state_dict(state, prefix, *args)

def observed(*more, **kwargs):
    return make_learner(nn.Sequential(Observer(), nn.Linear(4, 3)), batches(), lr=.01, hooks=more, **kwargs)

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

def test_a_fit_resumes_with_buffers_that_the_module_resizes(tmp_path):
    def make():
        torch.manual_seed(0)
        return observed()
    check_resume(make, tmp_path, STOP, n_epochs=2)

def test_buffers_that_the_module_does_not_take_are_refused_and_nothing_changes(tmp_path):
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
