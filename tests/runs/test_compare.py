"Comparisons: the picture is true, the table names the winner, and both are live while a run trains"
import json, math, random, re, time
from types import SimpleNamespace

import numpy as np
import pytest, torch

from test_pictures import Drawn
from trainer_nb.all import GradAccum, History, LambdaHook, Learner, compare, runs
from trainer_nb.draw import COLORS
from trainer_nb.runs.engine import now_here
from trainer_nb.runs.folder import RunFolder
from trainer_nb.runs.live import LiveCell
from trainer_nb.runs.record import RunRecord


def made(seed, n=300, n_epochs=5, scale=1., metric='accuracy'):
    r, h = random.Random(seed), History()
    k = n//n_epochs
    for e in range(n_epochs):
        losses = [scale*(math.exp(-(e*k + i)*r.random()/50) + .3) for i in range(k)]
        h.columns.extend(k, {'train_loss': losses})
        row = {'valid_loss': losses[-1]*(1 + r.random()), f'valid_{metric}': r.random()}
        at = {'batch': h.n_steps, 'epoch': e, 'step': h.n_steps//2}       # each step takes two batches
        h.valid_rows.append({**at, **row})
        h.add_epoch({'epoch': e, 'train_loss': sum(losses)/k, **row, 'time_s': 2.})
    return h

def lines_of(h):
    "The record of a history in JSON lines"
    steps, ends, rows = h.steps, iter(zip(h.ends, h.valid_rows, h.epoch_rows)), []
    end, valid, epoch = next(ends)
    for i in range(h.n_steps):
        rows.append({'kind': 'step', 'batch': i + 1, 'epoch': 0, **{k: v[i] for k, v in steps.items()}})
        if i + 1 != end: continue
        rows += [{'kind': 'valid', **valid}, {'kind': 'epoch', 'batch': end, **epoch}]
        end, valid, epoch = next(ends, (0, 0, 0))
    return ''.join(json.dumps(o) + '\n' for o in rows)

def make_run(path, h, state='done', **info):
    folder = RunFolder(path)
    folder.make()
    folder.write('run.json', {'name': path.name, **info})
    folder.write('status.json', {'state': state, **now_here(), 'heartbeat': 2e9})
    (path/'record'/'log.jsonl').write_text(lines_of(h))
    return folder

def append(folder, *lines):
    "Write more lines to the record of a run"
    with (folder.path/'record'/'log.jsonl').open('a') as f: f.writelines(f'{o}\n' for o in lines)


# ---- the picture -----------------------------------------------------------------------------------------------------

def at(x, drawn, frame):
    "The value of a horizontal position, by the numbers below"
    words = sorted((wx, float(text.replace('k', 'e3'))) for wx, wy, text, anchor, _ in drawn.words
                   if anchor == 'middle' and abs(wy - frame[3] - 17) < 1.5)
    (x0, v0), (x1, v1) = words[0], words[-1]
    return v0 + (v1 - v0)*(x - x0)/(x1 - x0)

@pytest.mark.parametrize('x, batches, scale', [('step', 2, 1.), ('batch', 1, 1e-6), ('time', 30, 5e4)])
def test_each_line_is_where_its_values_are_and_named_at_its_end(x, batches, scale):
    histories = {f'h{i}': made(i, scale=scale*(1 + i/50)) for i in range(8)}
    drawn = Drawn(compare(histories, x=x).chart().svg())
    frame = left, top, right, bottom = drawn.frames()[0]
    size = max(v for h in histories.values() for v in h.epochs['valid_loss'])
    dots = {k: drawn.dots(color) for k, color in zip(histories, COLORS, strict=True)}
    for k, h in histories.items():
        for (px, py), row in zip(dots[k], h.valid_rows, strict=True):
            assert left <= px <= right and top <= py <= bottom
            assert abs(at(px, drawn, frame) - row['batch']/batches) < .006*300/batches
            assert abs(drawn.value(py, frame) - row['valid_loss']) < .012*size
    ends = {text: (x, y) for x, y, text, *_ in drawn.words if text in histories}
    assert {*ends} == {*histories} and all(x > right for x, _ in ends.values())
    ys = sorted(y for _, y in ends.values())
    assert min(b - a for a, b in zip(ys, ys[1:])) >= 12 and top - 5 < ys[0] and ys[-1] < bottom + 10
    assert sorted(ends, key=lambda k: ends[k][1]) == sorted(dots, key=lambda k: dots[k][-1][1])

def test_more_than_eight_lines():
    "The best eight are in colour; the axes are theirs, and an arrow says how far the others leave them"
    histories = {f'h{i}': made(i, scale=1 + i) for i in range(30)}
    c = compare(histories)
    drawn = Drawn(c.chart().svg())
    best = sorted(histories, key=lambda k: min(histories[k].epochs['valid_loss']))[:8]
    assert {*best, 'the others'} <= {*drawn.texts()} and 'h29' not in drawn.texts()
    assert any(o.startswith('▲') for o in drawn.texts()) and all(len(drawn.dots(color)) == 5 for color in COLORS)
    assert {*Drawn(c.pick('h29', best[3]).chart().svg()).texts()} & {*histories} == {'h29', best[3]}
    assert len(c._repr_html_()) < 300_000

@pytest.mark.parametrize('n, limit_s', [(10**6, 2), pytest.param(10**7, 4, marks=pytest.mark.soak)])
def test_ten_million_batches_open_within_four_seconds(n, limit_s, tmp_path):
    h = History()
    h.columns.extend(n, {'train_loss': np.linspace(2, 1, n), 'lr': np.full(n, .1)})
    for e in range(100):
        h.ends.append((e + 1)*n//100)
        h.epoch_rows.append({'epoch': e, 'train_loss': 2 - e/100, 'time_s': 60.})
    RunRecord(tmp_path/'a.jsonl').before_fit(SimpleNamespace(history=h))
    start = time.process_time()
    c = compare(tmp_path/'a.jsonl')
    assert c._repr_html_().count('<img') == 1 and time.process_time() - start < limit_s
    assert c.values[0]['batches'] == n and c.sources[0].history.epochs == h.epochs


# ---- the table -------------------------------------------------------------------------------------------------------

def test_the_winner_is_bold():
    histories = {k: made(i) for i, k in enumerate('abc', 1)}
    best = {k: f(f(h.epochs[k]) for h in histories.values()) for k, f in (('valid_loss', min), ('valid_accuracy', max))}
    win, text = {f'{v:#.4g}' for v in best.values()}, repr(c := compare(histories))
    assert {*re.findall('<b>(.*?)</b>', c._repr_html_())} == win and text.count('*') == 2
    assert all(f'{o} *' in text for o in win)

def test_the_best_run_is_on_top():
    "By the chosen metric, those without it last; as they were given where nobody knows what is good"
    histories = {f'h{i}': made(i) for i in range(6)} | {'none': made(9, metric='f1')}
    for metric, f, sign in ('loss', min, 1), ('accuracy', max, -1):
        c = compare(histories, metric=metric)
        own = {k: sign*f(h.epochs[f'valid_{metric}']) for k, h in histories.items() if f'valid_{metric}' in h.epochs}
        names = [o['run'] for o in c.values]
        assert names[:len(own)] == sorted(own, key=own.get) and [s.name for s in c.ranked] == names
    a, b, c = (made(i, metric='depth') for i in range(3))
    unknown = compare({'c': c, 'a': a, 'b': b}, metric='depth')
    assert [o['run'] for o in unknown.values] == ['c', 'a', 'b'] and repr(unknown).count('*') == 1     # of the loss

def test_the_best_value_is_that_of_the_run_not_of_the_training_before_it(tmp_path):
    h = History()
    for e, v in enumerate([.3, .5, .4]):
        h.columns.extend(10, {'train_loss': [v]*10})
        h.valid_rows.append({'batch': h.n_steps, 'epoch': e, 'step': 10*(e + 1), 'valid_loss': v})
        h.add_epoch({'epoch': e, 'train_loss': v, 'valid_loss': v, 'time_s': 2.})
    for name, n in ('old', 30), ('own', 10), ('all', 0): make_run(tmp_path/name, h, first_batch=n)
    log = tmp_path/'all'/'record'/'log.jsonl'       # a validation before training is no result of it
    log.write_text('{"kind": "valid", "batch": 0, "epoch": 0, "step": 0, "valid_loss": 0.001}\n' + log.read_text())
    for table in compare(tmp_path), runs(tmp_path):
        bests = {o['run']: o['best valid_loss'] for o in table.values}
        assert bests['own'] == .4 and bests['all'] == .3 and math.isnan(bests['old'])
    RunFolder(tmp_path/'own').write('status.json', {**now_here(), 'state': 'running', 'batch': 15, 'end': 30})
    status, = [o['status'] for o in compare(tmp_path).values if o['run'] == 'own']
    assert status.endswith(' 25 %')     # 5 of its 20 batches


# ---- live ------------------------------------------------------------------------------------------------------------

def learner_with(*hooks):
    torch.manual_seed(0)
    x = torch.randn(96, 3)
    return Learner(torch.nn.Linear(3, 1), (x, x[:, :1]), (x, x[:, :1]), loss_fn=torch.nn.functional.mse_loss, bs=8,
                   display=False, hooks=[GradAccum(3), *hooks])

def test_steps_are_known_of_validations_and_a_chart_without_them_is_by_batch(tmp_path):
    "One axis for all: a run with accumulated gradients would stand among steps with its batches"
    learn = learner_with(record := RunRecord(tmp_path/'a.jsonl'))
    learn.fit(3, hooks=[LambdaHook(after_step=lambda learn: learn.history.n_steps % 5 or record.tick(learn))])
    for c in compare(learn), compare(tmp_path/'a.jsonl'):
        assert c.axis == 'step' and c.chart().panels[0].lines[0].xs[-1] == 12 and not c.notes()
        assert c.sources[0].history.steps == learn.history.steps
    (other := learner_with()).valid_dl = None
    other.fit(1)
    c = compare({'a': learn, 'b': other})
    assert c.axis == 'batch' and max(o.xs[-1] for o in c.chart().panels[0].lines if o.xs) == 36 and not c.notes()
    c = compare({'a': learn, 'b': other}, x='step')
    assert c.notes() == ['without loss by optimizer step: b'] and 'b' not in {o.end for o in c.chart().panels[0].lines}

def test_live_without_widgets(tmp_path, cell):
    """It is drawn when there is news, and picture and table are left once all runs are over, however soon. What is
    stored meanwhile can be read later, without a kernel or a script"""
    make_run(tmp_path/'a', made(1))
    b = make_run(tmp_path/'b', made(2), state='running')
    view = LiveCell('comparison', result=compare(tmp_path))
    view.redraw()
    assert len(cell) == cell.n_messages == 3
    assert {o['run']: o['status'] for o in view.result.values} == {'a': 'done', 'b': 'running'}
    view.step()
    assert cell.n_messages == 3         # nothing was new
    append(b, '{"kind": "step", "batch": 301, "train_loss": 0.5}')
    view.budget.next = view.plotted_at = 0
    view.step()
    line, picture, table = (o['text/html'] for o in cell)
    assert '>301<' in table and '1 of them live' in line and '>as of ' in line
    assert '<svg' not in picture and 'src="data:image/' in picture
    assert re.search(r'no update since \d{4}-', line + picture + table)
    b.write('status.json', {'state': 'failed', **now_here()})
    ticks, view.budget.next = [], float('inf')      # no further drawing is ever due
    view.wait = lambda s: ticks.append(s) or len(ticks) > 9
    view._watch()
    line, picture, table = (o['text/html'] for o in cell)
    assert not ticks and view.error is None and not view.result.is_live
    assert '<img' in picture and 'image/png' in cell[1] and cell[2]['text/plain'].startswith('run')
    assert not re.search('live|as of|no update', line)

def test_the_first_seconds(tmp_path):
    "Before the first value there is no empty frame, and no legend of lines that are not drawn"
    folders = [make_run(tmp_path/f'r{i}', made(i), state='running') for i in range(10)]
    for o in folders: (o.path/'record'/'log.jsonl').unlink()
    found = compare(tmp_path)
    assert 'no values yet' in found.title() and found.chart() is None
    append(folders[9], '{"kind": "step", "batch": 1, "train_loss": 0.5}')
    assert found.update() and {o.end or o.name for o in found.chart().panels[0].lines} == {'r9', 'train_loss, smoothed'}
