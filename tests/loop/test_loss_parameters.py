"Parameters of a loss function: whose optimizer has them, and that a guard and the best weights hold them, too"
import pytest, torch, torch.nn.functional as F
from torch import nn

from common import batches, make_learner, make_model, same, sgd, told, weights
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

def start(*args, **kwargs):
    torch.manual_seed(0)
    return make_learner(make_model(), *args, loss_fn=Proxies(), **kwargs)

def all_weights(learn): return weights(learn.model) + weights(learn.loss_fn)

def test_a_guard_gives_back_the_loss_and_its_buffers():
    data = batches()
    data[3] = data[3][0]*float('nan'), data[3][1]
    learn = start(data, optim=sgd, hooks=[NaNGuard()])
    with pytest.raises(FloatingPointError, match='batch 3, after 3'): learn.fit(1)
    plain = start(data[:3], optim=sgd)
    plain.fit(1)
    assert same(all_weights(learn), all_weights(plain))

def test_the_best_weights_are_those_of_the_loss_too():
    seen = []
    look = LambdaHook(after_epoch=lambda learn: seen.append(all_weights(learn)))
    learn = start(valid_dl=batches(seed=2), optim=torch.optim.SGD, lr=3., hooks=[EarlyStopping(3), look])
    learn.fit(6)
    values = learn.history.epochs['valid_loss']
    best = values.index(min(values))
    assert best < len(values) - 1 and same(all_weights(learn), seen[best])

def of_the_first_layer():
    model = make_model()
    return make_learner(model, loss_fn=Proxies(), optim=sgd(model[0].parameters()))

def warned(learn):
    with told() as said:
        for _ in range(2): learn.fit(1)
    return [o for o in said if 'no optimizer has' in o]

def test_what_no_optimizer_has_is_named_once():
    "But not what is left out on purpose: the head alone, of a teacher that is frozen; what needs no gradient"
    [text] = warned(of_the_first_layer())
    assert '3.weight, 3.bias, loss_fn.weight' in text
    teacher, model, frozen = nn.Linear(4, 3).requires_grad_(False), make_model(), of_the_first_layer()
    def step(batch, learn): return {'loss': F.mse_loss(learn.model(batch[0]), teacher(batch[0]))}
    for o in frozen.model[3], frozen.loss_fn: o.requires_grad_(False)
    assert not warned(frozen)
    assert not warned(make_learner(model, train_step=step, optim=sgd(model[3].parameters())))
