"Parameters of a loss function: whose optimizer has them, and that a guard and the best weights hold them, too"
import re

import pytest, torch, torch.nn.functional as F
from torch import nn

from common import batches, make_learner, make_model, same, sgd, weights
from trainer_nb.all import EarlyStopping, LambdaHook, NaNGuard


class Proxies(nn.Module):
    "A loss with a learned direction for each class, a learned scale, and noise while it trains"
    def __init__(self, n_in=3, n_classes=3):
        super().__init__()
        self.weight, self.log_scale = nn.Parameter(torch.randn(n_classes, n_in)), nn.Parameter(torch.zeros(()))
        self.drop = nn.Dropout(.3)
        self.register_buffer('n_calls', torch.zeros((), dtype=torch.long))
    def forward(self, pred, targ):
        if self.training: self.n_calls += 1
        return F.cross_entropy(self.log_scale.exp()*F.linear(self.drop(pred), F.normalize(self.weight)), targ)

def parts():
    torch.manual_seed(0)
    return make_model(), Proxies()

def test_a_parameter_that_model_and_loss_share_is_trained_once():
    model = nn.Linear(4, 3)
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.model, self.scale = model, nn.Parameter(torch.ones(()))
        def forward(self, pred, targ):
            return F.cross_entropy(self.scale*pred, targ) + .01*self.model.weight.square().sum()
    learn = make_learner(model, loss_fn=Tied())
    assert [len(g['params']) for g in learn.opt.param_groups] == [3]
    assert repr(learn).startswith('Learner(Linear with Tied, 16 parameters')

def test_a_guard_gives_back_the_loss_and_its_buffers():
    model, loss_fn = parts()
    data = batches()
    data[3] = data[3][0]*float('nan'), data[3][1]
    learn = make_learner(model, data, loss_fn=loss_fn, optim=sgd, hooks=[NaNGuard()])
    with pytest.raises(FloatingPointError, match='batch 3, after 3'): learn.fit(1)
    other, other_loss = parts()
    make_learner(other, data[:3], loss_fn=other_loss, optim=sgd).fit(1)
    assert same(weights(model), weights(other)) and same(weights(loss_fn), weights(other_loss))

def test_the_best_weights_are_those_of_the_loss_too():
    seen = []
    model, loss_fn = parts()
    learn = make_learner(model, valid_dl=batches(seed=2), loss_fn=loss_fn,
                         optim=lambda params: torch.optim.SGD(params, lr=3.), hooks=[EarlyStopping(3)])
    learn.add_hook(LambdaHook(after_epoch=lambda learn: seen.append(weights(learn.model) + weights(learn.loss_fn))))
    learn.fit(6)
    values = learn.history.epochs['valid_loss']
    best = values.index(min(values))
    assert best < len(values) - 1 and same(weights(learn.model) + weights(learn.loss_fn), seen[best])

def test_parameters_that_no_optimizer_has_are_told_once(recwarn):
    model, loss_fn = parts()
    learn = make_learner(model, loss_fn=loss_fn, optim=sgd(model[0].parameters()))
    learn.fit(1)
    learn.fit(1)
    [text] = [str(o.message) for o in recwarn if 'no optimizer has' in str(o.message)]
    assert '3.weight, 3.bias, loss_fn.weight and 1 more, which got a gradient' in text
    model[3].requires_grad_(False)
    loss_fn.requires_grad_(False)
    for p in *model.parameters(), *loss_fn.parameters(): p.grad = None
    make_learner(model, loss_fn=loss_fn, optim=sgd(model[0].parameters())).fit(1)
    assert not [o for o in recwarn.list[1:] if 'no optimizer has' in str(o.message)]

LAYERS = [nn.Linear(3, 3)]

class Listed(nn.Module):
    "Keeps layers in a Python list, where `parameters()` does not find them"
    def __init__(self):
        super().__init__()
        self.a, self.b, self.layers = nn.Linear(4, 4), nn.Linear(4, 3), [nn.Linear(4, 4) for _ in range(2)]
    def forward(self, x):
        for o in self.layers: x = o(x)
        return self.b(self.a(x))

def through_a_closure(batch, learn):
    return {'loss': F.cross_entropy(LAYERS[0](learn.model(batch[0])), batch[1])}

def added(model):
    "A layer added once the optimizer was made"
    opt = sgd(model.parameters())
    model.append(nn.Linear(3, 3))
    return opt

@pytest.mark.parametrize('make, kwargs, names', [
    (Listed, {}, r'of shape \(4,\) outside the model, .*of shape \(4, 4\)'),
    (make_model, {'train_step': through_a_closure}, r'of shape \(3, 3\) outside the model'),
    (make_model, {'optim': added}, r'4\.weight, 4\.bias')])
def test_parameters_that_nobody_trains_are_named_once(make, kwargs, names, recwarn):
    model = make()
    if optim := kwargs.get('optim'): kwargs = {'optim': optim(model)}
    learn = make_learner(model, batches(), loss_fn=None if 'train_step' in kwargs else F.cross_entropy, **kwargs)
    learn.fit(2)
    [text] = [str(o.message) for o in recwarn if 'no optimizer has' in str(o.message)]
    assert re.search(names, text)

def test_what_is_left_out_on_purpose_is_not_named(recwarn):
    "The head alone; a teacher that is frozen; what needs no gradient"
    model, teacher = make_model(), nn.Linear(4, 3).requires_grad_(False)
    def step(batch, learn):
        pred = learn.model(batch[0])
        return {'loss': F.cross_entropy(pred, batch[1]) + F.mse_loss(pred, teacher(batch[0]))}
    make_learner(model, train_step=step, optim=sgd(model[3].parameters())).fit(1)
    model = Listed()
    for o in model.layers: o.requires_grad_(False)
    make_learner(model).fit(1)
    assert not [o for o in recwarn if 'no optimizer has' in str(o.message)]
