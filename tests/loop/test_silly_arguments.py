"What makes no sense is refused at once, with a message that says what was expected"
import math

import pytest

from common import batches, make_learner, problem
from trainer_nb.all import (
    Checkpoint, EMA, EarlyStopping, Freeze, GradAccum, GradClip, LRScheduler, LambdaHook, Metric, OneCycle, Schedule,
    TensorLoader, WarmupCosine
)

SILLY = {'None': None, 'nan': math.nan, 'inf': math.inf, '-inf': -math.inf, 'True': True, "''": '', '-1': -1, '0': 0,
         '[]': [], '{}': {}, 'object': object()}

def fit(*args, **kwargs): make_learner(train_dl=batches()[:1], valid_dl=batches()[:1]).fit(*args, **kwargs)

# call of one argument → names in SILLY that it takes, because they make sense there
CALLS = {
    'fit(n)': (fit, ''),
    'fit(max_steps)': (lambda o: fit(max_steps=o), ''),
    'fit(valid_every)': (lambda o: fit(1, valid_every=o), 'None'),
    'fit(lr)': (lambda o: fit(1, lr=o), 'None'),
    'fit(on_interrupt)': (lambda o: fit(1, on_interrupt=o), ''),
    'Learner(seed)': (lambda o: make_learner(seed=o), 'None 0'),
    'Learner(bs)': (lambda o: make_learner(train_dl=problem(), bs=o), ''),
    'TensorLoader(bs)': (lambda o: TensorLoader(*problem(), bs=o), ''),
    'Checkpoint(keep)': (lambda o: Checkpoint('x', keep=o), ''),
    'EarlyStopping(min_delta)': (lambda o: EarlyStopping(min_delta=o), '0'),
    'EMA(decay)': (EMA, ''),
    'GradAccum': (GradAccum, ''),
    'GradClip': (GradClip, 'inf'),
    'Freeze': (Freeze, ''),
    'Metric': (Metric, ''),
    'OneCycle(lr_max)': (OneCycle, 'None'),
    'WarmupCosine(warmup)': (lambda o: WarmupCosine(warmup=o), '0'),
    'Schedule, a curve': (lambda o: fit(1, hooks=[Schedule(lambda pos: o)]), '0'),
    'LRScheduler(step)': (lambda o: LRScheduler(lambda opt: None, step=o), ''),
    'LambdaHook(ord)': (lambda o: make_learner(hooks=LambdaHook(ord=o, after_step=print)), '-1 0 inf -inf'),
}

def refuses(call, value):
    try: call(value)
    except (TypeError, ValueError, FileNotFoundError) as e: return len(str(e)) > 10
    return False

@pytest.mark.parametrize('name', CALLS)
def test_arguments_that_make_no_sense(name, capsys):
    call, fine = CALLS[name]
    assert {o for o in SILLY if not refuses(call, SILLY[o])} == set(fine.split())

def test_saving_and_fitting_inside_a_batch_are_refused(tmp_path):
    "The state would hold half of it; a request is met after the batch"
    seen = []
    def save(learn, *nxt):
        with pytest.raises(RuntimeError, match='inside a batch.*learn.request'): learn.save(tmp_path/'a')
        with pytest.raises(RuntimeError, match='in a fit already'): learn.fit(1)
        seen.append(learn.training)
        return nxt and nxt[0]()
    learn = make_learner(train_dl=batches()[:1], valid_dl=batches()[:1])
    learn.fit(1, hooks=[LambdaHook(before_step=save, do_step=save, after_step=save)])
    assert seen == 3*[True] + 3*[False] and not (tmp_path/'a').exists()
    learn.fit(1, hooks=[LambdaHook(after_step=lambda learn: learn.request(lambda learn: learn.save(tmp_path/'a')),
                                   after_epoch=lambda learn: learn.save(tmp_path/'b'))])
    assert (tmp_path/'a').exists() and (tmp_path/'b').exists()
