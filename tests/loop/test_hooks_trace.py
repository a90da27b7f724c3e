"What really runs is what `describe_hooks` says, in the order of the design; cancels and errors end where they should"
import traceback
from collections import Counter

import pytest, torch
from bs4 import BeautifulSoup

from common import Share, batches, make_learner, same, weights
from trainer_nb.show.display import Display
from trainer_nb.loop.hooks import (
    EVENTS, LIFECYCLE, STEPS, CancelEpoch, CancelFit, CancelStep, Hook, LambdaHook, MainProcessHook, points
)
from trainer_nb.learner import Learner


# Hooks that log themselves

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

def lambda_hook(name, log, points=LIFECYCLE, **kwargs):
    "The same made of functions"
    def unbound(f): return lambda learn, *nxt: f(None, learn, *nxt)
    return LambdaHook(name=name, **{p: unbound(logged(None, p, name, log)) for p in points}, **kwargs)


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

def step(batch, learn):
    pred = learn.model(batch[0])
    return {'loss': torch.nn.functional.cross_entropy(pred, batch[1]), 'pred': pred, 'targ': batch[1]}

def at_odd_batches(self, learn, nxt): return nxt() if learn.state.batch_idx % 2 else False

def a_and_b(log): return named('A', log)(), named('B', log, ord=-1)()

class Base(Hook): pass

COMBINATIONS = {    # name: (hooks, what the learner is given, what fit is given)
    'relation to a base class': (lambda log: [named('A', log, runs_after='Base')(),
                                              named('B', log, base=Base, ord=5)()], {}, {}),
    'LambdaHook': (lambda log: [lambda_hook('f', log, ord=1), named('A', log)(), named('C', log, ['do_step'])(),
                                lambda_hook('g', log, ['after_loss', 'do_backward'], ord=-1)], {}, {}),
    'middleware that skips': (lambda log: [named('A', log)(), named('Odd', log, ['do_opt_step'], ord=5,
                                                                    do_opt_step=at_odd_batches)()], {}, {}),
    'step function, no validation': (a_and_b, dict(train_step=step, valid_dl=None), {}),
    'generator step': (a_and_b, dict(train_step=two_losses, optim=dict.fromkeys('ab', torch.optim.SGD),
                                     model=torch.nn.ModuleDict({o: torch.nn.Linear(4, 3) for o in 'ab'})), {}),
    'not on the main process': (lambda log: [named('A', log)(), named('Main', log, base=MainProcessHook)()], {}, {}),
    'display': (lambda log: [named('Late', log, ord=200)(), named('A', log)()], dict(display='text'), {}),
    'valid_every': (a_and_b, {}, dict(valid_every=1)),
    'max_steps': (a_and_b, {}, dict(n_epochs=None, max_steps=3)),
}

@pytest.mark.parametrize('key', COMBINATIONS)
def test_trace_equals_table(key, monkeypatch, capsys, cell):
    (make_hooks, kwargs, fit), log = COMBINATIONS[key], []
    display = named('Display', log, points(Display), Display)
    monkeypatch.setattr(Learner, '_make_display', lambda learn, where: display(where))
    learn = make_learner(train_dl=batches()[:2], **{'valid_dl': batches()[2:4], **kwargs})
    for h in make_hooks(log): learn.add_hook(h)
    learn.world.rank = int(key == 'not on the main process')
    before = [(r.point, r.hook) for r in learn.describe_hooks().rows]
    for _ in range(2):      # counts are those of the last fit
        log.clear()
        learn.fit(**{'n_epochs': 1, **fit})
        check(learn, log)
        assert before == [(r.point, r.hook) for r in learn.describe_hooks().rows]       # it said so in advance
        assert log

def test_hooks_that_come_and_go_in_mid_fit():
    "A pass keeps the hooks that it opened with: a change acts from the next one on, with all events"
    log = []
    learn = make_learner(train_dl=batches()[:2], valid_dl=batches()[2:3], hooks=[named('A', log)()])
    b = named('B', log, LIFECYCLE[1:-1], ord=-1)()     # without before_fit and after_fit
    def change(learn):
        if not learn.training or learn.state.batch_idx != 1: return
        if learn.state.epoch: learn.remove_hook(b)
        else: learn.add_hook(b)
    learn.fit(2, hooks=[LambdaHook(after_step=change, ord=-2)])
    def at(point): return ''.join(h for p, h in log if p == point)
    train, valid = ['AA', 'BABA'], ['BA', 'A']
    assert at('before_step') == at('after_step') == train[0] + valid[0] + train[1] + valid[1]
    for point in 'do_backward', 'do_opt_step', 'after_backward': assert at(point) == ''.join(train)
    assert at('before_valid') == ''.join(valid) and at('before_epoch') == 'ABA'
    assert next(p for p, h in log if h == 'B') == 'before_valid'

def test_a_hook_with_a_before_fit_cannot_come_in_mid_fit():
    "The fit would never call it: a folder would not be locked, weights not be frozen"
    class Opens(Hook):
        def before_fit(self, learn): pass
    other, seen = Opens(), []
    def add(learn):
        with pytest.raises(RuntimeError, match='Opens cannot be added while a fit runs, whose before_fit is over'):
            learn.add_hook(other)
        seen.append(list(learn.hooks))
    learn = make_learner(train_dl=batches()[:1])
    step = LambdaHook(after_step=add)
    learn.fit(1, hooks=[step])
    assert seen == [[step]]
    learn.add_hook(other)
    assert learn.hooks == [other]

def test_the_table_in_a_notebook_folds_the_hooks():
    "A line for each point; of several hooks, a click shows each with its numbers"
    learn = make_learner(hooks=[named(f'Hook{i}', [], runs_after=[f'Hook{i - 1}'])() for i in range(12)])
    learn.fit(1)
    table = learn.describe_hooks()
    soup = BeautifulSoup(table._repr_html_(), 'html.parser')
    lines = soup.table.tbody.find_all('tr', recursive=False)
    points = dict.fromkeys(r.point for r in table.rows if r.calls)
    assert [o.td.text.strip() for o in lines] == [*points, 'never called', 'all hooks']
    for line, point in zip(lines, points):
        rows = [r for r in table.rows if r.point == point]
        assert line.summary.text.split(' › ')[:12] == [r.hook for r in rows]
        inner = [[c.text for c in o('td')] for o in line.details.table('tr') if o.td]
        assert [(o[3], o[1]) for o in inner[:12]] == [(f'{r.calls:,}', r.why) for r in rows]


# The order of the design

BATCH = ['before_step', 'do_step', 'after_pred', 'after_loss', 'do_backward', 'after_backward', 'do_opt_step',
         'do_zero_grad', 'after_step']
VALID_BATCH = ['before_step', 'do_step', 'after_pred', 'after_loss', 'after_step']
CLOSE = ['after_epoch', 'after_fit']

def test_what_is_there_at_each_event():
    seen = {}
    def look(event):
        def f(learn):
            there = [o for o in ('batch', 'pred', 'loss', 'result') if getattr(learn, o) is not None]
            grads = all(p.grad is not None for p in learn.model.parameters())
            seen.setdefault((event, learn.training),
                            (' '.join(there), grads, learn.model.training, learn.state.batch_idx, len(learn.history)))
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


# Cancels

TRAIN = [('train', p) for p in ['before_epoch'] + 2*BATCH]
VALID = [('valid', p) for p in ['before_valid'] + VALID_BATCH] + [('train', 'after_valid')]

def canceller(where, error, log):
    "A hook that logs everything, and raises `error` the first time that it comes to `where`, a pair of phase and point"
    def at(point):
        def f(learn, *nxt):
            log.append(point)
            if (('train' if learn.training else 'valid'), point) == where and not done:
                done.append(True)
                raise error
            return nxt and nxt[0]()
        return f
    done = []
    return LambdaHook(name='Mine', **{p: at(p) for p in LIFECYCLE})

def run_cancelled(where, error):
    log, at_cancel = [], []
    learn = make_learner(train_dl=batches()[:2], valid_dl=batches()[:1],
                         hooks=[canceller(where, error, log),
                                LambdaHook(after_cancel=lambda learn: at_cancel.append(learn.cancelled))])
    try: learn.fit(1)
    finally: assert log[-1] == 'after_fit' and learn.batch is learn.loss is learn.pred is learn.result is None
    assert at_cancel == [learn.cancelled]
    return learn, log

def upto(where, whole): return [p for _, p in whole[:whole.index(where) + 1]]

@pytest.mark.parametrize('where', [*(('train', o) for o in ('before_epoch', 'do_step', 'do_opt_step', 'after_step')),
                                   *(('valid', o) for o in ('before_valid', 'after_loss', 'after_step'))], ids=' '.join)
@pytest.mark.parametrize('error', [CancelFit, CancelEpoch])
def test_cancel_fit_and_epoch(where, error):
    learn, log = run_cancelled(where, error())
    end = ['after_fit'] if error is CancelFit else CLOSE
    assert log == ['before_fit'] + upto(where, TRAIN + VALID) + ['after_cancel'] + end
    assert learn.cancelled == {CancelFit: 'fit', CancelEpoch: 'epoch'}[error]
    assert len(learn.history) == learn.state.epoch == (error is CancelEpoch)

@pytest.mark.parametrize('where', [
    *(('train', o) for o in ('before_step', 'do_step', 'after_backward', 'do_opt_step', 'do_zero_grad')),
    *(('valid', o) for o in ('before_step', 'after_loss'))], ids=' '.join)
def test_cancel_step(where):
    learn, log = run_cancelled(where, CancelStep())
    cut = ['after_cancel', 'after_step']
    if where[0] == 'valid': expected = [p for _, p in TRAIN] + upto(where, VALID) + cut + ['after_valid']
    else: expected = upto(where, TRAIN) + ['do_zero_grad'] + cut + BATCH + [p for _, p in VALID]
    assert log == ['before_fit'] + expected + CLOSE and learn.cancelled == 'step'
    assert learn.state.batch_idx == 2 and learn.state.samples_seen == (10 if where[0] == 'valid' else 5)

@pytest.mark.parametrize('error', [CancelEpoch, CancelFit])
@pytest.mark.parametrize('event', ['before_fit', 'after_epoch'])
def test_cancel_between_epochs(event, error):
    "A fit ends there, and for an epoch there is nothing to cancel"
    log = []
    def cancel(learn):
        log.append(event)
        raise error
    hooks = [LambdaHook(**{event: cancel}), LambdaHook(after_cancel=lambda learn: log.append('after_cancel'),
                                                       after_fit=lambda learn: log.append('after_fit'))]
    learn = make_learner(hooks=hooks)
    if error is CancelEpoch:
        with pytest.raises(RuntimeError, match='CancelEpoch was raised while no epoch was running'): learn.fit(2)
        assert log == [event, 'after_fit']
    else:
        learn.fit(2)
        assert log == [event, 'after_cancel', 'after_fit'] and learn.cancelled == 'fit'
    assert len(learn.history) == (event == 'after_epoch')

@pytest.mark.parametrize('where', [('train', 'after_step'), ('valid', 'before_valid')], ids=' '.join)
def test_cancel_step_where_no_step_is_open(where):
    log = []
    learn = make_learner(train_dl=batches()[:2], valid_dl=batches()[:1], hooks=[canceller(where, CancelStep(), log)])
    with pytest.raises(RuntimeError, match='CancelStep was raised while no step was running'): learn.fit(1)
    assert log == ['before_fit'] + upto(where, TRAIN + VALID) + ['after_fit']

@pytest.mark.parametrize('point', ['before_step', 'after_loss', 'do_opt_step'])
def test_a_cancelled_step_leaves_no_trace_in_the_training(point):
    "The model is as if the loader had not had this batch"
    def run(data, *hooks):
        torch.manual_seed(0)
        learn = make_learner(torch.nn.Linear(4, 3), data, optim=lambda p: torch.optim.SGD(p, lr=.1, momentum=.9),
                             hooks=hooks)
        learn.fit(1)
        return learn
    def cancel(learn, *nxt):
        if learn.state.batch_idx == 1: raise CancelStep
        return nxt and nxt[0]()
    data = batches()
    learn, reference = run(data, LambdaHook(**{point: cancel})), run([data[0], *data[2:]])
    assert same(weights(learn.model), weights(reference.model))
    assert learn.state.optimizer_step == 4 and learn.state.batch_idx == 5
    losses = learn.history.steps['train_loss']
    assert [l for l in losses if l == l] == reference.history.steps['train_loss']

def test_a_cancelled_validation_says_what_it_has():
    learn = make_learner(train_dl=batches()[:2], valid_dl=batches()[:3])
    def cancel(learn):
        if not learn.training and not learn.cancelled: seen.append(learn.loss.item())
        if len(seen) == 2: raise CancelEpoch
    seen = []
    learn.fit(1, hooks=[LambdaHook(after_step=cancel)])
    assert learn.history.epochs['valid_loss'] == pytest.approx([sum(seen)/2])
    learn.fit(1)
    assert len(learn.history) == 2

@pytest.mark.parametrize('where', [('train', 'before_epoch'), ('valid', 'before_valid')], ids=' '.join)
def test_a_cancelled_pass_without_a_batch_has_no_value(where):
    from torchmetrics.classification import MulticlassAccuracy
    for metric in Share(), MulticlassAccuracy(3):
        learn = make_learner(train_dl=batches()[:2], valid_dl=batches()[:2], metrics=[metric],
                             hooks=[canceller(where, CancelEpoch(), [])])
        learn.fit(1)
        name, values = type(metric).__name__, learn.history.epochs
        phase = {'before_epoch': 'train', 'before_valid': 'valid'}[where[1]]
        value = values.get(f'{phase}_{name}', [float('nan')])[0]
        assert value != value, f'{phase}_{name} is {value}, of no batch'
        assert learn.cancelled == 'epoch'


# Errors

class Oops(Exception): pass

@pytest.mark.parametrize('where', [
    *(('train', o) for o in ('before_epoch', 'do_step', 'do_opt_step', 'after_step', 'after_valid', 'after_epoch')),
    ('valid', 'before_valid'), ('valid', 'after_loss')], ids=' '.join)
def test_an_error_says_where_it_comes_from(where):
    log = []
    learn = make_learner(train_dl=batches()[:2], valid_dl=batches()[:1],
                         hooks=[lambda_hook('A', []), canceller(where, Oops('oops'), log), lambda_hook('B', [])])
    with pytest.raises(Oops) as e: learn.fit(1)
    notes = '\n'.join(e.value.__notes__)
    assert str(e.value) == 'oops'
    point = where[1]
    assert 'hook Mine' in notes and f'`{point}`' in notes and 'hook A' not in notes and 'hook B' not in notes
    n_done = {'after_step': 1, 'after_valid': 2, 'before_valid': 2}.get(point, 0)
    pass_ = 'validation' if where == ('valid', 'after_loss') else 'training'    # at before_valid no other one has begun
    place = ('after epoch 0',) if point == 'after_epoch' else ('epoch 0', pass_, f'after {n_done} of ')
    assert all(o in notes for o in place), notes
    assert [f.name for f in traceback.extract_tb(e.tb)][-1] == 'f' and len(e.value.__notes__) == 2
    assert log[-1] == 'after_fit' and 'after_cancel' not in log

def test_after_fit_is_called_for_all_hooks_after_an_error_in_one():
    def bad(learn): raise Oops
    log = []
    learn = make_learner(hooks=[LambdaHook(after_fit=bad, ord=-1), LambdaHook(after_fit=log.append)])
    with pytest.raises(Oops): learn.fit(1)
    assert log == [learn]
