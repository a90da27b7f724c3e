"What training changes outside of the learner is saved and resumed, where `Learner(state=...)` names it"
import random

import numpy as np, torch, torch.nn.functional as F

from common import batches, digest, make_learner, stop_at
from trainer_nb.features.gradients import GradAccum
from trainer_nb.save.checkpoint import Checkpoint

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

def start(make_state, **kwargs):
    "A learner that trains in an environment, of which nothing else knows"
    env = Env()
    def step(batch, learn):
        x, y = batch
        pred = learn.model(x + env.step() if learn.training else x)
        return {'loss': F.cross_entropy(pred, y), 'pred': pred, 'targ': y}
    torch.manual_seed(0)
    learn = make_learner(train_dl=batches(), valid_dl=batches(seed=2), train_step=step, seed=7, state=make_state(env),
                         **kwargs)
    return learn, env

def test_a_checkpoint_holds_them(tmp_path):
    "In mid-epoch, of a list, and at its end, of a dict; arrays come back as arrays"
    for at, make_state in (3, lambda env: [env]), (5, lambda env: {'world': env}):
        (whole, expected), (stopped, _), (other, env) = (start(make_state) for _ in range(3))
        whole.fit(2)
        stopped.fit(2, hooks=[stop_at(at), Checkpoint(tmp_path/str(at))])
        other.fit(2, hooks=[Checkpoint(tmp_path/str(at))], resume=True)
        assert digest(other) == digest(whole) and env.log == expected.log and len(env.log) == 10
        assert type(env.position) is np.ndarray and env.position.dtype == np.float32

def test_what_has_no_counterpart_is_named(tmp_path, recwarn):
    learn, _ = start(lambda env: {'a': env})
    learn.fit(1)
    learn.save(tmp_path/'a')
    start(lambda env: {'b': env}, hooks=[GradAccum(2)])[0].load(tmp_path/'a')
    said = ' '.join(str(o.message) for o in recwarn)
    for words in 'no state of the hook GradAccum', 'no state for b in `state`', 'the state of a, which':
        assert words in said
