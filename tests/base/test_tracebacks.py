"What a notebook shows of an error: the user's frames, one of ours, and where in the training it was"
import io, linecache, signal, sys, traceback
from contextlib import redirect_stdout

import pytest
from torch import nn
from torch.utils.data import DataLoader, Dataset

from common import batches, formatter, make_learner
from trainer_nb.all import LambdaHook, show_error
from trainer_nb.base.text import owner


def printed(e):
    "The lines that IPython prints of an exception that came out of a `cell`"
    text = formatter().text(type(e), e, e.__traceback__.tb_next)        # without this file's own frame
    return text.splitlines()

def raised(learn, code='learn.fit(1)'):
    "The exception of a cell"
    linecache.cache['<cell>'] = len(code), None, [code + '\n'], '<cell>'
    with pytest.raises(Exception) as e: exec(compile(code, '<cell>', 'exec'), {'learn': learn, 'batches': batches})
    return e.value

def names(tb): return [(owner(o.filename), o.name) for o in traceback.extract_tb(tb)]

def assert_short(e, *users):
    "There are the cell and the user's frames; the whole traceback holds many more"
    assert names(e.__traceback__)[1:] == [('user', '<module>'), *(('user', name) for name in users)]
    assert len(printed(e)) <= 25, '\n'.join(printed(e))
    assert len(names(e.full_traceback)) > 3 + len(users)

class Oops(Exception): pass

class Broken(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(4, 3)
    def forward(self, x): self.deeper(self.body(x))
    def deeper(self, x): raise Oops('in the model')

class Samples(Dataset):
    def __len__(self): return 20
    def __getitem__(self, i): raise Oops('in the data')

def step(batch, learn): raise Oops('in the step')
def metric(pred, targ): raise Oops('in the metric')
def around(learn, nxt):
    nxt()
    raise Oops('around a step')

WHERE = {
    'model in a container': (lambda: dict(model=nn.Sequential(nn.Identity(), nn.Sequential(Broken()))),
                             ['forward', 'deeper']),
    'metric': (lambda: dict(metrics=[metric]), ['metric']),
    'wrapper': (lambda: dict(hooks=[LambdaHook(do_step=around)]), ['around']),
    'data': (lambda: dict(train_dl=DataLoader(Samples(), batch_size=5)), ['__getitem__']),
    'validation': (lambda: dict(eval_step=step, valid_dl=batches()), ['step']),
}

@pytest.mark.parametrize('make, users', WHERE.values(), ids=WHERE)
def test_frames_are_the_users(make, users):
    learn = make_learner(**make())
    e = raised(learn)
    assert_short(e, *users)
    assert type(e) is Oops and 'in epoch 0' in e.__notes__[-1] and 'show_error()' in '\n'.join(e.__notes__)

@pytest.mark.parametrize('verb', ['validate()', 'predict(batches())', 'lr_find()', 'fit_one_cycle(1, .1)'])
def test_other_verbs(verb):
    e = raised(make_learner(Broken(), valid_dl=batches()), f'learn.{verb}')
    assert_short(e, 'forward', 'deeper')
    assert 'batch: (float32 (5, 4), int64 (5,))' in e.__notes__[-1]

def test_a_bug_of_the_library_shows_where_it_is(monkeypatch):
    monkeypatch.setattr('trainer_nb.loop.fit.to_device', None)
    e = raised(make_learner())
    assert [o for o in names(e.__traceback__) if o[0] == 'ours'] == [('ours', 'fit'), ('ours', 'begin')]
    assert [name for _, name in names(e.full_traceback)] == ['fit', 'run', 'run', 'begin']

def test_the_whole_traceback_can_be_shown(monkeypatch):
    e = raised(make_learner(Broken()))
    before = names(e.__traceback__)
    for given in (e,), ():
        monkeypatch.setattr(sys, 'last_value', e, raising=False)
        with redirect_stdout(io.StringIO()) as out: show_error(*given)
        for name in 'fit', 'run', '_call_impl', 'forward', 'deeper', 'Oops: in the model':
            assert name in out.getvalue()
    assert names(e.__traceback__) == before
    with pytest.raises(Oops) as again: raise e.with_traceback(e.full_traceback)
    assert ('torch', '_call_impl') in names(again.value.__traceback__)


# Interrupts

def test_where_interrupts_are_ignored_they_stay_so():
    "As under nohup"
    old = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        learn = make_learner(hooks=[LambdaHook(before_step=lambda learn: signal.raise_signal(signal.SIGINT))])
        learn.fit(1)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        assert learn.cancelled is None and len(learn.history) == 1
    finally: signal.signal(signal.SIGINT, old)
