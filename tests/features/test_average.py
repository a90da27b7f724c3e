"Averages of the weights, and optimizers that keep one: validated, stopped, restored, never another learner's"

import pytest, torch, torch.nn.functional as F
from torch import nn

from common import batches, make_learner, same, stop_at, stop_when, weights
from trainer_nb.all import Checkpoint, EMA, EarlyStopping, GradAccum, LambdaHook, SWA, Schedule

def normed():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))

def sgd(p): return torch.optim.SGD(p, .1)

def loss_of(model): return sum(F.cross_entropy(model.eval()(x), y, reduction='sum').item() for x, y in batches())/24

def test_an_average_belongs_to_one_model():
    "Another learner of the model continues it; another model was validated with the weights of the first"
    def learner(model): return make_learner(model, batches(), batches(), optim=sgd, hooks=[hook])
    first, hook = normed(), EMA(.99)
    for _ in range(2): (learn := learner(first)).fit(1)
    learn.model = nn.Sequential(first)
    assert learn.validate() and learn.ema.n == 10
    other = learner(normed())
    for f in other.validate, lambda: other.fit(1):
        with pytest.raises(ValueError, match='averages another model'): f()

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
    "A loss with a learned scale, and a buffer that moves with the batches"
    def __init__(self):
        super().__init__()
        self.scale, self.seen = nn.Parameter(torch.ones(3)), nn.Buffer(torch.zeros(3))
    def forward(self, pred, targ):
        if self.training: self.seen.lerp_(pred.detach().mean(0), .5)
        return F.cross_entropy(pred*self.scale + self.seen, targ)

def scaled(*hooks): return make_learner(normed(), batches(), batches(), loss_fn=Scaled(), optim=sgd, hooks=hooks)

def test_a_loss_with_parameters_is_averaged_with_the_model():
    "Validation measured the averaged model with the live loss"
    kept, hook = [], EMA(.8, warmup=False)
    def keep(learn): kept.append([o.clone() for o in (learn.loss_fn.scale.detach(), learn.loss_fn.seen)])
    learn = scaled(hook, LambdaHook(after_step=lambda learn: keep(learn) if learn.training else None))
    live, own = learn.loss_fn, weights(learn.loss_fn)
    learn.fit(2)
    n = len(kept)
    expected = [.8**n*start + sum(.2*.8**(n - 1 - i)*o[j] for i, o in enumerate(kept)) for j, start in enumerate(own)]
    for a, b in zip(weights(hook.loss_fn), expected): torch.testing.assert_close(a, b, rtol=0, atol=1e-6)
    assert learn.loss_fn is live and same(weights(live), kept[-1]) and not same(weights(live), weights(hook.loss_fn))
    model, loss_fn = hook.model, hook.loss_fn
    value = sum(len(y)*loss_fn(model(x), y).item() for x, y in batches())/24
    assert learn.validate()['valid_loss'] == learn.history.epochs['valid_loss'][-1] == pytest.approx(value, abs=1e-6)
