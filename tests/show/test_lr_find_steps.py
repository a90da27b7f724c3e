"A search leaves no trace in what a step, a loss function and the functions of hooks hold"
import collections, random

import numpy as np, pytest, torch, torch.nn.functional as F
from torch import nn

from common import batches, digest, make_learner, same, weights
from trainer_nb.loop.hooks import Hook, LambdaHook, MainProcessHook
from trainer_nb.learner import Learner
from trainer_nb.save.checkpoint import Checkpoint

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

class Steps:
    def __init__(self): self.target, self.gen, self.n = torch.ones(4), torch.Generator().manual_seed(1), 0
    def step(self, batch, learn):
        self.n += 1
        self.target.mul_(.9)
        return {'loss': loss_of(learn, (batch[0]*self.target, batch[1]))*torch.rand((), generator=self.gen)*self.n}

def bound():
    o = Steps()
    return dict(train_step=o.step), lambda: [o.target, o.gen, o.n]

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

def hook_in_a_variable():
    hook = Carry()
    def step(batch, learn): return {'loss': F.cross_entropy(hook.move(learn.model(batch[0])), batch[1])}
    return dict(train_step=step, hooks=[hook]), lambda: list(vars(hook).values())

def hook_by_its_class():
    hook = Carry()
    def step(batch, learn):
        return {'loss': F.cross_entropy(learn.get_hook(Carry).move(learn.model(batch[0])), batch[1])}
    return dict(train_step=step, hooks=[hook]), lambda: list(vars(hook).values())

KINDS = bound, subclass, hook_in_a_variable, hook_by_its_class

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
    assert digests[0] == digests[1]

def test_a_hook_of_the_users_takes_part_and_is_left_alone():
    "A state that is carried from batch to batch, as in truncated backpropagation, by events around batches"
    class Carried(Hook):
        def before_epoch(self, learn): self.h, self.n = torch.zeros(3), 0
        def after_step(self, learn): self.h, self.n = learn.result['h'].detach().mean(0), self.n + 1
    def step(batch, learn):
        h = learn.model(batch[0]) + learn.get_hook(Carried).h
        return {'loss': F.cross_entropy(h, batch[1]), 'h': h}
    def trained(searches):
        torch.manual_seed(0)
        learn = make_learner(train_dl=batches(), train_step=step, hooks=[Carried()])
        for n in range(2):
            if searches: assert not learn.lr_find(n_steps=12).outcome
            assert getattr(learn.hooks[0], 'n', 0) == 5*n
            learn.fit(1)
        return digest(learn)
    assert trained(True) == trained(False)

def test_a_step_that_relies_on_a_hook_that_stays_out_names_it():
    class Scale(MainProcessHook):
        def before_epoch(self, learn): self.scale = 2.
    def step(batch, learn): return {'loss': loss_of(learn, batch)*learn.get_hook(Scale).scale}
    learn = make_learner(train_dl=batches(), train_step=step, hooks=[Scale()])
    with pytest.raises(AttributeError) as e: learn.lr_find(n_steps=4)
    assert any('Scale took no part: set `in_dry_run = True`' in o for o in e.value.__notes__)
    Scale.in_dry_run = True
    learn.lr_find(n_steps=4)
    with pytest.raises(TypeError, match='`in_rehearsal`, which is called `in_dry_run` now'):
        type('Old', (Hook,), {'in_rehearsal': True})

def test_a_hook_that_writes_files_by_a_class_of_ours_stays_out(tmp_path):
    class Mine(Checkpoint): pass
    learn = make_learner(train_dl=batches(), hooks=[Mine(tmp_path, every=1)])
    learn.lr_find(n_steps=4)
    assert not list(tmp_path.iterdir())


# Things that belong to others

class Frozen(dict):
    "As the `config` of a diffusers model: some ways to write raise"
    def update(self, *args, **kwargs): raise AttributeError('frozen')
    clear = pop = setdefault = __delitem__ = __setattr__ = update

class Refusing:
    "A state that cannot be loaded"
    def __init__(self): self.n = 0
    def state_dict(self): return {'n': self.n}
    def load_state_dict(self, state): raise OSError('the disk is full')

@pytest.mark.parametrize('make', [lambda: Frozen({'a': 1}), Refusing], ids=['frozen', 'refusing'])
def test_weights_and_random_states_are_put_back_whatever_a_part_does(make):
    "They would else be those of a search that has diverged"
    torch.manual_seed(0)
    held = make()
    def step(batch, learn): return {'loss': loss_of(learn, batch)*(held is not None)}
    learn = make_learner(train_dl=batches(), train_step=step, state=[held] if isinstance(held, Refusing) else ())
    before, drawn = weights(learn.model), torch.get_rng_state()
    verbs = [lambda: learn.lr_find(n_steps=10), learn.summary, learn.doctor, learn.show_batch]
    for verb in verbs[:1] if isinstance(held, Refusing) else verbs:
        if isinstance(held, Refusing):
            with pytest.raises(OSError, match='disk'): verb()
        else: verb()
        assert same(weights(learn.model), before) and torch.equal(torch.get_rng_state(), drawn)

def test_what_nobody_has_written_to_is_not_written_to():
    "It may be shared, or in a file that can only be read"
    mean, seen = torch.zeros(4), collections.Counter(a=2)
    def step(batch, learn): return {'loss': loss_of(learn, (batch[0] - mean, batch[1]))*seen['a']}
    learn, version = make_learner(train_dl=batches(), train_step=step), mean._version
    learn.lr_find(n_steps=5)
    assert mean._version == version and seen == {'a': 2}


# Optimizers inside optimizers

class Own(torch.optim.Optimizer):
    "It has an attribute that torch leaves out of its copies, as those of pytorch_optimizer have"
    def __init__(self, params, lr=.1):
        self.beta = .9
        super().__init__(params, {'lr': lr})
    @torch.no_grad()
    def step(self, closure=None):
        for p in self.param_groups[0]['params']:
            m = self.state[p].setdefault('m', torch.zeros_like(p))
            p.sub_(m.mul_(self.beta).add_(p.grad), alpha=self.param_groups[0]['lr'])

class Lookahead(torch.optim.Optimizer):
    "Every third step goes half way; not initialized as torch's are"
    def __init__(self, optimizer):
        self.optimizer, self.param_groups, self.defaults = optimizer, optimizer.param_groups, optimizer.defaults
        self.n, self.state = 0, collections.defaultdict(dict)
        for p in self.param_groups[0]['params']: self.state[p]['slow'] = p.detach().clone()
    @torch.no_grad()
    def step(self, closure=None):
        self.optimizer.step()
        self.n += 1
        if self.n % 3: return
        for p in self.param_groups[0]['params']: p.copy_(self.state[p]['slow'].lerp_(p, .5))

class Private(torch.optim.Optimizer):
    "Adds noise, and calls an accountant, as Opacus does; everything else is that of the inner one"
    def __init__(self, optimizer): self.original_optimizer, self.step_hook = optimizer, None
    param_groups = property(lambda self: self.original_optimizer.param_groups)
    state = property(lambda self: self.original_optimizer.state)
    defaults = property(lambda self: self.original_optimizer.defaults)
    def step(self, closure=None):
        for p in self.param_groups[0]['params']: p.grad.add_(torch.randn(p.shape)*.01)
        self.step_hook(self)
        self.original_optimizer.step()

def private(params):
    spent, opt = [], Private(Own(params))
    opt.step_hook = lambda opt: spent.append(1)
    return opt

@pytest.mark.parametrize('optim', [lambda params: Lookahead(Own(params)), private], ids=['lookahead', 'private'])
def test_an_optimizer_inside_another_is_copied_with_its_attributes(optim):
    def trained(n_steps):
        torch.manual_seed(0)
        learn = make_learner(train_dl=batches(), optim=optim)
        for _ in range(2):
            if n_steps: learn.lr_find(n_steps=n_steps)
            learn.fit(1)
        return digest(learn)
    assert trained(0) == trained(7)
