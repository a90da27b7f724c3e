"Averages of the weights, and optimizers that keep one: validated, stopped, restored, never another learner's"

import math

import pytest, torch, torch.nn.functional as F
from torch import nn
from torch.nn.utils import prune
from torch.optim.swa_utils import AveragedModel

from common import batches, make_learner, problem, same, stop_at, stop_when, weights
from trainer_nb.base import map_tensors
from trainer_nb.all import Checkpoint, EMA, EarlyStopping, GradAccum, LambdaHook, SWA, Schedule, load_model

def normed():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))

def sgd(p): return torch.optim.SGD(p, .1)

def loss_of(model): return sum(F.cross_entropy(model.eval()(x), y, reduction='sum').item() for x, y in batches())/24

def test_another_model_gets_another_average():
    "It was validated with the weights of the first, or refused; another learner of the model continues the average"
    def learner(model): return make_learner(model, batches(), batches(), optim=sgd, hooks=[hook])
    first, second, hook, alone = normed(), nn.Sequential(normed()), EMA(.99), EMA(.99)
    for _ in range(2): (learn := learner(first)).fit(1)
    assert hook.n == 10
    other = learner(second)
    assert other.validate()['valid_loss'] == pytest.approx(loss_of(second), abs=1e-6) and hook.n == 10
    other.fit(1)
    make_learner(nn.Sequential(normed()), batches(), optim=sgd, hooks=[alone]).fit(1)
    assert hook.n == 5 and same(weights(hook.model), weights(alone.model))
    assert learn.validate()['valid_loss'] == pytest.approx(loss_of(first), abs=1e-6)

def test_an_average_is_of_the_model_that_was_loaded_with_it(tmp_path):
    hook = EMA(.9)
    make_learner(normed(), batches(), batches(), optim=sgd, hooks=[hook]).fit(1)
    learn = make_learner(normed(), batches(), batches(), optim=sgd, hooks=[other := EMA(.9)])
    learn.fit(2)
    learn.save(tmp_path/'a.pt')
    again = make_learner(normed(), batches(), batches(), optim=sgd, hooks=[hook])
    again.load(tmp_path/'a.pt')
    assert again.validate() == learn.validate() and hook.n == other.n
    again.fit(1)
    learn.fit(1)
    assert same(weights(hook.model), weights(other.model))

@pytest.mark.parametrize('hook', [lambda: EMA(.8, start=4), lambda: SWA(4)])
def test_early_stopping_restores_the_best_average(hook):
    "The value that was best was that of the average; the last one stayed"
    learn = make_learner(normed(), batches(), batches(), optim=lambda p: torch.optim.SGD(p, 1.),
                         hooks=[hook(), EarlyStopping(2), Schedule(lambda pos: .1 if pos < .3 else 30.)])
    learn.fit(10)
    values = learn.history.epochs['valid_loss']
    assert min(values) < values[-1] and learn.state.epoch < 10
    assert learn.validate()['valid_loss'] == min(values) == pytest.approx(loss_of(learn.ema.model), abs=1e-6)
    assert learn.ema.n == max(0, 5*(values.index(min(values)) + 1) - learn.ema.start)

@pytest.mark.parametrize('start', [0, 3])
def test_a_stop_before_the_first_optimizer_step(start):
    "The average was made anew then, with statistics that batches had moved already"
    def fit(stops):
        hooks = [EMA(.8, start=start), GradAccum(3)]
        learn = make_learner(normed(), batches(), batches(), optim=sgd, hooks=hooks)
        learn.fit(2, hooks=[stop_when(lambda learn: learn.training and learn.history.n_steps == stops)])
        if stops: learn.resume()
        return learn.history.epochs['valid_loss'], weights(learn.ema.model)
    whole, stopped = fit(0), fit(2)
    assert whole[0] == stopped[0] and same(whole[1], stopped[1])

class Moving(nn.Module):
    "Buffers that `state_dict` leaves out: a mean that moves, a table that grows, and one that is expanded"
    def __init__(self, grows=True):
        super().__init__()
        self.lin, self.grows = nn.Linear(4, 3), grows
        self.register_buffer('mean', torch.zeros(4), persistent=False)
        self.register_buffer('table', None, persistent=False)
        self.register_buffer('wide', torch.ones(1).expand(1000), persistent=False)
    def forward(self, x):
        if self.training:
            self.mean.lerp_(x.mean(0) + 1, .1)
            if self.grows: self.table = torch.cat([self.mean[:1] if self.table is None else self.table, self.mean])
        return self.lin(x - self.mean)*(1. if self.table is None else 1 + self.table.mean())

def moving(*hooks, grows=True):
    torch.manual_seed(0)
    return make_learner(Moving(grows), batches(), batches(), optim=lambda p: torch.optim.SGD(p, .5), hooks=hooks)

def hidden(model): return [model.mean.tolist(), model.table.tolist()]

def test_buffers_that_a_state_dict_leaves_out_are_saved(tmp_path):
    "A resume in another process ended with other weights"
    (whole := moving()).fit(3)
    moving(Checkpoint(tmp_path, keep=9)).fit(3, hooks=[stop_at(7)])
    (again := moving(Checkpoint(tmp_path, keep=9))).fit(3, resume=True)
    for _ in range(2):
        assert same(weights(whole.model), weights(again.model)) and hidden(whole.model) == hidden(again.model)
        again.rewind(epoch=1)
        again.resume()
    state = torch.load(next(tmp_path.glob('*.pt')), weights_only=True)['modules']['model']
    assert set(state['buffers']) == {'mean', 'table'}
    average = moving(EMA(.8), grows=False)
    average.fit(1)
    average.save(tmp_path/'average.pt')
    (loaded := moving(EMA(.8), grows=False)).load(tmp_path/'average.pt')
    for learn in average, loaded: learn.fit(1)
    assert average.validate() == loaded.validate() and torch.equal(average.ema.model.mean, loaded.ema.model.mean)
    del again.model.mean
    again.model.mean = 0.
    with pytest.warns(UserWarning, match='holds the buffer mean, which the model does not have'): again.load(tmp_path)

class ScheduleFree(torch.optim.Optimizer):
    "SGD without a schedule (Defazio et al. 2024): the model holds y in training, and x, the average, in evaluation"
    def __init__(self, params, lr=.3, beta=.9): super().__init__(params, dict(lr=lr, beta=beta, k=0, train_mode=False))

    def _swap(self, to_train):
        for g in self.param_groups:
            if g['train_mode'] == to_train: continue
            for p in g['params']:
                if 'z' in self.state[p]:
                    p.data.lerp_(self.state[p]['z'], 1 - g['beta'] if to_train else 1 - 1/g['beta'])
            g['train_mode'] = to_train
    def train(self): self._swap(True)
    def eval(self): self._swap(False)

    @torch.no_grad()
    def step(self, closure=None):
        for g in self.param_groups:
            if not g['train_mode']: raise RuntimeError('not in train mode when step is called')
            g['k'] += 1
            for p in g['params']:
                z = self.state[p].setdefault('z', p.detach().clone())
                p.lerp_(z, 1/g['k']).add_(p.grad, alpha=g['lr']*(g['beta']*(1 - 1/g['k']) - 1))
                z.sub_(p.grad, alpha=g['lr'])

def free_loop(n):
    "The plain loop, with the calls that its users have to make"
    torch.manual_seed(0)
    model, losses = nn.Linear(4, 3), []
    opt = ScheduleFree(model.parameters())
    for _ in range(n):
        opt.train()
        for x, y in batches():
            opt.zero_grad()
            F.cross_entropy(model(x), y).backward()
            opt.step()
        opt.eval()
        losses.append(loss_of(model))
    return model, losses

def free(**kwargs):
    torch.manual_seed(0)
    return make_learner(nn.Linear(4, 3), batches(), batches(), optim=ScheduleFree, **kwargs)

def test_schedule_free_optimizers_are_switched_with_the_phases():
    "Each step was refused, or the weights of training were validated"
    learn, (model, losses) = free(), free_loop(3)
    learn.fit(3)
    assert learn.history.epochs['valid_loss'] == pytest.approx(losses, abs=1e-6)
    assert not learn.opt.param_groups[0]['train_mode']
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(weights(learn.model), weights(model)))
    before = weights(learn.model)
    assert learn.validate()['valid_loss'] == pytest.approx(losses[-1], abs=1e-6)
    torch.testing.assert_close(learn.predict(batches()), model(torch.cat([x for x, _ in batches()])).detach())
    learn.lr_find(n_steps=8)
    assert same(before, weights(learn.model)) and not learn.opt.param_groups[0]['train_mode']

class Scaled(nn.Module):
    "A loss with a learned scale"
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3))
    def forward(self, pred, targ): return F.cross_entropy(pred*self.scale, targ)

def test_a_loss_with_parameters_is_the_live_one():
    learn = make_learner(normed(), batches(), batches(), loss_fn=Scaled(), optim=sgd, hooks=[hook := EMA(.8)])
    learn.fit(2)
    assert not torch.equal(learn.loss_fn.scale, torch.ones(3))
    value = sum(len(y)*learn.loss_fn(hook.model(x), y).item() for x, y in batches())/24
    assert learn.validate()['valid_loss'] == learn.history.epochs['valid_loss'][-1] == pytest.approx(value, abs=1e-6)


# An average follows the names of tensors

class Norm(nn.Module):
    "Subtracts a running mean, which it keeps in one way or another"
    def __init__(self, kind):
        super().__init__()
        self.lin, self.kind, self.n, self.scale, self.kept = nn.Linear(4, 3), kind, 0, 1., [1.]
        start = {'none': None, 'empty': torch.empty(0)}.get(kind, torch.zeros(4))
        self.register_buffer('old' if kind == 'popped' else 'mean', start, persistent=kind != 'not saved')
        if kind == 'both': self.register_buffer('twin', self.mean)
        if kind == 'wide': self.register_buffer('wide', torch.ones(1).expand(4))
        if kind == 'mask': self.register_buffer('mask', torch.tensor([0., -math.inf, 0.]))

    def forward(self, x):
        if self.training: self.move(x.mean(0) + 3)
        mean = self.mean + self.twin if self.kind == 'both' else self.mean
        out = self.lin(x - mean.view(-1, 4).mean(0))*self.scale/self.kept[0]
        return out + self.mask.clamp(min=-99) if self.kind == 'mask' else out

    def move(self, new):
        self.n += 1
        if self.kind == 'number': self.scale *= .9
        elif self.kind == 'extra state': self.kept = [self.kept[0]*1.1]
        elif self.kind == 'replaced' and self.n == 3: self.lin.weight = nn.Parameter(2*self.lin.weight.detach())
        elif self.kind == 'replaced part' and self.n == 3: self.lin = nn.Sequential(nn.Linear(4, 3))
        elif self.kind == 'wide': self.wide = torch.full((1,), float(self.n)).expand(4)
        if self.n == 1 and self.kind == 'popped': self.register_buffer('mean', self._buffers.pop('old') + new)
        elif self.n == 1 and self.kind in ('none', 'empty'): self.mean = new
        elif self.kind == 'growing': self.mean = torch.cat([self.mean, new])
        else: self.mean = .9*self.mean + .1*new
        if self.kind == 'both': self.twin = self.mean**2

    def get_extra_state(self): return {'kept': self.kept}
    def set_extra_state(self, state): self.kept = state['kept']

KINDS = ('reassigned', 'not saved', 'replaced', 'both', 'none', 'empty', 'growing', 'popped', 'wide', 'mask',
         'replaced part', 'number', 'extra state')

def near(a, b): torch.testing.assert_close(a, b, rtol=0, atol=1e-6)

def tensors(m): return {**dict(m.named_parameters()), **dict(m.named_buffers())}

def norm(kind):
    torch.manual_seed(0)
    return Norm(kind)

@pytest.mark.parametrize('kind', KINDS)
@pytest.mark.parametrize('hook, share', [(lambda: EMA(.8, warmup=False), lambda n: .2), (SWA, lambda n: 1/(n + 1))],
                         ids=['EMA', 'SWA'])
def test_an_average_follows_names(kind, hook, share):
    "It stayed at the first tensors: a validation loss was 77.8, and that of the live model 0.019"
    model, opt, torchs = (m := norm(kind)), sgd(m.parameters()), AveragedModel(m, use_buffers=True)
    average = {k: t.detach().clone() for k, t in tensors(model).items()}
    for n, (x, y) in enumerate(batches()*2):
        F.cross_entropy(model(x), y).backward()
        opt.step()
        opt.zero_grad()
        if kind in KINDS[:3]: torchs.update_parameters(model)
        for k, t in tensors(model).items():
            old = average.get(k)
            new = old is None or old.shape != t.shape
            average[k] = t.detach().clone() if new else torch.lerp(old, t.detach(), share(n))
    for k, t in tensors(model).items(): t.data = t if k in ('wide', 'mask') else average[k]
    early = LambdaHook(before_epoch=lambda learn: used.model)       # before a tensor is there
    learn = make_learner(norm(kind), batches(), batches(), optim=sgd, hooks=[used := hook(), early])
    learn.fit(2)
    assert tensors(used.model).keys() == tensors(model).keys()
    for k, t in tensors(model).items(): near(tensors(used.model)[k], t)
    if hook is SWA and kind in KINDS[:3]:       # where torch's class is right
        for k, t in tensors(torchs.module).items(): near(tensors(used.model)[k], t)
    value = learn.history.epochs['valid_loss'][-1]
    assert value == pytest.approx(loss_of(model), abs=1e-6) and used.model is used.model and used.n == 10
    (other := hook()).load_state_dict(used.state_dict())
    assert make_learner(learn.model, batches(), batches(), hooks=[other]).validate()['valid_loss'] == value

@pytest.mark.parametrize('dtype', [torch.bfloat16, torch.float16])
def test_an_average_in_half_precision_is_kept_in_float32(dtype, tmp_path):
    "A share of 0.001 was lost in rounding"
    torch.manual_seed(0)
    model, kept = nn.Linear(4, 3).to(dtype), []
    def keep(learn): kept.append(model.weight.detach().double())
    learn = make_learner(model, [(x.to(dtype), y) for x, y in batches()], optim=sgd,
                         hooks=[hook := EMA(.99, warmup=False), LambdaHook(before_fit=keep, after_step=keep)])
    learn.fit(8)
    n = len(kept) - 1
    expected = .99**n*kept[0] + sum(.01*.99**(n - 1 - i)*o for i, o in enumerate(kept[1:]))
    near(hook.average['weight'].double(), expected)
    x = problem()[0].to(dtype)
    assert hook.model.weight.dtype == dtype and torch.equal(hook.model.weight, hook.average['weight'].to(dtype))
    assert torch.equal(learn.predict(x), hook.model(x)) and not torch.equal(learn.predict(x), model(x))
    learn.export(tmp_path/'model', example=x[:2])
    other = load_model(tmp_path/'model', nn.Linear(4, 3).to(dtype))
    assert torch.equal(other(x), hook.model(x))
    assert torch.equal(load_model(tmp_path/'model', trusted=True)(x), hook.model(x))
    learn.save(tmp_path/'a.pt')
    again = make_learner(nn.Linear(4, 3).to(dtype), optim=sgd, hooks=[EMA(.99)])
    again.load(tmp_path/'a.pt')
    assert torch.equal(again.ema.average['weight'], hook.average['weight'])
    assert torch.equal(again.predict(x), learn.predict(x))

@pytest.mark.filterwarnings('ignore:.*weight_norm.*:FutureWarning')
@pytest.mark.parametrize('wrap', [nn.utils.weight_norm, nn.utils.parametrizations.weight_norm,
                                  lambda m: prune.l1_unstructured(m, 'weight', .5)])
def test_a_model_whose_weights_are_computed_is_copied(wrap, tmp_path):
    "torch refuses to copy tensors with a graph, which these leave in an attribute"
    torch.manual_seed(0)
    learn = make_learner(nn.Sequential(wrap(nn.Linear(4, 3))), batches(), batches(), optim=sgd, hooks=[hook := SWA()])
    learn.fit(1)
    learn.fit(1)
    model = nn.Sequential(wrap(nn.Linear(4, 3)))
    model.load_state_dict(hook.average)
    assert learn.history.epochs['valid_loss'][-1] == pytest.approx(loss_of(model), abs=1e-6)
    x = problem()[0]
    learn.export(tmp_path, example=x[:2])
    torch.testing.assert_close(load_model(tmp_path, trusted=True)(x), model(x))

def test_state_that_is_loaded_in_mid_fit():
    "An average of before comes back, the fit goes on, and what was loaded stays as it was"
    states, seen = {}, []
    def change(learn):
        if not learn.training: return
        seen.append(learn.own_model[0].weight.detach().clone())
        states[n := len(seen)] = map_tensors(torch.clone, learn.ema.state_dict())
        if n == 7: learn.ema.load_state_dict(states[3])
    learn = make_learner(normed(), batches(), batches(), optim=sgd,
                         hooks=[hook := SWA(), LambdaHook(after_step=change, ord=9)])
    learn.fit(1)
    first = hook.model
    learn.fit(1)
    assert hook.n == 6 and hook.model is first and SWA().decay is None
    near(hook.average['0.weight'], sum(seen[:3] + seen[7:])/6)
    near(states[3]['average']['0.weight'], sum(seen[:3])/3)
    hook.load_state_dict(states[3])
    near(hook.model[0].weight, nn.Parameter(sum(seen[:3])/3, False))
