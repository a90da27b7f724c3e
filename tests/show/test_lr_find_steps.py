"A search leaves no trace in what a step, a loss function and the functions of hooks hold"
import collections

import pytest, torch, torch.nn.functional as F

from common import batches, digest, make_learner, same, weights
from test_lr_find import loss_of
from trainer_nb.loop.hooks import Hook, MainProcessHook
from trainer_nb.save.checkpoint import Checkpoint


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
