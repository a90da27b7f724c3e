"The display of a fit changes no number, keeps its budget, is complete however the fit ends, and never makes it fail"
import math, re, signal, threading
import xml.etree.ElementTree as ET
from base64 import b64decode
from itertools import count

import pytest, torch
from bs4 import BeautifulSoup

from common import batches, digest, make_learner, told
from shown import svg_of
from trainer_nb.loop import fit
from trainer_nb.show import controls, display as module
from trainer_nb.show.controls import unpause, pause
from trainer_nb.show.display import Display, Notebook, Text
from trainer_nb.loop.history import History
from trainer_nb.features.gradients import GradAccum
from trainer_nb.loop.hooks import CancelFit, LambdaHook
from trainer_nb.loop.metrics import Metric, accuracy
from trainer_nb.loop.fit import TrainingInterrupted
from trainer_nb.save import Checkpoint, EarlyStopping


def learner(display='html', **kwargs):
    torch.manual_seed(0)
    return make_learner(**{'train_dl': batches(), 'valid_dl': batches(seed=2), 'metrics': [accuracy],
                           'display': display, **kwargs})

def always(learn): learn.get_hook(Display).draw(learn)      # as if each step took long

def at(epoch, batch, f):
    def g(learn):
        if (learn.training, learn.state.epoch, learn.state.batch_idx) == (True, epoch, batch): f(learn)
    return g

def shape(html): return str(re.findall(r'viewBox="0 0 (\d+) (\d+)"', svg_of(html)))

def of(seen, place): return [o['text/html'] for i, o in seen if i == place and 'text/html' in o]

@pytest.fixture
def seen(cell, monkeypatch):
    "All messages of a cell, in their order; each update has a plot"
    monkeypatch.setattr(Display, 'plot_s', 0)
    seen, setitem = [], type(cell).__setitem__
    type(cell).__setitem__ = lambda self, i, bundle: (seen.append((i, bundle)), setitem(self, i, bundle))
    return seen


# The numbers

@pytest.mark.parametrize('how', ['text', 'tty', 'html', Display('text', plot=False)])
def test_no_number_changes(how, cell, capsys):
    hooks = [how] if isinstance(how, Display) else []
    def run(*args, **kwargs):
        learn = learner(*args, **kwargs)
        learn.fit(2, valid_every=2)
        return digest(learn), torch.rand(3).tolist(), learn.get_hook(Display, None)
    shown, hidden = run(False if hooks else how, hooks=[*hooks, LambdaHook(before_step=always)]), run(False)
    assert shown[:2] == hidden[:2] and shown[2].error is None and hidden[2] is None


# The budget, with a clock that is set by hand

@pytest.mark.parametrize('step_s, draw_s', [(50e-6, .002), (.001, .1), (.1, .002)])
def test_budget(step_s, draw_s, monkeypatch, cell):
    clock, drawn = [0.], []
    def turn(s): clock[0] += s
    class Slow(Notebook):
        def draw(self, *args):
            drawn.append(clock[0])
            turn(draw_s)
    for o in 'perf_counter', 'thread_time': monkeypatch.setattr(module, o, lambda: clock[0])
    monkeypatch.setattr(module, 'Notebook', Slow)
    clock[0] = 1.
    def work(learn):
        for _ in range(int(20/step_s)):
            turn(step_s)
            learn.display.after_step(learn)
    learn = learner(hooks=[LambdaHook(after_step=at(0, 1, work))])
    learn.fit(1)
    early, wall_s = sum(o < 2. for o in drawn), clock[0] - 1   # the first second is free: the picture moves at once
    assert learn.display.budget.n == len(drawn) and draw_s*(len(drawn) - early) <= .02*wall_s
    assert all(b - a >= .2 - 1e-9 for a, b in zip(drawn, drawn[1:])) and early == (5 if step_s < .1 else early)
    if draw_s < .01: assert len(drawn) >= min(4*wall_s, wall_s/step_s/3) - 2      # and what may be shown is shown

def test_long_runs_are_as_cheap_to_send(seen, n=100_000):
    learn = learner(valid_dl=None, metrics=[], train_dl=[torch.zeros(1, 4)]*100,
                    train_step=lambda batch, learn: {'loss': learn.model(batch).sum()})
    live = []
    def more(learn):
        for _ in range(2):
            seen.clear()
            learn.history.columns.extend(n, {'train_loss': torch.rand(n).tolist(), 'lr': [.1]*n})
            learn.display.draw(learn)
        live.extend(seen)
    learn.fit(1, hooks=[LambdaHook(after_step=at(0, 5, more))])
    assert learn.display.error is None and 1000 < sum(len(o['text/html']) for _, o in live) < 30_000   # in base64


# What is left

ENDS = {'done': (lambda learn: None, 'done: 2 epochs, best valid_loss', None),
        'stopped': (lambda learn: learn.stop(), 'stopped in epoch 1, after 2 of 5 training batches', None),
        'interrupted': (lambda learn: signal.raise_signal(signal.SIGINT), 'interrupted in epoch 1, after 2 of 5',
                        TrainingInterrupted),
        'ended': (lambda learn: (_ for _ in ()).throw(CancelFit), 'ended by a hook in epoch 1', None),
        'failed': (lambda learn: 1/0, 'failed in epoch 1, after 2 of 5', ZeroDivisionError)}

def test_a_learner_validates_and_predicts_before_any_fit(cell):
    learn = learner(True)
    assert learn.validate()['valid_loss'] > 0 and len(learn.predict(batches()[0][0])) == len(batches()[0][0])

@pytest.mark.parametrize('end', ENDS)
def test_a_table_and_a_picture_are_left_however_it_ends(end, cell, seen):
    f, words, error = ENDS[end]
    learn = learner(hooks=[LambdaHook(before_step=always, after_step=at(1, 2, f))])
    if error is None: learn.fit(2)
    else:
        with pytest.raises(error): learn.fit(2)
    line, picture, table = cell
    assert words in line['text/html'] and line['text/plain'].startswith(words)
    assert '<table' in table['text/html'] and 'train_loss' in table['text/plain']
    assert b64decode(picture['image/png']).startswith(b'\x89PNG')
    assert '<img' in picture['text/html'] and '<svg' not in picture['text/html']
    live, plots = of(seen, 0), of(seen, 1)
    assert plots[-1] == picture['text/html'] and {i for i, _ in seen} == {0, 1, 2}
    assert len(set(map(shape, plots[:-1]))) == 1
    assert all(re.search(r'as of \d\d:\d\d:\d\d', o) for o in live[:-1]) and 'as of' not in str(cell)
    sign = {'done': '✓', 'failed': '✕'}.get(end, '■')
    assert [re.findall('[✓✕■⚠⏸]', o) for o in live] == [[]]*(len(live) - 1) + [[sign]]
    assert 'aria-live' not in str(cell) and 'role="status"' in line['text/html']
    assert learn.display.screen is None and learn.display.error is None
    assert len(live) >= 8

def test_the_table_keeps_its_best_row_and_all_of_a_few_dozen(cell):
    "Nothing is in a box that scrolls; of many rows the first, the best and the last ones stay"
    losses = iter([9 - i*.1 for i in range(25)] + [7 + i*.01 for i in range(95)])
    learn = learner(train_dl=batches(5), valid_dl=[None], metrics=[],
                    train_step=lambda batch, learn: {'loss': learn.model(batch[0]).square().mean()},
                    eval_step=lambda batch, learn: {'loss': torch.tensor(next(losses))})
    learn.fit(36)
    html = cell[2]['text/html']
    assert html.count('<tr>') == 37 and '<b>24</b>' in html and 'overflow:auto' not in html
    assert 'height:' not in html.replace('line-height', '')
    assert '<details' not in html
    learn.history.shown_in = None
    learn.fit(84)
    details, = BeautifulSoup(cell[-1]['text/html'], 'html.parser')('details')
    assert details.summary.text == 'all 84 epochs'
    assert re.findall(r'^ *(\*?) *(\d+) ', details.pre.text, re.M) == [('*'*(i == 36), str(i)) for i in range(36, 120)]
    shown = [o for o in re.findall(r'<td[^>]*>(?:<b>)?([^<]*)', learn.history.html()) if re.fullmatch(r'\d+|….*', o)]
    assert shown[:12] == [*map(str, range(10)), '… 26 more: learn.history.epochs', '36']    # of this fit
    assert shown[-29:] == [*map(str, range(91, 120))]
    assert '<b>36</b>' in learn.history.html()

def scored(rows, *hooks):
    "A fit whose epochs have given validation losses and scores"
    values = iter(rows)
    def step(batch, learn):
        loss, score = next(values)
        return {'loss': torch.tensor(loss), 'pred': torch.tensor([score]), 'targ': torch.zeros(1), 'n': 1}
    learn = learner(valid_dl=[None], metrics=[Metric(lambda pred, targ: pred.mean(), name='score')], hooks=hooks,
                    eval_step=step, train_step=lambda batch, learn: {
                        'loss': learn.model(batch[0]).square().mean(), 'pred': torch.zeros(1), 'targ': torch.zeros(1)})
    learn.fit(len(rows))
    return learn

def bold(html): return re.findall(r'<b>(\d+)</b>', html)

@pytest.mark.parametrize('restores', [True, False])
def test_the_line_and_the_table_name_the_epoch_that_is_restored(restores, cell, tmp_path):
    "Of epochs with an equal score, the one with the lower loss; and it is the best checkpoint"
    rows, kept = [(.5, .7), (.4, .9), (.3, .9), (.2, .8), (.6, .9)], []
    keep = LambdaHook(after_epoch=lambda learn: kept.append(learn.model[0].weight.detach().clone()))
    learn = scored(rows, keep, EarlyStopping(9, monitor='valid_score', mode='max', restore_best=restores),
                   Checkpoint(tmp_path, monitor='valid_score', mode='max'))
    assert torch.equal(learn.model[0].weight, kept[2 if restores else 4])
    whose = ', whose weights learn has' if restores else '; learn has the weights of epoch 4'
    assert cell[0]['text/plain'] == f'done: 5 epochs, best valid_score 0.9 in epoch 2{whose}'
    assert bold(cell[2]['text/html']) == bold(learn.history.html()) == ['2']
    assert re.findall(r'^ *\* (\d+)', cell[2]['text/plain'], re.M) == ['2']
    assert learn.get_hook(Checkpoint).best()['epoch'] == 3

def test_the_bar_of_a_fit_that_was_stopped_ends_where_it_stopped(cell):
    stop = LambdaHook(after_step=lambda learn: learn.training and learn.history.n_steps == 7 and learn.stop())
    learn = learner(valid_dl=None, hooks=[stop])
    learn.fit(10)
    assert 'aria-label="14 %"' in cell[0]['text/html'] and 'width:14.0%' in cell[0]['text/html']

@pytest.mark.parametrize('times, shown', [
    ([.21, .0123, .0004, 8.1], ['0.2 s', '0.01 s', '0.0004 s', '8.1 s']),
    ([.05, .0004, 2.], ['50 ms', '0.4 ms', '2000 ms']), ([61., 3700., 2.], ['01:01', '1:01:40', '00:02'])])
def test_times_have_one_unit_and_none_is_rounded_to_nothing(times, shown):
    h = History()
    for i, t in enumerate(times): h.add_epoch({'epoch': i, 'time_s': t})
    assert [o[-1] for o in h.lines()] == ['time', *shown] and h.lines(len(h) - 1)[1][-1] == shown[-1]

def test_the_best_rows_are_marked_after_a_nan(capsys):
    losses = iter([.5, math.nan, .3])
    learn = learner('text', valid_dl=[None], metrics=[],
                    eval_step=lambda batch, learn: {'loss': torch.tensor(next(losses))})
    with told(): learn.fit(3)
    assert re.findall(r'^([ *]) +\d', capsys.readouterr().out, re.M) == ['*', ' ', '*']

@pytest.mark.parametrize('where', ['tty', 'text'])
def test_the_best_rows_are_marked_and_the_last_line_names_the_best(where, monkeypatch, capsys):
    monkeypatch.setenv('COLUMNS', '70')
    losses = iter([.5, .7, .3, .3])
    learn = learner(where, valid_dl=[None], metrics=[], eval_step=lambda b, learn: {'loss': torch.tensor(next(losses))},
                    hooks=[LambdaHook(before_step=always)])
    learn.fit(4)
    lines = [o.split('\r')[-1].rstrip() for o in capsys.readouterr().out.split('\n')]
    rows = [o for o in lines if re.match(r'[ *] +\d', o)]
    assert [o[0] == '*' for o in rows] == [True, False, True, False]
    assert ' '.join(lines[-3:-1]) == 'done: 4 epochs, best valid_loss 0.3 in epoch 2; learn has the weights of epoch 3'

def test_the_status_line_tells_what_people_look_for(seen):
    learn = learner(hooks=[LambdaHook(before_step=always)])
    learn.fit(3)
    lines = [o['text/plain'] for i, o in seen if i == 0]
    pattern = (r'epoch \d/3 · (batch \d+/15 · loss [\d.]+( · accuracy [\d.]+)?'
               r'|validating \d/5 · loss [\d.]+( · valid_accuracy [\d.]+)?)'
               r'( · valid [\d.]+ \(best [\d.]+, epoch \d\))?'
               r' · (starting|[\d.]+ it/s( · \d\d:\d\d left)?) · as of .*')
    assert all(re.fullmatch(pattern, o) for o in lines[2:-1]), lines[2:-1]
    h = learn.history
    numbers = {(int(m[1]), float(m[2])) for o in lines if (m := re.search(r'batch (\d+)/15 · loss ([\d.]+)', o))}
    assert len(numbers) >= 14
    assert all(abs(loss - sum(h.steps['train_loss'][:n][-20:])/min(n, 20)) < 1e-3 for n, loss in numbers)
    assert any('validating' in o for o in lines) and f'valid {h.epochs["valid_loss"][1]:.4g}' in lines[-2]

def test_any_live_state_is_readable_in_a_notebook_that_is_not_trusted(seen):
    "Its viewer removes style sheets with their text, and all SVG elements but not their text"
    learn = learner(hooks=[LambdaHook(before_step=always)])
    learn.fit(2)
    live, plots = of(seen, 0), of(seen, 1)
    for html in plots[:-1]:
        page = BeautifulSoup(html, 'html.parser')
        assert len(page('img')) == 2 and not page.find_all('svg')
        pictures = [ET.fromstring(svg_of(str(o))) for o in page('img')]
        assert {o.tag for o in pictures} == {'{http://www.w3.org/2000/svg}svg'}
    for html in live[:-1]:
        page = BeautifulSoup(html, 'html.parser')
        since = re.search(r' · as of ([\d:]+)no update since \d{4}-\d\d-\d\d ([\d:]+): .* learn.show()', page.text)
        assert since and since[1] == since[2], page.text
    svg = svg_of(plots[-2])
    assert ':root{color-scheme:light dark;color:#333333' in svg and 'background:light-dark(#FFFFFF,#111111)}' in svg
    assert 'train_loss' in svg

def test_a_pause_is_no_part_of_the_time(seen, monkeypatch):
    clock = [0.]
    for o in module, controls, fit: monkeypatch.setattr(o, 'perf_counter', lambda: clock[0])
    def turn(s): clock[0] += s
    def f(learn):
        turn(1.)
        if learn.history.n_steps != 2: return
        learn.request(pause)
        learn.request(lambda learn: turn(1000.))
        learn.request(unpause)
    learn = learner(valid_dl=None, metrics=[], hooks=[LambdaHook(after_step=f, before_step=always)])
    learn.fit(1)
    assert learn.history.epochs['time_s'] == [5.]
    lines = [(o['text/plain'], o['text/html']) for i, o in seen if i == 0 and 'text/html' in o]
    paused, = [o for o in lines if o[0].startswith('paused · epoch 0/1 · batch 2/5')]
    assert 'it/s' not in paused[0] and '⏸' in paused[1] and 'repeating-linear-gradient(45deg,#E69F00' in paused[1]
    assert not any('s/it' in o for o, _ in lines) and '1.0 it/s' in lines[-2][0], lines[-2][0]
    news = [o.partition('</div>')[0] for o in of(seen, 2)]
    assert [o[o.find('>') + 1:] for o in dict.fromkeys(news)][:-1] == ['epoch 0/1', 'paused · epoch 0/1']

def test_training_that_becomes_nan_says_so(seen):
    "Without a guard: the first such batch, and advice, at the next update, at the end and in the picture"
    def step(batch, learn):
        factor = math.nan if learn.history.n_steps >= 7 else 1.
        return {'loss': learn.model(batch[0]).square().mean()*factor}
    learn = learner(train_step=step, eval_step=step, metrics=[], hooks=[LambdaHook(before_step=always)])
    with told(): learn.fit(3)
    assert learn.history.outcome() == (
        '3 epochs, but train_loss is nan since batch 8 (epoch 1): lower the learning rate, or add GradClip(1.) or '
        'NaNGuard(); learn.doctor() looks for the cause')
    lines = [o['text/plain'] for i, o in seen if i == 0]
    assert 'nan since batch 8' in next(o for o in lines if 'batch 8/15' in o)
    assert not any('nan' in o for o in lines if re.search(r'batch [1-7]/15', o))
    assert 'nan from batch 8' in svg_of(of(seen, 1)[-1])

PLANS = [   # of `fit`, batches of a step, (after how many batches it is stopped, in training)
    (dict(n_epochs=3, valid_every=5), 1, None), (dict(n_epochs=3, valid_every=2), 3, None),
    (dict(n_epochs=2, valid_every=3, valid_first=True), 7, (5, False)), (dict(max_steps=6), 2, (1, False)),
    (dict(n_epochs=2, valid_first=True), 1, (7, True)), (dict(max_steps=7, valid_every=3), 2, (2, True)),
    (dict(max_steps=4, valid_every=2, valid_first=True), 1, (7, True)), (dict(n_epochs=3), 2, (2, True))]

@pytest.mark.parametrize('kwargs, accum, stop', PLANS)
def test_the_bar_ends_exactly_at_its_end(kwargs, accum, stop, cell):
    "Of whole fits, and of fits that were stopped after a training batch, or within a validation pass"
    ends = []
    def look(learn):
        if learn.display.screen: ends.append((learn.display.pace.total, learn.display.pace.end))
        if stop and learn.training != stop[1] and len(ends) == stop[0]: learn.stop()
    learn = learner(hooks=[LambdaHook(after_step=look), *([GradAccum(accum)] if accum > 1 else [])])
    learn.fit(**kwargs)
    display = learn.display
    def check():
        pace = display.pace
        assert pace.done - pace.first == pace.total and learn.history.n_steps == pace.end
        assert len({*ends}) == 1
    if stop is None or not learn.stopped: return check()
    ends.clear()
    stop = None
    learn.resume()
    check()


# True to the second

def in_time(monkeypatch, train_s, valid_s, work_s=0.):
    "A hook by which batches, and drawings with their work, take their time by the display's clocks"
    clock, work = [0.], [0.]
    monkeypatch.setattr(module, 'perf_counter', lambda: clock[0])
    monkeypatch.setattr(module, 'thread_time', lambda: work[0])
    draw, lines = Notebook.draw, []
    def drawn(self, status, *args):
        lines.append((clock[0], status))
        work[0] += work_s
        clock[0] += 10*work_s       # on a busy machine
        draw(self, status, *args)
    monkeypatch.setattr(Notebook, 'draw', drawn)
    def turn(learn): clock[0] += train_s if learn.training else valid_s
    return LambdaHook(after_step=turn, name='Turn'), clock, lines

def test_time_left_falls_and_each_line_is_of_its_moment(cell, monkeypatch):
    "However much faster a validation batch is; by batches alike, it rose within each epoch"
    turn, clock, lines = in_time(monkeypatch, .1, .01)
    learn = learner(train_dl=batches(200), valid_dl=batches(200, seed=2), hooks=[turn])     # 40 batches each
    n, threads = [], threading.active_count()
    learn.fit(5, hooks=[LambdaHook(ord=101, after_step=lambda learn: n.append((clock[0], learn.history.n_steps)))])
    left = [(t, int(o.pace[1][3:5])) for t, o in lines if len(o.pace) == 2]
    assert len(left) > 60 and threading.active_count() == threads
    assert all(a >= b for (_, a), (_, b) in zip(left, left[1:])), left
    assert all(abs(clock[0] - t - s) < 1.1 for t, s in left if t > 5)
    at = dict(n)
    assert all(f'batch {at[t]}/200' in o.where for t, o in lines if t in at and 'batch' in o.where)

def test_a_busy_machine_slows_no_display(cell, monkeypatch):
    "What it costs is this thread's work: 10 ms in a tenth of a second"
    turn, clock, lines = in_time(monkeypatch, .05, .05, .01)
    picture, drawn = Display._picture, []
    def seen(self, *args):
        res = picture(self, *args)
        if res[0]: drawn.append(clock[0])
        return res
    monkeypatch.setattr(Display, '_picture', seen)
    learn = learner(train_dl=batches(600), valid_dl=None, hooks=[turn])
    learn.fit(1)
    times = [t for t, _ in lines]
    assert clock[0] > 6 and max(b - a for a, b in zip(times, times[1:])) < 1
    assert sum(t <= 6 for t in drawn) >= 6, drawn
    assert len({o.time for _, o in lines}) >= 1 and learn.display.error is None

def test_a_fit_that_was_asked_to_end_after_an_epoch_says_how_much_it_is(cell):
    ask = LambdaHook(after_epoch=lambda learn: learn.state.epoch == 2 and learn.request('stop_epoch'))
    learn = learner(valid_dl=None, metrics=[], hooks=[ask])
    learn.fit(8)
    line = cell[0]
    assert line['text/plain'].startswith('done: 2 of 8 epochs, as asked') and 'aria-label="25 %"' in line['text/html']
    assert learn.history._repr_html_().startswith('<div>done: 2 of 8 epochs, as asked')
    learn.fit(1)
    assert learn.history.outcome().startswith('done: 1 epoch')

@pytest.mark.parametrize('case', ['valid', 'rises'])
def test_a_fit_that_went_wrong_is_not_done_and_praises_no_best(case, cell):
    def step(batch, learn):
        factor = 10.**learn.history.n_steps if case == 'rises' else math.nan if not learn.training else 1.
        return {'loss': (learn.model(batch[0]).square().mean() + 1)*factor}
    learn = learner(train_step=step, metrics=[])
    with told(): learn.fit(3)
    says = {'valid': 'valid_loss is nan', 'rises': 'the loss has risen to more than ten times its first values: lower '
                                                   'the learning rate, or add GradClip(1.) or NaNGuard()'}[case]
    assert cell[0]['text/plain'] == f'3 epochs, but {says}; learn.doctor() looks for the cause'
    assert '⚠' in cell[0]['text/html'] and '<b>' not in cell[2]['text/html'] and 'best' not in svg_of(str(cell[1]))


# Odd values, odd names, many columns

def test_a_loss_that_is_not_a_number_leaves_a_gap(seen):
    n = count()
    def step(batch, learn):
        return {'loss': learn.model(batch[0]).square().sum()+ (math.nan if 3 <= next(n) % 10 < 6 else 0)}
    learn = make_learner(train_dl=batches(50), train_step=step, display='html', hooks=[LambdaHook(before_step=always)])
    with told(): learn.fit(1)
    faint = re.findall(r'<path d="([^"]*)" stroke="#0072B2" stroke-opacity="0.65"', svg_of(of(seen, 1)[-1]))
    assert len(faint) == 1 and faint[0].count('M') == 2

def test_names_are_escaped(seen, cell):
    learn = learner(metrics=[Metric(accuracy, name='<script>alert(1)</script>&"Größe 📈')],
                    hooks=[LambdaHook(before_step=always)])
    learn.fit(2)
    assert learn.display.error is None and not any('<script' in o['text/html'] for _, o in seen if 'text/html' in o)
    head, body = (of(seen, place)[-1] for place in (1, 2))
    assert all('&lt;script&gt;' in o for o in (svg_of(head), body)) and '<script' not in svg_of(head)
    assert 'Größe 📈' in cell[2]['text/html']


# A display that fails

class Oops(Exception): pass

@pytest.mark.parametrize('where, n', [('html', 0), ('tty', 'row'), ('tty', 5), ('html', 'close')])
def test_training_goes_on_without_a_display(where, n, monkeypatch, cell, capsys):
    calls = count()
    kind = {'html': Notebook, 'tty': Text}[where]
    class Bad(kind):
        def fail(self, *args): raise Oops('no screen')
        def draw(self, *args):
            if next(calls) == n: self.fail()
        row = fail
        end = fail if n == 'close' else kind.end
        if n != 'row': row = Text.row
    monkeypatch.setattr(module, kind.__name__, Bad)
    learn = learner(where, hooks=[LambdaHook(before_step=always)])
    with pytest.warns(UserWarning, match='Display failed.*no screen') as warned: learn.fit(2)
    plain = learner(False)
    plain.fit(2)
    assert digest(learn) == digest(plain) and isinstance(learn.display.error, Oops) and len(warned) == 1
    assert learn.cancelled is None
    monkeypatch.setattr(module, kind.__name__, kind)
    learn.fit(1)        # tries again
    assert learn.display.error is None and 'done' in learn.history.outcome()

@pytest.mark.parametrize('look', [lambda h: h.steps, lambda h: h.plot()])
def test_another_thread_may_look_at_any_time(look):
    "It reads what is there without changing it: the thread of the fit may be in the middle of a change"
    def state(h):
        columns = h.columns
        return len(columns.rows), columns.n_arrived, {name: len(o) for name, o in columns.values.items()}
    seen, errors = [], []
    def look_from_elsewhere(learn):
        def f():
            try: seen.append(look(learn.history))
            except Exception as e: errors.append(e)
        before, thread = state(learn.history), threading.Thread(target=f)
        thread.start()
        thread.join()
        assert state(learn.history) == before
    learn = learner(False, train_dl=batches(200),
                    hooks=[LambdaHook(after_step=lambda learn: learn.training and look_from_elsewhere(learn))])
    learn.fit(2)
    plain = learner(False, train_dl=batches(200))
    plain.fit(2)
    assert digest(learn) == digest(plain) and not errors and len(seen) == 80
    assert any(o.get('train_loss') for o in seen if isinstance(o, dict)) == isinstance(seen[0], dict)


# Text

@pytest.mark.parametrize('columns', [20, 80, 200])
def test_a_terminal_is_wide_enough(columns, monkeypatch, capsys):
    monkeypatch.setenv('COLUMNS', str(columns))
    learner('tty', hooks=[LambdaHook(before_step=always)]).fit(3)
    parts = re.split(r'[\r\n]', capsys.readouterr().out)
    assert max(map(len, parts)) < columns and any('█' in o or '░' in o for o in parts)
    rows = [o.lstrip('*').split() for o in parts if o.strip() and '░' not in o and '█' not in o]
    assert [row[0] for row in rows if row[0] != 'learn'][:5] == ['epoch', '0', '1', '2', 'done:'] or columns < 60
    assert [row[0] for row in rows][:4] == ['epoch', '0', '1', '2']
    assert ('valid_loss' in rows[0] or columns < 60) and ('lr' in rows[0] or columns < 200)


# Bad input

def test_a_display_that_cannot_be(monkeypatch):
    for where in 'web', 3, None:
        with pytest.raises(ValueError, match="expected True, False, 'html', 'tty' or 'text'"): Display(where)
    monkeypatch.setattr('IPython.get_ipython', lambda: None)
    with pytest.raises(ValueError, match='needs IPython'): learner('html')

def test_show_before_a_fit(cell):
    learner().show()
    assert cell[0]['text/plain'].startswith('nothing is trained yet')


def test_rows_of_fast_epochs_are_written_together_and_none_is_lost(monkeypatch):
    "Each row was written by itself: 2,000 epochs of one batch spent 8 % of their time on it"
    import io, sys
    clock, written = [0.], []
    class Stream(io.StringIO):
        def flush(self): written.append(self.getvalue().count('\n'))
    monkeypatch.setattr(module, 'perf_counter', lambda: clock[0])
    monkeypatch.setattr(sys, 'stdout', stream := Stream())
    def turn(learn): clock[0] += .001 if learn.state.epoch < 200 else 1.
    learn = make_learner(train_dl=batches()[:1], display='text', hooks=[LambdaHook(after_step=turn)])
    learn.fit(203)
    lines = [o.lstrip('* ') for o in stream.getvalue().splitlines()]
    assert [o.split()[0] for o in lines] == ['epoch', *map(str, range(203)), 'done:']
    # slow ones at once, and at the end all
    assert len(written) <= 200/20 + 3 + 2 and written[-4:] == [202, 203, 204, 205]
