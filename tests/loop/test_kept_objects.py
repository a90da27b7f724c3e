"""What training changes outside of the learner is saved and resumed,
where `Learner(state=...)` names it"""
import random

import numpy as np, pytest, torch, torch.nn.functional as F

from common import batches, digest, make_learner, stop_at
from trainer_nb.save.checkpoint import Checkpoint
from trainer_nb.features.gradients import GradAccum


class Env:
    "An environment with a position, and random numbers of its own"
    def __init__(self): self.rand, self.position, self.log = random.Random(3), np.zeros(4, dtype=np.float32), []
    def step(self):
        self.position = self.position + np.float32(self.rand.random())
        self.log = [*self.log, float(self.position[0])]
        return torch.from_numpy(self.position)
    def state_dict(self):
        version, numbers, gauss = self.rand.getstate()
        return {'rand': [version, list(numbers), gauss], 'position': self.position, 'log': self.log}
    def load_state_dict(self, state):
        version, numbers, gauss = state['rand']
        self.rand.setstate((version, tuple(numbers), gauss))
        self.position, self.log = state['position'], state['log']

ENV = {}        # a global, of which nothing else knows

def step(batch, learn):
    x, y = batch
    if learn.training: x = x + ENV['now'].step()
    pred = learn.model(x)
    return {'loss': F.cross_entropy(pred, y), 'pred': pred, 'targ': y}

def start(env, named=True, **kwargs):
    torch.manual_seed(0)
    return make_learner(train_dl=batches(), valid_dl=batches(seed=2), train_step=step, seed=7,
                        **{'state': [env] if named else (), **kwargs})

def use(env):
    ENV['now'] = env
    return env

@pytest.mark.parametrize('kind, at', [('list', 3), ('dict', 5)])
def test_a_checkpoint_holds_them(kind, at, tmp_path):
    "In mid-epoch and at its end; arrays come back as arrays"
    def given(env): return {'state': [env] if kind == 'list' else {'world': env}}
    whole = start(use(env := Env()), **given(env))
    whole.fit(2)
    expected = env.log
    stopped = start(use(env := Env()), **given(env))
    stopped.fit(2, hooks=[stop_at(at), Checkpoint(tmp_path)])
    other = start(use(env := Env()), **given(env))
    other.fit(2, hooks=[Checkpoint(tmp_path)], resume=True)
    assert digest(other) == digest(whole) and env.log == expected and len(expected) == 10
    assert type(env.position) is np.ndarray and env.position.dtype == np.float32

def test_what_has_no_counterpart_is_named(tmp_path, recwarn):
    learn = start(use(Env()), state={'a': ENV['now']})
    learn.fit(1)
    learn.save(tmp_path/'a')
    start(use(Env()), state={'b': ENV['now']}, hooks=[GradAccum(2)]).load(tmp_path/'a')
    said = ' '.join(str(o.message) for o in recwarn)
    assert 'holds no state of the hook GradAccum' in said
    assert 'has no state for b in `state`' in said and 'holds the state of a, which this learner does not have' in said
