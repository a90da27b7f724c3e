"What a notebook shows of an error: the user's frames, one of ours, and where in the training it was"
import linecache, signal, traceback

import pytest
from torch import nn
from torch.utils.data import DataLoader

from common import Broken as BrokenData, batches, formatter, make_learner
from trainer_nb.all import LambdaHook
from trainer_nb.base.text import owner

def raised(learn, code='fit(1)'):
    "The exception of a cell"
    code = f'learn.{code}\n'
    linecache.cache['<cell>'] = len(code), None, [code], '<cell>'
    with pytest.raises(Exception) as e: exec(compile(code, '<cell>', 'exec'), {'learn': learn, 'batches': batches})
    return e.value

def names(tb): return [(owner(o.filename), o.name) for o in traceback.extract_tb(tb)]

class Oops(Exception): pass

class Broken(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(4, 3)
    def forward(self, x): self.deeper(self.body(x))
    def deeper(self, x): raise Oops('in the model')

def step(batch, learn): raise Oops
def metric(pred, targ): raise Oops
def around(learn, nxt):
    nxt()
    raise Oops

def broken(): return {'model': nn.Sequential(nn.Identity(), Broken()), 'valid_dl': batches()}

IN_MODEL = ['forward', 'deeper']

@pytest.mark.parametrize('make, code, users', [
    (broken, 'fit_one_cycle(1, .1)', IN_MODEL), (broken, 'predict(batches())', IN_MODEL),
    (broken, 'lr_find()', IN_MODEL), (lambda: {'metrics': [metric]}, 'fit(1)', ['metric']),
    (lambda: {'hooks': [LambdaHook(do_step=around)]}, 'fit(1)', ['around']),
    (lambda: {'train_dl': DataLoader(BrokenData())}, 'fit(1)', ['__getitem__']),
    (lambda: {'eval_step': step, 'valid_dl': batches()}, 'fit(1)', ['step'])])
def test_a_cell_shows_the_users_frames_and_where_it_was(make, code, users):
    e = raised(make_learner(**make()), code)
    assert names(e.__traceback__)[1:] == [('user', name) for name in ('<module>', *users)]
    shown = formatter().text(type(e), e, e.__traceback__.tb_next)      # as IPython prints it
    assert shown.count('\n') < 25 and len(names(e.full_traceback)) > 3 + len(users)
    where = 'batch: (float32 (5, 4), int64 (5,))' if users == IN_MODEL else 'in epoch 0'
    assert where in e.__notes__[-1] and 'show_error()' in ''.join(e.__notes__)

def test_a_bug_of_the_library_shows_where_it_is(monkeypatch):
    monkeypatch.setattr('trainer_nb.loop.fit.to_device', None)
    e = raised(make_learner())
    ours = [name for kind, name in names(e.__traceback__) if kind == 'ours']
    assert ours[0] == 'fit' and len(ours) == 2 and ours[-1] == names(e.full_traceback)[-1][1]

def test_where_interrupts_are_ignored_they_stay_so():
    "As under nohup"
    old = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        learn = make_learner(hooks=[LambdaHook(before_step=lambda learn: signal.raise_signal(signal.SIGINT))])
        learn.fit(1)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        assert learn.cancelled is None and len(learn.history) == 1
    finally: signal.signal(signal.SIGINT, old)
