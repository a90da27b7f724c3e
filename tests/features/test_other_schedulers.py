"Plain functions of the step as schedulers, and schedulers that want to be told the step, as timm's do"
import math

import pytest
from trainer_nb.all import *

def learner(*hooks, lr=.1, n=40, **kwargs):
    set_seed(0)
    x = torch.randn(n, 3)
    return Learner(nn.Linear(3, 1), (x, x[:, :1]), (x, x[:, :1]), bs=8, loss_fn=F.mse_loss, optim=torch.optim.SGD,
                   lr=lr, hooks=hooks, display=False, device='cpu', seed=1, **kwargs)

def rate(step):
    "As in nanoGPT: a linear warm-up from 0, then half a cosine wave"
    return .1*step/4 if step < 4 else .01 + .09*(1 + math.cos(math.pi*(step - 4)/11))/2

@pytest.mark.parametrize('accum', [1, 2])
def test_a_function_of_the_step(accum):
    learn = learner(LRScheduler(rate), GradAccum(accum))
    planned = learn.plot_schedule(3).steps['lr']
    learn.fit(3)
    n = math.ceil(5/accum)
    want = [rate(i//5*n + i%5//accum) for i in range(15)]
    assert learn.history.steps['lr'] == pytest.approx(want) == planned

def test_groups_keep_their_ratio_and_a_stopped_fit_its_place(tmp_path):
    def make(): return learner(LRScheduler(rate), lr={'bias': .02, 'weight': .2})
    whole, stopped, again = make(), make(), make()
    whole.fit(3)
    steps = whole.history.steps
    assert steps['lr_bias'] == pytest.approx([.1*rate(i) for i in range(15)]) and max(steps['lr_weight']) > .09
    stopped.fit(3, hooks=[LambdaHook(after_step=lambda learn: learn.stop() if learn.history.n_steps == 7 else None)])
    stopped.save(tmp_path/'a.pt')
    again.load(tmp_path/'a.pt')
    again.resume()
    assert again.history.steps == steps

class Timm:
    "The interface of timm's schedulers: `step` and `step_update` want the number of those that are done"
    def __init__(self, opt, t_in_epochs=True):
        self.opt, self.t_in_epochs, self.seen = opt, t_in_epochs, []
        self.base = [g['lr'] for g in opt.param_groups]

    def _set(self, t):
        self.seen.append(t)
        for g, lr in zip(self.opt.param_groups, self.base): g['lr'] = lr/(1 + t)

    def step(self, epoch, metric=None):
        if self.t_in_epochs: self._set(epoch)

    def step_update(self, num_updates, metric=None):
        if not self.t_in_epochs: self._set(num_updates)

    def state_dict(self): return {'seen': self.seen, 'base': self.base}
    def load_state_dict(self, state): self.seen, self.base = state['seen'], state['base']

def test_timm(tmp_path):
    learn = learner(LRScheduler(lambda opt: Timm(opt), 'epoch'))
    learn.fit(3)
    assert learn.history.epochs['lr'] == pytest.approx([.1, .1/2, .1/3])
    steps = learner(LRScheduler(lambda opt: Timm(opt, False)))
    steps.fit(2)
    assert steps.history.steps['lr'] == pytest.approx([.1/(1 + i) for i in range(10)])
    stopped, again = (learner(LRScheduler(lambda opt: Timm(opt, False))) for _ in range(2))
    stopped.fit(2, hooks=[LambdaHook(after_step=lambda learn: learn.stop() if learn.history.n_steps == 7 else None)])
    stopped.save(tmp_path/'a.pt')
    again.load(tmp_path/'a.pt')
    again.resume()
    assert again.history.steps == steps.history.steps
    with pytest.raises(ValueError, match='counts epochs'): learner(LRScheduler(lambda opt: Timm(opt))).fit(1)

def test_what_is_no_scheduler():
    with pytest.raises(TypeError, match='names its parameter so'): learner(LRScheduler(lambda i: .1)).fit(1)
    with pytest.raises(ValueError, match='sets the learning rate nan'):
        learner(LRScheduler(lambda step: math.nan if step == 2 else .1)).fit(1)
    with pytest.raises(ValueError, match='looks at a metric'):
        learner(LRScheduler(lambda opt: torch.optim.lr_scheduler.ReduceLROnPlateau(opt))).fit(1)
