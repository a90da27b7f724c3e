"What really runs is what `describe_hooks` says, in the order of the design; cancels and errors end where they should"
import traceback
from collections import Counter
from contextlib import nullcontext
from functools import wraps

import pytest, torch
from bs4 import BeautifulSoup

from common import Share, batches, make_learner, same, weights
from trainer_nb.show.display import Display
from trainer_nb.loop.hooks import (
    EVENTS, LIFECYCLE, STEPS, CancelEpoch, CancelFit, CancelStep, Hook, LambdaHook, MainProcessHook
)
from trainer_nb.learner import Learner


# Hooks that log themselves

def logging(cls, log):
    "A class like `cls`, under the same name, whose hooks write (point, hook's name) into `log` when they are called"
    def logged(point):
        @wraps(getattr(cls, point))
        def f(self, learn, *args):
            log.append((point, self.name))
            return getattr(cls, point)(self, learn, *args)
        return f
    return type(cls.__name__, (cls,), {p: logged(p) for p in LIFECYCLE if callable(getattr(cls, p, None))})

def nothing(self, learn, nxt=None): return nxt and nxt()

def named(name, log, points=LIFECYCLE, base=Hook, **attrs):
    "A hook of a new class with this name that does nothing but log"
    return logging(type(name, (base,), {**dict.fromkeys(points, nothing), **attrs}), log)()

def lambda_hook(name, log, points=LIFECYCLE, **kwargs):
    "The same made of functions"
    def logged(point):
        def f(learn, *nxt):
            log.append((point, name))
            return nxt and nxt[0]()
        return f
    return LambdaHook(name=name, **{p: logged(p) for p in points}, **kwargs)


# The trace equals the table

def check(learn, log, table=None):
    "Order and number of all calls in `log` against the table"
    rows = (table or learn.describe_hooks()).rows
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
    pred = learn.model(batch[0])
    yield 'a', pred.square().mean()
    yield 'b', learn.model(batch[0]).mean()
    return {'pred': pred, 'targ': batch[1]}

def halves(model):
    return {'a': torch.optim.SGD(model[0].parameters(), lr=.1), 'b': torch.optim.SGD(model[3].parameters(), lr=.1)}

def step(batch, learn):
    pred = learn.model(batch[0])
    return {'loss': torch.nn.functional.cross_entropy(pred, batch[1]), 'pred': pred, 'targ': batch[1]}

EVEN = dict(do_opt_step=lambda self, learn, nxt: nxt() if learn.state.batch_idx % 2 else False)

COMBINATIONS = {    # name: (hooks, what the learner is given, what fit is given)
    'relation to a base class': (lambda log: [named('A', log, runs_after='Base'),
                                              named('B', log, base=type('Base', (Hook,), {}), ord=5)], {}, {}),
    'some points only': (lambda log: [named('A', log, ['after_step', 'do_step']),
                                      named('B', log, ['after_step', 'before_fit']), named('C', log, ['do_step'])], {},
                                      {}),
    'LambdaHook': (lambda log: [lambda_hook('f', log, ord=1), named('A', log),
                                lambda_hook('g', log, ['after_loss', 'do_backward'], ord=-1)], {}, {}),
    'middleware that skips': (lambda log: [named('A', log), named('Even', log, ['do_opt_step'], **EVEN, ord=5)], {},
                              {}),
    'step function, no validation': (lambda log: [named('A', log), named('B', log)],
                                     dict(train_step=step, valid_dl=None), {}),
    'generator step': (lambda log: [named('A', log), named('B', log, ord=-1)],
                       dict(train_step=two_losses, optim=halves), {}),
    'not on the main process': (lambda log: [named('A', log), named('Main', log, base=MainProcessHook)],
                                dict(is_main=False), {}),
    'display': (lambda log: [named('Late', log, ord=200), named('A', log)], dict(display='text'), {}),
    'valid_every': (lambda log: [named('A', log), named('B', log)], {}, dict(valid_every=1)),
    'max_steps': (lambda log: [named('A', log), named('B', log)], {}, dict(n_epochs=None, max_steps=3)),
}

def combination(key, monkeypatch):
    make_hooks, kwargs, fit_kwargs = COMBINATIONS[key]
    log, kwargs, is_main = [], dict(kwargs), kwargs.get('is_main', True)
    kwargs.pop('is_main', None)
    monkeypatch.setattr(Learner, '_make_display', lambda learn, where: logging(Display, log)(where))
    learn = make_learner(train_dl=batches()[:2], **{'valid_dl': batches()[2:4], **kwargs, 'optim': None})
    if 'optim' in kwargs:
        learn = make_learner(learn.model, learn.train_dl, learn.valid_dl,
                             **{**kwargs, 'optim': kwargs['optim'](learn.model)})
    for h in make_hooks(log): learn.add_hook(h)
    learn.is_main = is_main
    return learn, log, {'n_epochs': 1, **fit_kwargs}

@pytest.mark.parametrize('key', COMBINATIONS)
def test_trace_equals_table(key, monkeypatch, capsys, cell):
    learn, log, fit_kwargs = combination(key, monkeypatch)
    before = [(r.point, r.hook) for r in learn.describe_hooks().rows]
    for _ in range(2):      # counts are those of the last fit
        log.clear()
        learn.fit(**fit_kwargs)
        check(learn, log)
        assert before == [(r.point, r.hook) for r in learn.describe_hooks().rows]       # it said so in advance
        assert log

def test_hooks_that_come_and_go_in_mid_fit():
    log = []
    learn = make_learner(train_dl=batches()[:4], hooks=[named('A', log)])
    b = named('B', log, LIFECYCLE[1:-1], ord=-1)       # without before_fit and after_fit
    def change(learn):
        if learn.state.batch_idx == 1: learn.add_hook(b)
        if learn.state.batch_idx == 3: learn.remove_hook(b)
    learn.fit(1, hooks=[LambdaHook(after_step=change, ord=-2)])
    assert [h for p, h in log if p == 'before_step'] == ['A', 'B', 'A', 'B', 'A', 'A']
    assert [h for p, h in log if p == 'do_opt_step'] == ['A', 'B', 'A', 'B', 'A', 'A']

@pytest.mark.parametrize('name', ['after_fit', 'around_fit'])
def test_a_hook_with_a_beginning_or_an_end_cannot_come_or_go_in_mid_fit(name):
    "It would be left half open: a folder locked, weights frozen, a learning rate in mid-air"
    def make():
        f = (lambda self, learn: nullcontext()) if name == 'around_fit' else lambda self, learn: None
        return type('Opens', (Hook,), {name: f})()
    here, other, seen = make(), make(), []
    def change(learn):
        for call in (lambda: learn.add_hook(other)), (lambda: learn.remove_hook(here)):
            with pytest.raises(RuntimeError,
                               match=f'Opens cannot be (added|removed) while a fit runs, because it has {name}'):
                call()
            seen.append(list(learn.hooks))
    learn = make_learner(train_dl=batches()[:1], hooks=[here])
    step = LambdaHook(after_step=change)
    learn.fit(1, hooks=[step])
    assert seen == [[here, step]]*2 and learn.hooks == [here]
    learn.remove_hook(here)
    learn.add_hook(other)
    assert learn.hooks == [other]

def cells_of(table):
    "Cells of a table as text, which fits a terminal, however wide its durations are: header, lines"
    lines = str(table).splitlines()
    assert max(map(len, lines)) <= 104 and len(set(map(len, lines))) == 1
    head, _, *lines = [[c.strip() for c in line.split('|')[1:-1]] for line in lines]
    return head, lines

@pytest.mark.parametrize('n_hooks', [1, 20])
def test_the_table_as_text(n_hooks):
    "A line for each point, with its hooks in the order of the rows; all of it: a line for each row, with its reason"
    learn = make_learner(hooks=[named(f'Hook{i}', [], LIFECYCLE[i % 5::3], runs_after=[f'Hook{i - 1}', f'Hook{i - 2}'],
                                      ord=i % 2) for i in range(n_hooks)])
    for timing in [], ['calls', 'time', 'share']:
        rows = learn.describe_hooks().rows
        head, lines = cells_of(learn.describe_hooks())
        assert head == ['when', *timing, 'hooks, in order']
        text = ' '.join(o[-1] for o in lines)
        for point in {r.point for r in rows if not timing or r.calls}:
            names = [r.hook for r in rows if r.point == point] + ['(step)']*(point in STEPS)
            assert ' › '.join(names) in text
        head, each = cells_of(learn.describe_hooks(all=True))
        assert head == ['when', 'hook', *timing, 'ord', 'why, or what happens']
        names = [o[1].lstrip('·└ ') for o in each if o[1] and not o[1].startswith('(n')]     # (none), (never reached)
        assert [o for o in names if o != 'the step'] == [r.hook for r in rows]
        reasons = {r.why for r in rows if len(r.why) < 20}
        assert reasons <= {o[-1] for o in each} and (n_hooks == 1 or {'registration', 'after Hook3'} < reasons)
        learn.fit(1)
    assert [o[2] for o in each if o[2]] == [f'{r.calls:,}' for r in rows]

def test_the_table_in_a_notebook_folds_the_hooks():
    "A line for each point; of several hooks, a click shows each with its numbers"
    learn = make_learner(hooks=[named(f'Hook{i}', [], runs_after=[f'Hook{i - 1}']) for i in range(12)])
    learn.fit(1)
    table = learn.describe_hooks()
    soup = BeautifulSoup(table._repr_html_(), 'html.parser')
    lines = soup.table.find_all('tr', recursive=False)[1:]
    points = dict.fromkeys(r.point for r in table.rows if r.calls)
    assert [o.td.text for o in lines] == [*points, 'never called', 'all hooks']
    for line, point in zip(lines, points):
        rows = [r for r in table.rows if r.point == point]
        assert line.summary.text.split(' › ')[:12] == [r.hook for r in rows]
        inner = [[c.text for c in o('td')] for o in line.details.table('tr') if o.td]
        assert [(o[1], o[-1]) for o in inner[:12]] == [(f'{r.calls:,}', r.why) for r in rows]


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
        ('before_fit', False): ('', False, True, 0, 0),
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
    def logged(point):
        def f(learn, *nxt):
            log.append(point)
            if error is not None and (('train' if learn.training else 'valid'), point) == where and not done:
                done.append(True)
                raise error
            return nxt and nxt[0]()
        return f
    done = []
    return LambdaHook(name='Mine', **{p: logged(p) for p in LIFECYCLE})

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
    assert learn.state.batch_idx == 2 and learn.state.samples_seen == 10

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
    *(('train', o) for o in ('before_epoch', 'do_step', 'do_opt_step', 'after_step', 'after_valid',
                                                     'after_epoch')),
    *(('valid', o) for o in ('before_valid', 'after_loss'))], ids=' '.join)
def test_an_error_says_where_it_comes_from(where):
    log = []
    learn = make_learner(train_dl=batches()[:2], valid_dl=batches()[:1],
                         hooks=[named('A', []), canceller(where, Oops('oops'), log), named('B', [])])
    with pytest.raises(Oops) as e: learn.fit(1)
    notes = '\n'.join(e.value.__notes__)
    assert str(e.value) == 'oops'
    phase, point = where
    assert 'hook Mine' in notes and f'`{point}`' in notes and 'hook A' not in notes and 'hook B' not in notes
    assert 'epoch 0' in notes or point == 'after_epoch' and '1 done' in notes
    if point != 'after_epoch':
        is_valid = phase == 'valid' and point != 'before_valid'      # there training is over and no other pass begun
        assert_place(notes, 0, 'validation' if is_valid else 'training',
                     {'after_step': 1, 'after_valid': 2, 'before_valid': 2}.get(point, 0))
    assert [f.name for f in traceback.extract_tb(e.tb)][-1] == 'f' and log[-1] == 'after_fit'
    assert 'after_cancel' not in log
    assert len(e.value.__notes__) == 2

def assert_place(note, epoch, phase, n_done):
    assert f'epoch {epoch}' in note and phase in note and f'after {int(n_done)} of ' in note

def test_after_fit_is_called_for_all_hooks_after_an_error_in_one(capsys):
    log = []
    def bad(learn): raise Oops
    hooks = [LambdaHook(after_fit=bad, name='Mine', ord=-1),
             LambdaHook(after_fit=lambda learn: log.append('after_fit'))]
    with pytest.raises(Oops): make_learner(hooks=hooks).fit(1)
    assert log == ['after_fit']
