"A search leaves no trace in what a step, a loss function and the functions of hooks hold"
import collections

import pytest, torch

from common import batches, digest, make_learner, same, weights
from test_lr_find import loss_of
from trainer_nb.loop.hooks import MainProcessHook
from trainer_nb.save.checkpoint import Checkpoint


def test_a_step_that_relies_on_a_hook_that_stays_out_names_it():
    class Scale(MainProcessHook):
        def before_epoch(self, learn): self.scale = 2.
    def step(batch, learn): return {'loss': loss_of(learn, batch)*learn.get_hook(Scale).scale}
    learn = make_learner(train_dl=batches(), train_step=step, hooks=[Scale()])
    with pytest.raises(AttributeError) as e: learn.lr_find(n_steps=4)
    assert any('Scale took no part: set `in_dry_run = True`' in o for o in e.value.__notes__)
    Scale.in_dry_run = True
    learn.lr_find(n_steps=4)

def test_a_hook_that_writes_files_by_a_class_of_ours_stays_out(tmp_path):
    class Mine(Checkpoint): pass
    learn = make_learner(train_dl=batches(), hooks=[Mine(tmp_path, every=1)])
    learn.lr_find(n_steps=4)
    assert not list(tmp_path.iterdir())


# Things that belong to others

class Refusing:
    "A state that cannot be loaded"
    def __init__(self): self.n = 0
    def state_dict(self): return {'n': self.n}
    def load_state_dict(self, state): raise OSError('the disk is full')

def test_weights_and_random_states_are_put_back_whatever_a_part_does():
    "They would else be those of a search that has diverged"
    learn = make_learner(train_dl=batches(), state=[Refusing()])
    before, drawn = weights(learn.model), torch.get_rng_state()
    with pytest.raises(OSError, match='disk'): learn.lr_find(n_steps=10)
    assert same(weights(learn.model), before) and torch.equal(torch.get_rng_state(), drawn)


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
