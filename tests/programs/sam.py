"Sharpness-aware minimization: each step evaluates the loss at two places (Foret et al. 2020)"
import torch, torch.nn.functional as F
from torch import nn

from programs import loaders
from trainer_nb.all import Learner, accuracy

N_EPOCHS = 2

class SAM(torch.optim.Optimizer):
    def __init__(self, params, base, rho=.05, **kwargs):
        super().__init__(params, {'rho': rho, **kwargs})
        self.base = base(self.param_groups, **kwargs)
        self.param_groups, self.state = self.base.param_groups, self.base.state

    def load_state_dict(self, state):
        super().load_state_dict(state)
        self.base.param_groups, self.base.state = self.param_groups, self.state     # momentum, too

    @torch.no_grad()
    def first_step(self, zero_grad=False):
        "Climb to the worst place nearby"
        params = [p for g in self.param_groups for p in g['params'] if p.grad is not None]
        norm = torch.stack([p.grad.norm() for p in params]).norm()
        for p in params:
            self.state[p]['old'] = p.clone()
            p.add_(p.grad*(self.defaults['rho']/(norm + 1e-12)))
        if zero_grad: self.zero_grad()

    @torch.no_grad()
    def second_step(self, zero_grad=False):
        "Go back, and step by the gradient from there"
        for g in self.param_groups:
            for p in g['params']:
                if p.grad is not None: p.copy_(self.state[p]['old'])
        self.base.step()
        if zero_grad: self.zero_grad()

    @torch.no_grad()
    def step(self, closure=None):
        self.first_step(zero_grad=True)
        torch.enable_grad()(closure)()
        self.second_step()

def network(): return nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Dropout(.1), nn.Linear(16, 3))

def sam(params): return SAM(params, torch.optim.SGD, lr=.1, momentum=.9)

def learner(**kwargs):
    torch.manual_seed(0)
    return Learner(network(), *loaders(44), loss_fn=F.cross_entropy, optim=sam, metrics=[accuracy], **kwargs)
