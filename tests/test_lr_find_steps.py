"A search leaves no trace in what a step, a loss function and the functions of hooks hold"
import functools, random

import numpy as np, pytest, torch, torch.nn.functional as F
from torch import nn

from common import batches, digest, make_learner, make_model
from trainer_nb.loop.hooks import Hook, LambdaHook
from trainer_nb.loop.learner import Learner

table, counter = {'mean': [torch.zeros(4)]}, 0

def loss_of(learn, batch): return F.cross_entropy(learn.model(batch[0]), batch[1])

def look(o):
    if isinstance(o, torch.Tensor): return o.tolist()
    if isinstance(o, torch.Generator): return o.get_state().tolist()
    if isinstance(o, random.Random): return o.getstate()
    if isinstance(o, np.random.Generator): return repr(o.bit_generator.state)
    if isinstance(o, nn.Module): return look(o.state_dict())
    if isinstance(o, torch.optim.Optimizer): return look(o.state_dict())
    if isinstance(o, dict): return {k: look(v) for k, v in o.items()}
    return [look(v) for v in o] if isinstance(o, (list, tuple)) else o

def closure():
    "Generators, tensors and a number in the variables of a step, and of a function that it calls"
    gen, rand, np_rand = torch.Generator().manual_seed(1), random.Random(1), np.random.default_rng(1)
    mean, n = torch.zeros(4), 0
    def noise(x): return x + .1*torch.randn(x.shape, generator=gen) + .1*rand.random() + .1*np_rand.normal()
    def step(batch, learn):
        nonlocal n
        n += 1
        mean.add_(batch[0].mean(0).detach())
        return {'loss': loss_of(learn, (noise(batch[0] - mean), batch[1]))*(1 + .1*n)}
    return dict(train_step=step), lambda: [gen, rand, mean, n, np_rand]

def containers():
    "A list of more tensors than anybody writes down, and dicts in dicts"
    held = {'many': [torch.zeros(()) for _ in range(300)],
            'deep': {'gen': [torch.Generator().manual_seed(1)], 'log': []}}
    def step(batch, learn):
        for o in held['many']: o.add_(1)
        held['deep']['log'].append(len(batch))
        return {'loss': loss_of(learn, batch)*held['many'][-1]*torch.rand((), generator=held['deep']['gen'][0])}
    return dict(train_step=step), lambda: held

def partials():
    state = {'mean': torch.zeros(4), 'gen': torch.Generator().manual_seed(1)}
    def step(state, batch, learn, scale=torch.ones(())):
        scale.mul_(1.1)
        state['mean'] += batch[0].mean(0)
        loss = loss_of(learn, (batch[0] - state['mean'], batch[1]))
        return {'loss': loss*scale*torch.rand((), generator=state['gen'])}
    return dict(train_step=functools.partial(step, state)), lambda: [state, step.__defaults__]

class Steps:
    def __init__(self): self.target, self.gen, self.n = torch.ones(4), torch.Generator().manual_seed(1), 0
    def step(self, batch, learn):
        self.n += 1
        self.target.mul_(.9)
        return {'loss': loss_of(learn, (batch[0]*self.target, batch[1]))*torch.rand((), generator=self.gen)*self.n}

def bound():
    o = Steps()
    return dict(train_step=o.step), lambda: [o.target, o.gen, o.n]

def losses():
    weight, gen = torch.ones(3), torch.Generator().manual_seed(1)
    def loss(pred, targ):
        weight.mul_(1.01)
        return F.cross_entropy(pred, targ, weight)*torch.rand((), generator=gen)
    return dict(loss_fn=loss), lambda: [weight, gen]

def module_of_names():
    "Global variables"
    def step(batch, learn):
        global counter
        counter += 1
        table['mean'][0].add_(1)
        return {'loss': loss_of(learn, (batch[0] + table['mean'][0], batch[1]))*counter}
    table['mean'][0].zero_()
    return dict(train_step=step), lambda: [table, counter]

def another_model():
    "A target network that follows, and an optimizer of the step's own with 120 parameters"
    target, many = make_model(), nn.ParameterList([nn.Parameter(torch.ones(())) for _ in range(120)])
    opt = torch.optim.Adam(many.parameters(), lr=.1)
    def step(batch, learn):
        with torch.no_grad():
            for p, q in zip(target.parameters(), learn.model.parameters()): p.lerp_(q, .5)
        opt.zero_grad()
        sum(many).backward()
        opt.step()
        return {'loss': loss_of(learn, batch) + F.mse_loss(learn.model(batch[0]),
                                                           target(batch[0]).detach())*many[-1].detach()}
    return dict(train_step=step), lambda: [target, many, opt]

def listeners():
    gen, scale = torch.Generator().manual_seed(1), torch.ones(())
    def noise(learn): learn.batch = learn.batch[0] + torch.randn(4, generator=gen)*scale.mul_(1.1), learn.batch[1]
    return dict(hooks=[LambdaHook(before_step=noise)]), lambda: [gen, scale]

def subclass():
    class Mine(Learner):
        def train_step(self, batch):
            self.mean.add_(1)
            self.seen['n'].append(1)
            return {'loss': loss_of(self, (batch[0] + self.mean, batch[1]))}
    learns = []
    def made(*args, **kwargs):
        learns.append(Mine(*args, **kwargs))
        learns[-1].mean, learns[-1].seen = torch.zeros(4), {'n': []}
        return learns[-1]
    return dict(cls=made), lambda: [learns[-1].mean, learns[-1].seen]

class Carry(Hook):
    "State of a recurrent step: set anew, changed in place, in lists, and a generator"
    def __init__(self):
        self.h, self.total, self.log = torch.zeros(3), torch.zeros(3), {'n': [0]}
        self.gen = torch.Generator().manual_seed(1)
    def move(self, pred):
        self.h = pred.detach().mean(0)
        self.total += self.h
        self.log['n'][0] += 1
        return pred + self.h + self.total*self.log['n'][0]*torch.rand((), generator=self.gen)

class Shaped(Carry):
    "A hook that takes part"
    def before_step(self, learn): self.log['n'][0] += 1

def hook_in_a_variable(cls=Carry):
    hook = cls()
    def step(batch, learn): return {'loss': F.cross_entropy(hook.move(learn.model(batch[0])), batch[1])}
    return dict(train_step=step, hooks=[hook]), lambda: list(vars(hook).values())

def hook_that_takes_part(): return hook_in_a_variable(Shaped)

def hook_by_its_class():
    hook = Carry()
    def step(batch, learn):
        return {'loss': F.cross_entropy(learn.get_hook(Carry).move(learn.model(batch[0])), batch[1])}
    return dict(train_step=step, hooks=[hook]), lambda: list(vars(hook).values())

KINDS = (closure, containers, partials, bound, losses, module_of_names, another_model, listeners, subclass,
         hook_in_a_variable, hook_that_takes_part, hook_by_its_class)

@pytest.mark.parametrize('kind', KINDS, ids=lambda o: o.__name__)
def test_what_a_step_holds_is_put_back(kind):
    "And a fit afterwards is one without a search"
    digests = []
    for searches in 0, 1:
        torch.manual_seed(0)
        kwargs, held = kind()
        learn, before = make_learner(train_dl=batches(), **kwargs), None
        before, ids = look(held()), [id(o) for o in held()]
        for fails in [False, True]*searches:
            stop = [LambdaHook(after_backward=lambda learn: 1/0)]*fails
            for h in stop: learn.add_hook(h)
            if fails:
                with pytest.raises(ZeroDivisionError): learn.lr_find(n_steps=12)
            else: learn.lr_find(n_steps=12)
            for h in stop: learn.remove_hook(h)
            assert look(held()) == before and [id(o) for o in held()] == ids
        learn.fit(1)
        assert look(held()) != before
        digests.append(digest(learn))
        global counter
        counter = 0
    assert digests[0] == digests[1]

def test_data_that_a_step_reads_is_not_copied(monkeypatch):
    "What the loaders hold is theirs: it may be as large as memory"
    data = batches()
    def step(batch, learn):
        assert data
        return {'loss': loss_of(learn, batch)}
    learn, cloned = make_learner(train_dl=data, train_step=step), []
    clone = torch.Tensor.clone
    monkeypatch.setattr(torch.Tensor, 'clone',
                        lambda self, *args, **kwargs: cloned.append(self.data_ptr()) or clone(self, *args, **kwargs))
    learn.lr_find(n_steps=3)
    assert cloned and not {o.data_ptr() for batch in data for o in batch} & set(cloned)

def test_a_step_that_relies_on_a_hook_that_stays_out_names_it():
    "The hook has nothing to do with steps by its events, and one fails without it"
    class Scale(Hook):
        def before_epoch(self, learn): self.scale = 2.
    def step(batch, learn): return {'loss': loss_of(learn, batch)*learn.get_hook(Scale).scale}
    learn = make_learner(train_dl=batches(), train_step=step, hooks=[Scale()])
    with pytest.raises(AttributeError) as e: learn.lr_find(n_steps=4)
    assert any('Scale took no part: set `in_dry_run = True`' in o for o in e.value.__notes__)
    Scale.in_dry_run = True
    learn.lr_find(n_steps=4)
