"From the user's `fit` to the model's `forward` it is a short way, in one file"
import sys
from pathlib import Path

import pytest, torch, torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from common import Counted, batches, make_learner, problem
from trainer_nb.loop.metrics import accuracy
from trainer_nb.loop.hooks import Hook

TORCH, HERE = str(Path(torch.__file__).parent), __file__

class Looks(nn.Module):
    "Notes the frames between this file's call of `fit` and its own `forward`, without torch's and this file's"
    def __init__(self):
        super().__init__()
        self.linear, self.stacks = nn.Linear(4, 3), {True: set(), False: set()}
    def forward(self, x):
        frame, stack = sys._getframe(1), []
        while frame.f_code.co_name != 'user':
            stack.append((frame.f_code.co_filename, frame.f_code.co_name))
            frame = frame.f_back
        self.stacks[self.training].add(tuple(o for o in reversed(stack) if o[0] != HERE and not o[0].startswith(TORCH)))
        return self.linear(x)

def stacks(call, **kwargs):
    "Those of training and of validation"
    learn = make_learner(Looks(), **{'train_dl': batches(), 'valid_dl': batches(), **kwargs})
    def user(): call(learn)
    user()
    assert all(learn.model.stacks.values())
    return learn.model.stacks

def assert_short(stack, *calls):
    assert len(stack) <= 6 and stack[0][1] in calls, stack
    files = {file for file, _ in stack}
    assert len(files) == 1 and Path(files.pop()).parent.parent.name == 'trainer_nb', stack

def step(batch, learn): return {'loss': F.cross_entropy(learn.model(batch[0]), batch[1])}

def yields(batch, learn): yield 'linear', F.cross_entropy(learn.model(batch[0]), batch[1])

class Listens(Hook):
    def before_step(self, learn): pass
    def after_step(self, learn): pass

WAYS = {
    'model and loss': {},
    'DataLoader and tensors': dict(train_dl=DataLoader(TensorDataset(*problem()), batch_size=5, shuffle=True),
                                   valid_dl=problem()),
    'metrics, events and display': dict(metrics=[accuracy], hooks=[Listens()], display='text'),
    'step function': dict(train_step=step),
    'generator': dict(train_step=yields, optim={'linear': torch.optim.SGD}),
}

@pytest.mark.parametrize('way', WAYS)
def test_fit(way, capsys):
    for kwargs in dict(n_epochs=2), dict(max_steps=3, valid_every=1):
        for found in stacks(lambda learn: learn.fit(**kwargs), **WAYS[way]).values():
            for stack in found: assert_short(stack, 'fit')

def test_resume_validate_and_predict():
    def call(learn):
        for f in lambda: learn.fit(1), learn.resume, learn.validate, lambda: learn.predict(batches()): f()
    found = set().union(*stacks(call, hooks=[Counted(2)]).values())
    assert {stack[0][1] for stack in found} == {'fit', 'resume', 'validate', 'predict'}
    for stack in found: assert_short(stack, 'fit', 'resume', 'validate', 'predict')
