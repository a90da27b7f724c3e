"A policy learns by episodes, in an environment outside of the learner (Williams 1992)"
import random

import torch
from torch import nn
from torch.distributions import Categorical

from trainer_nb.all import Learner

N_EPOCHS, N_EPISODES = 2, 6

class Walk:
    "Five places in a row with wind: a reward at the last one, and the wind grows with the years"
    def __init__(self): self.rand, self.years, self.place = random.Random(3), 0, 2

    def reset(self):
        self.years, self.place, self.n = self.years + 1, 2, 0
        return self.seen()

    def seen(self): return torch.nn.functional.one_hot(torch.tensor(self.place), 5).float()

    def step(self, action):     # (what is seen, reward, whether it is over)
        wind = self.rand.random() < .04*self.years
        self.n += 1
        self.place += 1 if action and not wind else -1
        return self.seen(), float(self.place == 4) - .1, self.place in (0, 4) or self.n == 10

    def state_dict(self):
        version, numbers, gauss = self.rand.getstate()
        return {'rand': [version, list(numbers), gauss], 'years': self.years}

    def load_state_dict(self, state):
        version, numbers, gauss = state['rand']
        self.rand.setstate((version, tuple(numbers), gauss))
        self.years = state['years']

def policy():
    return nn.Sequential(nn.Linear(5, 8), nn.Dropout(.1), nn.ReLU(), nn.Linear(8, 2), nn.Softmax(-1))

def episode(policy, env):
    "Logarithms of the probabilities of what was done, and rewards"
    seen, is_over, log_probs, rewards = env.reset(), False, [], []
    while not is_over:
        m = Categorical(policy(seen))
        action = m.sample()
        seen, reward, is_over = env.step(action.item())
        log_probs.append(m.log_prob(action))
        rewards.append(reward)
    return log_probs, rewards

def policy_loss(log_probs, rewards):
    returns, total = [], 0.
    for r in reversed(rewards): returns.insert(0, total := r + .99*total)
    returns = torch.tensor(returns)
    returns = (returns - returns.mean())/(returns.std(correction=0) + 1e-6)
    return torch.stack([-p*r for p, r in zip(log_probs, returns)]).sum()

def adam(params): return torch.optim.Adam(params, lr=1e-2)

def learner(**kwargs):
    torch.manual_seed(0)
    env = Walk()
    def step(batch, learn):
        log_probs, rewards = episode(learn.model, env)
        learn.record('reward', sum(rewards))
        return {'loss': policy_loss(log_probs, rewards)}
    return Learner(policy(), range(N_EPISODES), train_step=step, optim=adam, state=[env], **kwargs)
