"What really runs is what `describe_hooks` says, in the order of the design; cancels and errors end where they should"
import traceback
from collections import Counter

import pytest, torch

from common import Share, batches, make_learner, same, sgd, weights
from trainer_nb.loop.hooks import (
    EVENTS, LIFECYCLE, STEPS, CancelEpoch, CancelFit, CancelStep, Hook, LambdaHook, MainProcessHook
)

def logged(f, point, name, log):
    "A method that does what `f` does, or nothing, and writes (point, name) into `log`"
    def g(self, learn, *nxt):
        log.append((point, name))
        return f(self, learn, *nxt) if f else nxt and nxt[0]()
    return g

def named(name, log, points=LIFECYCLE, base=Hook, **attrs):
    "A hook of a new class with this name that logs its calls"
    methods = {p: logged(attrs.pop(p, getattr(base, p, None)), p, name, log) for p in points}
    return type(name, (base,), {**methods, **attrs})

def lambda_hook(name, log, **kwargs):
    "The same made of functions"
    def unbound(f): return lambda learn, *nxt: f(None, learn, *nxt)
    return LambdaHook(name=name, **{p: unbound(logged(None, p, name, log)) for p in LIFECYCLE}, **kwargs)

# The trace equals the table

def check(learn, log):
    "Order and number of all calls in `log` against the table"
    rows = learn.describe_hooks().rows
    assert {(r.point, r.hook): r.calls for r in rows if r.calls} == Counter(log)
    assert [r.point for r in rows] == sorted((r.point for r in rows), key=LIFECYCLE.index)
    for point in LIFECYCLE:
        hooks, seen = [r.hook for r in rows if r.point == point], [h for p, h in log if p == point]
        if point in STEPS:      # a hook may end its round
            starts = [i for i, h in enumerate(seen) if h == hooks[0]] + [len(seen)]
            assert starts[0] == 0 and all(seen[i:j] == hooks[:j - i] for i, j in zip(starts, starts[1:])), point
        else: assert seen == (hooks*len(seen))[:len(seen)], point       # whole rounds, in the table's order
    assert learn.valid_dl is not None or not {'before_valid', 'after_valid'} & {r.point for r in rows}

def two_losses(batch, learn):
    pred = learn.model['a'](batch[0])
    yield 'a', pred.square().mean()
    yield 'b', learn.model['b'](batch[0]).mean()
    return {'pred': pred, 'targ': batch[1]}

def at_odd_batches(self, learn, nxt): return nxt() if learn.state.batch_idx % 2 else False

def a_and_b(log): return named('A', log)(), named('B', log, ord=-1)()

COMBINATIONS = {    # name: (hooks, what the learner is given, what fit is given)
    'LambdaHook': (lambda log: [lambda_hook('f', log, ord=1), named('A', log)(), named('C', log, ['do_step'])()],
                   {}, {}),
    'middleware that skips': (lambda log: [named('A', log)(), named('Odd', log, ['do_opt_step'], ord=5,
                                                                    do_opt_step=at_odd_batches)()], {}, {}),
    'generator step': (a_and_b, dict(train_step=two_losses, optim=dict.fromkeys('ab', torch.optim.SGD), valid_dl=None,
                                     model=torch.nn.ModuleDict({o: torch.nn.Linear(4, 3) for o in 'ab'})), {}),
    'not on the main process': (lambda log: [named('A', log)(), named('Main', log, base=MainProcessHook)()], {}, {}),
    'max_steps': (a_and_b, {}, dict(n_epochs=None, max_steps=3, valid_every=1)),
}

@pytest.mark.parametrize('key', COMBINATIONS)
def test_trace_equals_table(key):
    (make_hooks, kwargs, fit), log = COMBINATIONS[key], []
    learn = make_learner(train_dl=batches()[:2], **{'valid_dl': batches()[2:4], **kwargs})
    for h in make_hooks(log): learn.add_hook(h)
    learn.world.rank = int(key == 'not on the main process')
    before = [(r.point, r.hook) for r in learn.describe_hooks().rows]
    for _ in range(2):      # counts are those of the last fit
        log.clear()
        learn.fit(**{'n_epochs': 1, **fit})
        check(learn, log)
        assert before == [(r.point, r.hook) for r in learn.describe_hooks().rows]       # it said so in advance

def test_hooks_that_come_and_go_in_mid_fit():
    "A pass keeps the hooks that it opened with: a change acts from the next one on, with all events"
    log, refused = [], []
    learn = make_learner(train_dl=batches()[:2], valid_dl=batches()[2:3], hooks=[named('A', log)()])
    b = named('B', log, LIFECYCLE[1:-1], ord=-1)()     # without before_fit and after_fit
    def change(learn):
        if not learn.training or learn.state.batch_idx != 1: return
        if learn.state.epoch: return learn.remove_hook(b)
        learn.add_hook(b)
        with pytest.raises(RuntimeError, match='Opens.*before_fit is over') as e:
            learn.add_hook(named('Opens', log, ['before_fit'])())
        refused.append(e)
    learn.fit(2, hooks=[LambdaHook(after_step=change, ord=-2)])
    def at(point): return ''.join(h for p, h in log if p == point)
    train, valid = ['AA', 'BABA'], ['BA', 'A']
    assert at('before_step') == at('after_step') == train[0] + valid[0] + train[1] + valid[1]
    for point in 'do_backward', 'do_opt_step', 'after_backward': assert at(point) == ''.join(train)
    assert at('before_valid') == ''.join(valid) and at('before_epoch') == 'ABA' and refused

# The order of the design

BATCH = ['before_step', 'do_step', 'after_pred', 'after_loss', 'do_backward', 'after_backward', 'do_opt_step',
         'do_zero_grad', 'after_step']
TRAIN = [('train', p) for p in ['before_epoch'] + 2*BATCH]
VALID = [('valid', p) for p in ['before_valid', *BATCH[:4], 'after_step']] + [('train', 'after_valid')]
CLOSE = ['after_epoch', 'after_fit']

def test_what_is_there_at_each_event():
    seen = {}
    def look(event):
        def f(learn):
            there = [o for o in ('batch', 'pred', 'loss', 'result') if getattr(learn, o) is not None]
            grads = all(p.grad is not None for p in learn.model.parameters())
            counts = learn.model.training, learn.state.batch_idx, len(learn.history)
            seen.setdefault((event, learn.training), (' '.join(there), grads, *counts))
        return f
    learn = make_learner(train_dl=batches()[:2], valid_dl=batches()[:1],
                         hooks=[LambdaHook(**{e: look(e) for e in EVENTS})])
    learn.fit(1)
    # (event, learn.training): what is not None, gradients there, model.training, batch_idx, rows of the history
    assert seen == {
        ('before_fit', True): ('', False, True, 0, 0),
        ('before_epoch', True): ('', False, True, 0, 0),
        ('before_step', True): ('batch', False, True, 0, 0),
        ('after_pred', True): ('batch pred', False, True, 0, 0),
        ('after_loss', True): ('batch pred loss result', False, True, 0, 0),
        ('after_backward', True): ('batch pred loss result', True, True, 0, 0),
        ('after_step', True): ('batch pred loss result', False, True, 1, 0),
        ('before_valid', False): ('', False, False, 2, 0),
        ('before_step', False): ('batch', False, False, 2, 0),
        ('after_pred', False): ('batch pred', False, False, 2, 0),
        ('after_loss', False): ('batch pred loss result', False, False, 2, 0),
        ('after_step', False): ('batch pred loss result', False, False, 2, 0),
        ('after_valid', True): ('', False, True, 2, 0),
        ('after_epoch', True): ('', False, True, 2, 1),
        ('after_fit', True): ('', False, True, 2, 1)}

# Cancels and errors: each point of training and validation raises each of them once

class Oops(Exception): pass

def upto(where, whole): return [p for _, p in whole[:whole.index(where) + 1]]

class Wraps(Hook):
    def model_for(self, learn, model): return torch.nn.Sequential(model)

def run_raising(where, error):
    "(learner, points that were called, exception) of a fit in which a hook raises `error` once at `where`"
    log, done = [], []
    def at(point):
        def f(learn, *nxt):
            log.append(point)
            if (('train' if learn.training else 'valid'), point) == where and not done:
                done.append(True)
                raise error
            return nxt and nxt[0]()
        return f
    mine = LambdaHook(name='Mine', **{p: at(p) for p in LIFECYCLE})
    learn = make_learner(train_dl=batches()[:2], valid_dl=batches()[:1], metrics=[Share()],
                         hooks=[lambda_hook('A', []), mine, lambda_hook('B', []), Wraps()])
    caught, model = None, learn.model
    try: learn.fit(1)
    except (Oops, RuntimeError) as e: caught = e
    assert log[-1] == 'after_fit' and learn.model is model
    assert learn.batch is learn.loss is learn.pred is learn.result is None
    return learn, log, caught

WHERE = [('train', o) for o in ('before_fit', 'before_epoch', *BATCH)] + VALID[:-1] + [('train', 'after_epoch')]

# where none is running
OUTSIDE = {CancelEpoch: ('before_fit', 'after_epoch'),
           CancelStep: ('before_fit', 'before_epoch', 'before_valid', 'after_step', 'after_epoch')}

def expected(where, error):
    "Points that are called, with what is called in the end"
    phase, point = where
    called = upto(where, [('train', 'before_fit'), *TRAIN, *VALID, ('train', 'after_epoch')])
    if error is CancelFit: return called + ['after_cancel', 'after_fit']
    if error is Oops or point in OUTSIDE[error]: return called + ['after_fit']
    if error is CancelEpoch: return called + ['after_cancel', *CLOSE]
    if phase == 'valid': return called + ['after_cancel', 'after_step', 'after_valid', *CLOSE]
    return called + ['do_zero_grad', 'after_cancel', 'after_step', *BATCH] + [p for _, p in VALID] + CLOSE

@pytest.mark.parametrize('error', [CancelFit, CancelEpoch, CancelStep, Oops])
@pytest.mark.parametrize('where', WHERE, ids=' '.join)
def test_what_is_raised_ends_what_it_should(where, error):
    learn, log, caught = run_raising(where, error('oops'))
    assert log == expected(where, error)
    if error is Oops: return check_notes(where, caught)
    if 'after_cancel' not in log:
        what = 'step' if error is CancelStep else 'epoch'
        assert type(caught) is RuntimeError and f'no {what} was running' in str(caught)
        return
    assert caught is None and learn.cancelled == {CancelFit: 'fit', CancelEpoch: 'epoch', CancelStep: 'step'}[error]
    assert len(learn.history) == learn.state.epoch == (error is not CancelFit or where[1] == 'after_epoch')
    if error is CancelStep: assert learn.state.samples_seen == (10 if where[0] == 'valid' else 5)
    if error is CancelEpoch and where[1] in ('before_epoch', 'before_valid'):   # a mean of no batch
        value, = learn.history.epochs.get(f'{where[0]}_Share', [float('nan')])
        assert value != value
    if error is CancelEpoch and where == ('valid', 'after_step'):       # a mean of what there was
        assert learn.history.epochs['valid_loss'] == [pytest.approx(learn.validate()['valid_loss'])]

def check_notes(where, e):
    "They name the hook, its point and the place in the fit, and the traceback ends in the hook"
    notes, (phase, point) = '\n'.join(e.__notes__), where
    assert 'hook Mine' in notes and f'`{point}`' in notes and 'hook A' not in notes and 'hook B' not in notes
    assert traceback.extract_tb(e.__traceback__)[-1].name == 'f'
    place = {'before_fit': 'before the first epoch', 'after_epoch': 'after epoch 0'}.get(point)
    if place: assert place in notes
    else:
        pass_ = 'validation' if phase == 'valid' and point != 'before_valid' else 'training'    # the one that has begun
        assert 'epoch 0' in notes and pass_ in notes
        if phase == 'train': assert f'after {int(point == "after_step")} of ' in notes

@pytest.mark.parametrize('point', ['before_step', 'after_loss', 'do_opt_step'])
def test_a_cancelled_step_leaves_no_trace_in_the_training(point):
    "The model is as if the loader had not had this batch"
    def run(data, *hooks):
        torch.manual_seed(0)
        learn = make_learner(torch.nn.Linear(4, 3), data, optim=sgd, hooks=hooks)
        learn.fit(1)
        return learn
    def cancel(learn, *nxt):
        if learn.state.batch_idx == 1: raise CancelStep
        return nxt and nxt[0]()
    data = batches()
    learn, reference = run(data, LambdaHook(**{point: cancel})), run([data[0], *data[2:]])
    assert same(weights(learn.model), weights(reference.model))
    assert learn.state.optimizer_step == 4 and learn.state.batch_idx == 5
    assert [o for o in learn.history.steps['train_loss'] if o == o] == reference.history.steps['train_loss']

def test_after_fit_is_called_for_all_hooks_after_an_error_in_one():
    def bad(learn): raise Oops
    log = []
    learn = make_learner(hooks=[LambdaHook(after_fit=bad, ord=-1), LambdaHook(after_fit=log.append)])
    with pytest.raises(Oops): learn.fit(1)
    assert log == [learn]
