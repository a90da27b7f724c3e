"Averages of the weights, and optimizers that keep one: validated, stopped, restored, never another learner's"
import math
from copy import deepcopy

import pytest, torch, torch.nn.functional as F
from torch import nn

from common import batches, check_resume, make_learner, plain_loop, same, stop_at, stop_when, weights
from trainer_nb.all import EMA, EarlyStopping, GradAccum, LambdaHook, SWA, Schedule

def normed():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))

def sgd(p): return torch.optim.SGD(p, .1)

def loss_of(model, loss_fn=F.cross_entropy):
    return sum(len(y)*loss_fn(model.eval()(x), y).item() for x, y in batches())/24

def learner(model, *hooks, **kwargs):
    return make_learner(model, batches(), batches(), **{'optim': sgd, 'hooks': hooks, **kwargs})

def near(a, b): torch.testing.assert_close(a, b, rtol=0, atol=1e-6)

def test_another_model_gets_another_average():
    "Another learner of the model continues the average"
    first, second, hook, alone = normed(), nn.Sequential(normed()), EMA(.99), EMA(.99)
    for _ in range(2): (learn := learner(first, hook)).fit(1)
    assert hook.n == 10
    other = learner(second, hook)
    assert other.validate()['valid_loss'] == pytest.approx(loss_of(second), abs=1e-6) and hook.n == 10
    other.fit(1)
    learner(nn.Sequential(normed()), alone).fit(1)
    assert hook.n == 5 and same(weights(hook.model), weights(alone.model))
    assert learn.validate()['valid_loss'] == pytest.approx(loss_of(first), abs=1e-6)

def test_a_fit_after_one_that_ended_before_validation_warns_of_nothing(recwarn):
    def fail(learn): raise ZeroDivisionError
    learn = learner(normed(), EMA(.9))
    with pytest.raises(ZeroDivisionError): learn.fit(1, hooks=[LambdaHook(before_valid=fail)])
    learn.fit(1)
    assert not [o for o in recwarn if 'live model' in str(o.message)]

def test_an_average_is_of_the_model_that_was_loaded_with_it(tmp_path):
    learner(normed(), hook := EMA(.9)).fit(1)
    (learn := learner(normed(), other := EMA(.9))).fit(2)
    learn.save(tmp_path/'a.pt')
    again = learner(normed(), hook)
    again.load(tmp_path/'a.pt')
    assert again.validate() == learn.validate() and hook.n == other.n
    for o in again, learn: o.fit(1)
    assert same(weights(hook.model), weights(other.model))

@pytest.mark.parametrize('hook', [lambda: EMA(.8, start=4), lambda: SWA(4)])
def test_early_stopping_restores_the_best_average(hook):
    "The value that was best was that of the average"
    learn = learner(normed(), hook(), EarlyStopping(2), Schedule(lambda pos: .1 if pos < .3 else 30.),
                    optim=lambda p: torch.optim.SGD(p, 1.))
    learn.fit(10)
    values = learn.history.epochs['valid_loss']
    assert min(values) < values[-1] and learn.state.epoch < 10
    assert learn.validate()['valid_loss'] == min(values) == pytest.approx(loss_of(learn.ema.model), abs=1e-6)
    assert learn.ema.n == max(0, 5*(values.index(min(values)) + 1) - learn.ema.start)

@pytest.mark.parametrize('start', [0, 3])
def test_a_stop_before_the_first_optimizer_step(start):
    "The average is not made anew then, with statistics that batches have moved already"
    def fit(stops):
        learn = learner(normed(), EMA(.8, start=start), GradAccum(3))
        learn.fit(2, hooks=[stop_when(lambda learn: learn.training and learn.history.n_steps == stops)])
        if stops: learn.resume()
        return learn.history.epochs['valid_loss'], weights(learn.ema.model)
    whole, stopped = fit(0), fit(2)
    assert whole[0] == stopped[0] and same(whole[1], stopped[1])

class Moving(nn.Module):
    "A mean that moves, which `state_dict` leaves out"
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(4, 3)
        self.register_buffer('mean', torch.zeros(4), persistent=False)
    def forward(self, x):
        if self.training: self.mean.lerp_(x.mean(0) + 1, .1)
        return self.lin(x - self.mean)

@pytest.mark.parametrize('hooks', [list, lambda: [EMA(.8)]], ids=['live', 'average'])
def test_buffers_that_a_state_dict_leaves_out_are_saved(hooks, tmp_path):
    def make():
        torch.manual_seed(0)
        return learner(Moving(), *hooks())
    whole, *others = check_resume(make, tmp_path, stop_at(7), n_epochs=3)
    for o in others: assert torch.equal(o.model.mean, whole.model.mean)

class Swapping(torch.optim.SGD):
    "As schedule-free optimizers do: the weights of evaluation are others, here greater by 1"
    in_eval = False
    def train(self): self.swap(False)
    def eval(self): self.swap(True)
    def swap(self, to_eval):
        if to_eval != self.in_eval:
            for p in self.param_groups[0]['params']: p.data += 1 if to_eval else -1
        self.in_eval = to_eval
    def step(self, *args):
        assert not self.in_eval
        return super().step(*args)

def test_schedule_free_optimizers_are_switched_with_the_phases():
    "As in the plain loop, with the calls that its users have to make"
    learn, losses = learner(nn.Linear(4, 3), optim=lambda p: Swapping(p, .1)), []
    plain = deepcopy(learn.model)
    opt = Swapping(plain.parameters(), .1)
    for _ in range(3):
        opt.train()
        plain_loop(plain, opt, batches())
        opt.eval()
        losses.append(loss_of(plain))
    learn.fit(3)
    assert learn.history.epochs['valid_loss'] == pytest.approx(losses, abs=1e-5)
    assert learn.validate()['valid_loss'] == pytest.approx(losses[-1], abs=1e-5)
    learn.lr_find(n_steps=8)
    assert learn.opt.in_eval
    for a, b in zip(weights(learn.model), weights(plain)): near(a, b)


# An average follows the names of tensors

class Norm(nn.Module):
    "Subtracts a running mean, which is set anew, saved or not; a mask, or a number that changes"
    def __init__(self, kind):
        super().__init__()
        self.lin, self.kind, self.scale = nn.Linear(4, 3), kind, 1.
        self.register_buffer('mean', torch.zeros(4), persistent=kind != 'not saved')
        self.register_buffer('mask', torch.tensor([0., -math.inf, 0.]) if kind == 'mask' else None)

    def forward(self, x):
        if self.training:
            self.mean = .9*self.mean + .1*(x.mean(0) + 3)
            if self.kind == 'number': self.scale *= .9
        out = self.lin(x - self.mean)*self.scale
        return out if self.mask is None else out + self.mask.clamp(min=-99)

def tensors(m): return {**dict(m.named_parameters()), **dict(m.named_buffers())}

@pytest.mark.parametrize('kind', ['saved', 'not saved', 'mask', 'number'])
@pytest.mark.parametrize('hook, share', [(lambda: EMA(.8, warmup=False), lambda n: .2), (SWA, lambda n: 1/(n + 1))],
                         ids=['EMA', 'SWA'])
def test_an_average_follows_names(kind, hook, share):
    "Tensors may be replaced; numbers are those of the live model"
    model = Norm(kind)
    learn, opt = learner(deepcopy(model), used := hook()), sgd(model.parameters())
    average = {k: t.detach().clone() for k, t in tensors(model).items()}
    for n, batch in enumerate(batches()*2):
        plain_loop(model, opt, [batch])
        for k, t in tensors(model).items(): average[k] = torch.lerp(average[k], t.detach(), share(n))
    for k, t in tensors(model).items(): t.data = t if k == 'mask' else average[k]
    learn.fit(2)
    for k, t in tensors(model).items(): near(tensors(used.model)[k], t)
    value = learn.history.epochs['valid_loss'][-1]
    assert value == pytest.approx(loss_of(model), abs=1e-6) and used.n == 10
    (other := hook()).load_state_dict(used.state_dict())
    assert learner(learn.model, other).validate()['valid_loss'] == value
