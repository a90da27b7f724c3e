"The display of a fit changes no number, keeps its budget, is complete however the fit ends, and never makes it fail"
import math, re, signal, threading
import xml.etree.ElementTree as ET
from base64 import b64decode

import pytest, torch
from bs4 import BeautifulSoup

from common import batches, digest, make_learner, stop_when, told
from shown import svg_of
from trainer_nb.features.gradients import GradAccum
from trainer_nb.loop import fit
from trainer_nb.loop.fit import TrainingInterrupted
from trainer_nb.loop.hooks import LambdaHook
from trainer_nb.loop.metrics import Metric, accuracy
from trainer_nb.show import controls, display as module
from trainer_nb.show.controls import pause, unpause
from trainer_nb.show.display import Display, Notebook, Text


def learner(display='html', **kwargs):
    torch.manual_seed(0)
    return make_learner(**{'train_dl': batches(), 'valid_dl': batches(seed=2), 'metrics': [accuracy],
                           'display': display, **kwargs})

# as if each step took long
ALWAYS = LambdaHook(before_step=lambda learn: learn.get_hook(Display).draw(learn))

def at(epoch, batch, f):
    def g(learn):
        if (learn.training, learn.state.epoch, learn.state.batch_idx) == (True, epoch, batch): f(learn)
    return LambdaHook(after_step=g)

def steps(factor=lambda learn: 1.):
    "A step whose loss is multiplied"
    return lambda batch, learn: {'loss': (learn.model(batch[0]).square().mean() + 1)*factor(learn)}

def of_losses(losses, *hooks, **kwargs):
    "A learner whose validation losses are given"
    values = iter(losses)
    return learner(**{'valid_dl': [None], 'metrics': [], 'hooks': hooks, 'train_step': steps(),
                      'eval_step': lambda batch, learn: {'loss': torch.tensor(next(values))}, **kwargs})

def of(seen, place, kind='text/html'): return [o[kind] for i, o in seen if i == place and kind in o]

@pytest.fixture
def seen(cell, monkeypatch):
    "All messages of a cell, in their order; each update has a plot"
    monkeypatch.setattr(Display, 'plot_s', 0)
    seen, setitem = [], type(cell).__setitem__
    type(cell).__setitem__ = lambda self, i, bundle: (seen.append((i, bundle)), setitem(self, i, bundle))
    return seen

@pytest.fixture
def clock(monkeypatch):
    "A list of the seconds that all clocks show"
    clock = [0.]
    for o in module, controls, fit: monkeypatch.setattr(o, 'perf_counter', lambda: clock[0])
    return clock


# The numbers

@pytest.mark.parametrize('how', ['text', 'tty', 'html'])
def test_no_number_changes(how, cell, capsys):
    def run(*args, **kwargs):
        learn = learner(*args, **kwargs)
        learn.fit(2, valid_every=2)
        return digest(learn), torch.rand(3).tolist(), learn.get_hook(Display, None)
    shown, hidden = run(how, hooks=[ALWAYS]), run(False)
    assert shown[:2] == hidden[:2] and shown[2].error is None and hidden[2] is None


# The budget, with clocks that are set by hand

@pytest.mark.parametrize('step_s, draw_s, busy', [(.0002, .002, 1), (.001, .1, 1), (.1, .002, 1), (.05, .01, 10)])
def test_budget(step_s, draw_s, busy, monkeypatch, cell, clock):
    "What it costs is this thread's work: on a busy machine, 10 ms in a tenth of a second"
    drawn, work = [], [0.]
    class Slow(Notebook):
        def draw(self, *args):
            drawn.append(clock[0])
            work[0] += draw_s
            clock[0] += busy*draw_s
    monkeypatch.setattr(module, 'thread_time', lambda: work[0])
    monkeypatch.setattr(module, 'Notebook', Slow)
    clock[0] = 1.
    def run(learn):
        for _ in range(int(20/step_s)):
            clock[0] += step_s
            learn.display.after_step(learn)
    learn = learner(hooks=[at(0, 1, run)])
    learn.fit(1)
    early, wall_s = sum(o < 2. for o in drawn), clock[0] - 1   # the first second is free: the picture moves at once
    gaps = [b - a for a, b in zip(drawn, drawn[1:])]
    assert learn.display.budget.n == len(drawn) and draw_s*(len(drawn) - early) <= .02*wall_s
    assert min(gaps) >= .2 - 1e-9 and early == (5 if step_s < .05 else early)
    if draw_s < .01: assert len(drawn) >= min(4*wall_s, wall_s/step_s/3) - 2      # and what may be shown is shown
    assert busy == 1 or max(gaps) < 1

def test_time_left_falls_and_each_line_is_of_its_moment(cell, clock, monkeypatch):
    "However much faster a validation batch is; by batches alike, it rose within each epoch"
    draw, lines, n, threads = Notebook.draw, [], {}, threading.active_count()
    def drawn(self, status, *args):
        lines.append((clock[0], status))
        draw(self, status, *args)
    monkeypatch.setattr(module, 'thread_time', lambda: 0.)
    monkeypatch.setattr(Notebook, 'draw', drawn)
    def turn(learn): clock[0] += .1 if learn.training else .01
    def note(learn): n[clock[0]] = learn.history.n_steps
    learn = learner(train_dl=batches(200), valid_dl=batches(200, seed=2), hooks=[LambdaHook(after_step=turn)])
    learn.fit(3, hooks=[LambdaHook(ord=101, after_step=note)])     # of 40 batches each
    left = [(t, int(o.pace[1][3:5])) for t, o in lines if len(o.pace) == 2]
    assert len(left) > 30 and threading.active_count() == threads
    assert all(a >= b for (_, a), (_, b) in zip(left, left[1:])), left
    assert all(abs(clock[0] - t - s) < 1.1 for t, s in left if t > 5)
    assert all(f'batch {n[t]}/120' in o.where for t, o in lines if t in n and 'batch' in o.where)

def test_a_pause_is_no_part_of_the_time(seen, clock):
    def turn(s): clock[0] += s
    def f(learn):
        turn(1.)
        if learn.history.n_steps != 2: return
        for o in pause, lambda learn: turn(1000.), unpause: learn.request(o)
    learn = learner(valid_dl=None, metrics=[], hooks=[LambdaHook(after_step=f), ALWAYS])
    learn.fit(1)
    assert learn.history.epochs['time_s'] == [5.]
    lines = of(seen, 0, 'text/plain')
    paused, = [o for o in lines if o.startswith('paused · epoch 0/1 · batch 2/5')]
    html, = [o for o in of(seen, 0) if '⏸' in o]
    assert 'it/s' not in paused and 'repeating-linear-gradient(45deg,#E69F00' in html
    assert not any('s/it' in o for o in lines) and '1.0 it/s' in lines[-2], lines[-2]
    news = [o.partition('</div>')[0] for o in of(seen, 2)]
    assert [o[o.find('>') + 1:] for o in dict.fromkeys(news)][:-1] == ['epoch 0/1', 'paused · epoch 0/1']

# What is left

ENDS = {'done': (lambda learn: None, 'done: 2 epochs, best valid_loss', None),
        'stopped': (lambda learn: learn.stop(), 'stopped in epoch 1, after 2 of 5', None),
        'interrupted': (lambda learn: signal.raise_signal(signal.SIGINT), 'interrupted in epoch 1, after 2 of 5',
                        TrainingInterrupted),
        'failed': (lambda learn: 1/0, 'failed in epoch 1, after 2 of 5', ZeroDivisionError)}

@pytest.mark.parametrize('end', ENDS)
def test_a_table_and_a_picture_are_left_however_it_ends(end, cell, seen):
    "And each live state is readable where it is not trusted: viewers remove style sheets with their text, and SVG"
    f, words, error = ENDS[end]
    learn = learner(hooks=[ALWAYS, at(1, 2, f)])
    try: learn.fit(2)
    except (TrainingInterrupted, ZeroDivisionError) as e: assert type(e) is error
    line, picture, table = cell
    assert words in line['text/html'] and line['text/plain'].startswith(words)
    assert '<table' in table['text/html'] and 'train_loss' in table['text/plain']
    assert b64decode(picture['image/png']).startswith(b'\x89PNG')
    live, plots = of(seen, 0), of(seen, 1)
    assert plots[-1] == picture['text/html'] and {i for i, _ in seen} == {0, 1, 2} and len(live) >= 8
    assert 'train_loss' in of(seen, 1, 'text/plain')[-2]        # a picture that is saved before the end
    sizes = {str(re.findall(r'viewBox="0 0 (\d+) (\d+)"', svg_of(o))) for o in plots[:-1]}
    assert len(sizes) == 1 and 'as of' not in str(cell)
    sign = {'done': '✓', 'failed': '✕'}.get(end, '■')
    assert [re.findall('[✓✕■⚠⏸]', o) for o in live] == [[]]*(len(live) - 1) + [[sign]]
    assert 'aria-live' not in str(cell) and 'role="status"' in line['text/html']
    assert learn.display.screen is None and learn.display.error is None
    for html in plots:
        page = BeautifulSoup(html, 'html.parser')
        assert len(page('img')) == 2 and not page('svg')
        for o in page('img'): assert ET.fromstring(svg_of(str(o))).tag == '{http://www.w3.org/2000/svg}svg'
    for html in live[:-1]:
        text = BeautifulSoup(html, 'html.parser').text
        since = re.search(r' · as of ([\d:]+)no update since \d{4}-\d\d-\d\d ([\d:]+): .* learn.show()', text)
        assert since and since[1] == since[2], text
    svg = svg_of(plots[-2])
    assert 'color-scheme:light dark' in svg and 'light-dark(#FFFFFF,#111111)' in svg and 'train_loss' in svg

def test_the_table_keeps_its_best_row_and_all_of_a_few_dozen(cell):
    "Nothing is in a box that scrolls; of many rows the first, the best and the last ones stay"
    learn = of_losses([9 - i*.1 for i in range(25)] + [7 + i*.01 for i in range(95)], train_dl=batches(5))
    learn.fit(36)
    html = cell[2]['text/html']
    assert html.count('<tr>') == 37 and '<b>24</b>' in html and '<details' not in html
    assert 'overflow:auto' not in html and 'height:' not in html.replace('line-height', '')
    learn.history.shown_in = None
    learn.fit(84)
    details, = BeautifulSoup(cell[-1]['text/html'], 'html.parser')('details')
    rows = re.findall(r'^ *(\*?) *(\d+) ', details.pre.text, re.M)
    assert 'all 84' in details.summary.text and rows == [('*'*(i == 36), str(i)) for i in range(36, 120)]
    html = learn.history.html()     # of this fit
    shown = re.findall(r'<td[^>]*>(?:<b>)?(\d+|…[^<]*)<', html)
    assert '… 26 more' in shown[10] and '<b>36</b>' in html
    assert [o for o in shown if o[0] != '…'] == [*map(str, range(10)), '36', *map(str, range(91, 120))]

@pytest.mark.parametrize('where', ['tty', 'text'])
@pytest.mark.parametrize('losses, best', [([.5, .7, .3, .3], [0, 2]), ([.5, math.nan, .3], [0, 2])])
def test_the_best_rows_are_marked_and_the_last_line_names_the_best(where, losses, best, monkeypatch, capsys):
    monkeypatch.setenv('COLUMNS', '70')
    with told(): of_losses(losses, ALWAYS, display=where).fit(len(losses))
    lines = [o.split('\r')[-1].rstrip() for o in capsys.readouterr().out.split('\n')]
    rows = [o for o in lines if re.match(r'[ *] +\d', o)]
    assert [i for i, o in enumerate(rows) if o[0] == '*'] == best and len(rows) == len(losses)
    assert len(losses) == 3 or 'best valid_loss 0.3 (epoch 2' in ' '.join(lines[-3:-1])

def test_the_status_line_tells_what_people_look_for(seen):
    learn = learner(hooks=[ALWAYS])
    learn.fit(3)
    lines = of(seen, 0, 'text/plain')
    h = learn.history
    numbers = {(int(m[1]), float(m[2])) for o in lines if (m := re.search(r'batch (\d+)/15 · loss ([\d.]+)', o))}
    assert len(numbers) >= 14
    assert all(abs(loss - sum(h.steps['train_loss'][:n][-20:])/min(n, 20)) < 1e-3 for n, loss in numbers)
    assert any('validating' in o for o in lines) and f'valid {h.epochs["valid_loss"][1]:.4g} (best' in lines[-2]

@pytest.mark.parametrize('kwargs, n, stops_in_training', [
    (dict(n_epochs=3, valid_every=2), 3, None), (dict(n_epochs=2, valid_every=3, valid_first=True), 7, False),
    (dict(max_steps=7, valid_every=3), 2, True)])
def test_the_bar_ends_exactly_at_its_end(kwargs, n, stops_in_training, cell):
    "Of whole fits, and of fits that were stopped after a training batch, or within a validation pass"
    ends = set()
    def look(learn):
        if learn.display.screen: ends.add((learn.display.pace.total, learn.display.pace.end))
    stop = stop_when(lambda learn: learn.training is stops_in_training and learn.history.n_steps == 3)
    learn = learner(hooks=[LambdaHook(after_step=look), GradAccum(n)])
    learn.fit(**kwargs, hooks=[stop])
    while learn.stopped:
        ends.clear()
        learn.resume()
    pace = learn.display.pace
    assert pace.done - pace.first == pace.total and learn.history.n_steps == pace.end and len(ends) == 1

def test_a_fit_that_ends_early_says_how_much_it_is(cell):
    ask = LambdaHook(after_epoch=lambda learn: learn.state.epoch == 2 and learn.request('stop_epoch'))
    learn = learner(valid_dl=None, metrics=[], hooks=[ask])
    learn.fit(8)
    line = cell[0]
    assert line['text/plain'].startswith('done: 2 of 8 epochs') and 'aria-label="25 %"' in line['text/html']
    assert learn.history._repr_html_().startswith('<div>done: 2 of 8 epochs')


# Odd values, odd names

def test_training_that_becomes_nan_says_so(seen):
    "Without a guard: the first such batch, and advice, at the next update, at the end and in the picture"
    step = steps(lambda learn: math.nan if learn.history.n_steps >= 7 else 1.)
    learn = learner(train_step=step, eval_step=step, metrics=[], hooks=[ALWAYS])
    with pytest.warns(RuntimeWarning, match='train_loss is nan in epoch 1') as warned: learn.fit(3)
    assert warned[0].filename == __file__       # the line that called
    assert re.search('train_loss is nan since batch 8 .*learning rate.*doctor', learn.history.outcome())
    lines = of(seen, 0, 'text/plain')
    assert 'nan since batch 8' in next(o for o in lines if 'batch 8/15' in o)
    assert not any('nan' in o for o in lines if re.search(r'batch [1-7]/15', o))
    assert '⚠' in of(seen, 0)[-1] and 'nan from batch 8' in svg_of(of(seen, 1)[-1])

def test_a_fit_that_went_wrong_praises_no_best(cell):
    learn = learner(train_step=steps(lambda learn: 10.**learn.history.n_steps), metrics=[])
    learn.fit(3)
    line, picture, table = cell
    assert re.match('3 epochs, but .*risen.*doctor', line['text/plain'])
    assert '<b>' not in table['text/html'] and 'best' not in svg_of(str(picture))

def test_gaps_and_odd_names(seen, cell):
    "A loss that is not a number leaves a gap; names are escaped"
    def step(batch, learn):
        x, y = batch
        gap = math.nan if 3 <= learn.history.n_steps < 6 else 0.
        return {'loss': learn.model(x).square().mean() + gap, 'pred': learn.model(x), 'targ': y}
    name = '<script>alert(1)</script>&"Größe 📈'
    learn = learner(train_dl=batches(50), train_step=step, metrics=[Metric(accuracy, name=name)], hooks=[ALWAYS])
    with told(): learn.fit(1)
    svg, table = (of(seen, place)[-1] for place in (1, 2))
    svg = svg_of(svg)
    faint = re.findall(r'<path d="([^"]*)" stroke="#0072B2" stroke-opacity="0.65"', svg)
    assert len(faint) == 1 and faint[0].count('M') == 2
    assert learn.display.error is None and not any('<script' in o for i in range(3) for o in of(seen, i))
    assert all('&lt;script&gt;' in o and '<script' not in o for o in (svg, table)) and 'Größe 📈' in table


# A display that fails

@pytest.mark.parametrize('kind, name', [(Notebook, 'draw'), (Notebook, 'end'), (Text, 'draw'), (Text, 'row')])
def test_training_goes_on_without_a_display(kind, name, monkeypatch, cell, capsys):
    def fail(*args): raise OSError('no screen')
    learn = learner('html' if kind is Notebook else 'tty', hooks=[ALWAYS])
    with monkeypatch.context() as m, pytest.warns(UserWarning, match='Display failed.*no screen') as warned:
        m.setattr(kind, name, fail)
        learn.fit(2)
    (plain := learner(False)).fit(2)
    assert digest(learn) == digest(plain) and learn.cancelled is None
    assert isinstance(learn.display.error, OSError) and len(warned) == 1
    learn.fit(1)        # tries again
    assert learn.display.error is None and 'done' in learn.history.outcome()
