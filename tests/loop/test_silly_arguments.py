"What makes no sense is refused at once, with a message that says what was expected"
import math, random

import pytest, torch

from common import batches, make_learner, problem
from trainer_nb.all import (Checkpoint, EMA, EarlyStopping, Freeze, GradAccum,
                            GradClip, LRScheduler, LambdaHook, Metric, NaNGuard, OneCycle, Schedule, TensorLoader,
                            WarmupCosine, set_seed)
from trainer_nb.features.schedules import combine, linear

NAN, INF = math.nan, math.inf
SILLY = {'None': None, 'nan': NAN, 'inf': INF, '-inf': -INF, 'True': True, "''": '', '-1': -1, '0': 0, '[]': [],
         '{}': {}, 'object': object()}

# call of one argument → names in SILLY that it takes, because they make sense there
CALLS = {
    'fit(n)': (lambda o: make_learner(train_dl=batches()[:1]).fit(o), ''),
    'fit(max_steps)': (lambda o: make_learner(train_dl=batches()[:1]).fit(max_steps=o), ''),
    'fit(valid_every)': (lambda o: make_learner(valid_dl=batches()[:1]).fit(1, valid_every=o), 'None'),
    'fit(lr)': (lambda o: make_learner(train_dl=batches()[:1]).fit(1, lr=o), 'None'),
    'fit(on_interrupt)': (lambda o: make_learner(train_dl=batches()[:1]).fit(1, on_interrupt=o), ''),
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
    'Schedule, a curve': (lambda o: make_learner(train_dl=batches()[:2]).fit(1, hooks=[Schedule(lambda pos: o)]), '0'),
    'LRScheduler(step)': (lambda o: LRScheduler(lambda opt: None, step=o), ''),
    'combine': (lambda o: combine(o, [linear(0., 1.)]), ''),
    'LambdaHook(ord)': (lambda o: make_learner(hooks=LambdaHook(ord=o, after_step=print)), '-1 0 inf -inf'),
}

def refuses(call, value):
    try: call(value)
    except (TypeError, ValueError, FileNotFoundError) as e: return len(str(e)) > 10
    return False

@pytest.mark.parametrize('name', CALLS)
def test_arguments_that_make_no_sense(name, capsys):
    call, fine = CALLS[name]
    accepted = [o for o in SILLY if not refuses(call, SILLY[o])]
    assert set(accepted) == set(fine.split())

@pytest.mark.parametrize('value', [NAN, -1.])
def test_rates_of_schedules_that_are_none(value):
    "They are seen before a step is made with them"
    for hook in Schedule(lambda pos: value if pos else 1.), Schedule(None, lambda pos: value, lr_max=.1):
        learn = make_learner(train_dl=batches()[:3], hooks=[hook])
        with pytest.raises(ValueError, match='expected a'): learn.fit(1)
        assert learn.state.optimizer_step <= 1 and all(p.isfinite().all() for p in learn.model.parameters())

def test_a_seed_that_one_generator_refuses_seeds_none():
    before = random.getstate(), torch.get_rng_state()
    for seed in -1, 2**32, 1.5:
        with pytest.raises((TypeError, ValueError), match='the seed is'): set_seed(seed)
    assert random.getstate() == before[0] and torch.equal(torch.get_rng_state(), before[1])

def test_saving_inside_a_batch_is_refused(tmp_path):
    "The state would hold half of it"
    seen = []
    def save(learn, *nxt):
        with pytest.raises(RuntimeError, match='inside a batch.*learn.request'): learn.save(tmp_path/'a')
        seen.append(learn.training)
        return nxt and nxt[0]()
    learn = make_learner(train_dl=batches()[:1], valid_dl=batches()[:1])
    for point in 'before_step', 'do_step', 'after_loss', 'after_step': learn.fit(1, hooks=[LambdaHook(**{point: save})])
    assert seen == [True, False]*4 and not (tmp_path/'a').exists()
    learn.fit(1, hooks=[LambdaHook(after_step=lambda learn: learn.request(lambda learn: learn.save(tmp_path/'a')),
                                   after_epoch=lambda learn: learn.save(tmp_path/'b'))])
    learn.save(tmp_path/'c')
    assert (tmp_path/'a').exists() and (tmp_path/'b').exists()

def test_buffers_are_those_of_the_last_step_when_a_batch_of_a_window_is_nan():
    "NaNGuard looks after each batch, and the optimizer steps after two: the bad one has been through BatchNorm already"
    def run(data, *hooks):
        torch.manual_seed(0)
        learn = make_learner(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 3)),
                             data, hooks=[GradAccum(2), *hooks])
        return learn
    good = batches()[:2]
    bad = [(torch.full_like(x, math.nan), y) for x, y in batches()[2:4]]
    learn, reference = run(good + bad, NaNGuard(1)), run(good)
    with pytest.raises(FloatingPointError, match='buffers'): learn.fit(1)
    reference.fit(1)
    for a, b in zip(learn.model.state_dict().values(), reference.model.state_dict().values()): assert torch.equal(a, b)
