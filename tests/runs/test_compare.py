"Comparisons: the picture is true, the table names the winner, and looking at a folder executes nothing from it"
import json, math, random, re, shutil, time
from types import SimpleNamespace

import numpy as np
import pytest, torch

from test_pictures import Drawn
from test_runs import plant
from trainer_nb.all import Comparison, GradAccum, History, LambdaHook, Learner, Run, attach, compare, runs
from trainer_nb.draw import COLORS
from trainer_nb.runs.compare import Source
from trainer_nb.runs.engine import now_here
from trainer_nb.runs.folder import RunFolder, answer, ask, pending
from trainer_nb.runs.live import LiveCell, View
from trainer_nb.runs.record import RecordTail, RunRecord
from trainer_nb.runs.table import main


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

AXES = {'step': lambda b: b/2, 'batch': float, 'time': lambda b: b/30}

def at(x, drawn, frame):
    "The value of a horizontal position, by the numbers below"
    words = sorted((wx, float(text.replace('k', 'e3'))) for wx, wy, text, anchor, _ in drawn.words
                   if anchor == 'middle' and abs(wy - frame[3] - 17) < 1.5)
    (x0, v0), (x1, v1) = words[0], words[-1]
    return v0 + (v1 - v0)*(x - x0)/(x1 - x0)

@pytest.mark.parametrize('x, scale', [*zip(AXES, (1., 1e-6, 5e4))])
def test_each_validation_is_where_its_value_is(x, scale):
    histories = [made(i, scale=scale*(1 + i)) for i in range(8)]
    c = compare(histories, x=x)
    drawn = Drawn(c.chart().svg())
    frame = left, top, right, bottom = drawn.frames()[0]
    near_x, size = .006*AXES[x](300), max(v for h in histories for v in h.epochs['valid_loss'])
    assert len(set(COLORS)) == 8
    for h, color in zip(histories, COLORS):
        dots = drawn.dots(color)
        assert len(dots) == 5
        for (px, py), row in zip(dots, h.valid_rows):
            assert left <= px <= right and top <= py <= bottom
            assert abs(at(px, drawn, frame) - AXES[x](row['batch'])) < near_x
            assert abs(drawn.value(py, frame) - row['valid_loss']) < .012*size

def test_more_than_eight_lines():
    "The best eight are in colour; the axes are theirs, and an arrow says how far the others leave them"
    histories = {f'h{i}': made(i, scale=1 + i) for i in range(30)}
    c = compare(histories)
    drawn = Drawn(c.chart().svg())
    best = sorted(range(30), key=lambda i: min(histories[f'h{i}'].epochs['valid_loss']))[:8]
    assert {f'h{i}' for i in best} <= {*drawn.texts()} and 'the others' in drawn.texts()
    assert 'h29' not in drawn.texts() and any(o.startswith('▲') for o in drawn.texts())
    assert all(len(drawn.dots(color)) == 5 for color in COLORS)
    with pytest.raises(ValueError, match='at most 8'): c.pick(*(f'h{i}' for i in range(9)))
    name = f'h{best[3]}'
    color = next(s.color for s in c.sources if s.name == name)
    drawn = Drawn(c.pick('h29', name).chart().svg())
    assert {o for o in drawn.texts() if o in histories} == {'h29', name} and len(drawn.dots(color)) == 5   # as before
    assert len(c._repr_html_()) < 300_000

def test_ten_million_batches_open_within_four_seconds(tmp_path):
    h = History()
    h.columns.extend(10**7, {'train_loss': np.linspace(2, 1, 10**7), 'lr': np.full(10**7, .1)})
    for e in range(100):
        h.ends.append((e + 1)*10**5)
        h.epoch_rows.append({'epoch': e, 'train_loss': 2 - e/100, 'time_s': 60.})
    RunRecord(tmp_path/'a.jsonl').before_fit(SimpleNamespace(history=h))
    start = time.process_time()
    c = compare(tmp_path/'a.jsonl')
    assert c._repr_html_().count('<img') == 1 and time.process_time() - start < 4
    assert c.values[0]['batches'] == 10**7 and c.sources[0].history.epochs == h.epochs

# ---- the table -------------------------------------------------------------------------------------------------------

def test_the_winner_is_bold():
    histories = {k: made(i) for i, k in enumerate('abc', 1)}
    c = compare(histories)
    good = {'valid_loss': min, 'valid_accuracy': max}
    best = {k: f(f(h.epochs[k]) for h in histories.values()) for k, f in good.items()}
    win, text = {f'{v:#.4g}' for v in best.values()}, repr(c)
    assert {*re.findall('<b>(.*?)</b>', c._repr_html_())} == win
    assert all(f'{o} *' in text for o in win) and text.count('*') == 2
    tie = compare({'a': made(1), 'again': made(1), 'c': made(3, scale=9.)}, metric='loss')
    assert [row[1][-1] for row in tie.rows()[1:]][:2] == ['*', '*']

def test_unknown_metrics_have_no_winner_unless_said():
    a, b = made(1, metric='depth'), made(2, metric='depth')
    c = compare(a, b)
    assert 'last valid_depth' in c.values[0] and repr(c).count('*') == 1        # of the loss
    c = compare(a, b, metric='depth', mode='max')
    best = [max(h.epochs['valid_depth']) for h in (a, b)]
    assert [o['best valid_depth'] for o in c.values] == sorted(best, reverse=True) and repr(c).count('*') == 2

def test_the_best_run_is_on_top():
    "By the chosen metric, those without it last; as they were given where nobody knows what is good"
    histories = {f'h{i}': made(i) for i in range(6)} | {'none': made(9, metric='f1')}
    for metric, f, sign in ('loss', min, 1), ('accuracy', max, -1), ('valid_accuracy', max, -1):
        c = compare(histories, metric=metric)
        column = f'valid_{metric.removeprefix("valid_")}'
        own = {k: sign*f(h.epochs[column]) for k, h in histories.items() if column in h.epochs}
        names = [o['run'] for o in c.values]
        assert [o for o in names if o in own] == sorted(own, key=own.get) == names[:len(own)]
        assert [s.name for s in c.ranked] == names
    histories = {k: made(i, metric='depth') for i, k in enumerate('cab')}
    assert [o['run'] for o in compare(histories, metric='depth').values] == ['c', 'a', 'b']

def test_ends_are_named_beside_the_lines_and_do_not_overlap():
    histories = {f'h{i}': made(i, scale=1 + i/50) for i in range(8)}
    c = compare(histories)
    drawn = Drawn(c.chart().svg())
    frame = drawn.frames()[0]
    ends = {text: (x, y) for x, y, text, *_ in drawn.words if text in histories}
    assert {*ends} == {*histories} and all(x > frame[2] for x, _ in ends.values())
    ys = sorted(y for _, y in ends.values())
    assert min(b - a for a, b in zip(ys, ys[1:])) >= 12 and frame[1] - 5 < ys[0] and ys[-1] < frame[3] + 10
    last = {k: drawn.dots(color)[-1][1] for k, color in zip(histories, COLORS)}
    assert sorted(ends, key=lambda k: ends[k][1]) == sorted(last, key=last.get)

# ---- wrong input -----------------------------------------------------------------------------------------------------

def test_wrong_input(tmp_path, monkeypatch):
    "Other cases are in the notebook"
    make_run(tmp_path/'first', made(1))
    (tmp_path/'empty').mkdir()
    (tmp_path/'empty'/'notes.txt').write_text('x')
    for what, error, words in [
            (f'{tmp_path}/frist', FileNotFoundError, 'nothing to compare in'),
            (f'{tmp_path}/*/*.txt', FileNotFoundError, 'nothing to compare in'),
            (tmp_path/'empty', FileNotFoundError, 'nothing to compare in'),
            (History(), ValueError, 'nothing is recorded yet')]:
        with pytest.raises(error, match=re.escape(words)): compare(what)
    with pytest.raises(ValueError, match='Did you mean `first`'): compare(tmp_path).pick('frist')
    monkeypatch.chdir(tmp_path/'empty')
    with pytest.raises(FileNotFoundError, match="nothing to compare in 'runs'"): compare()


# ---- folders ---------------------------------------------------------------------------------------------------------

def test_looking_executes_nothing_and_stays_inside(tmp_path):
    bad = '<img src=x onerror=alert(1)>'
    h = made(1, metric=bad)
    folder = make_run(tmp_path/'runs'/'a', h, settings={bad: bad, 'lr': 1})
    folder.write('run.json', {'name': bad, 'settings': {bad: bad, 'lr': 1}, 'n_procs': 'x', 'first_row': []})
    plant(folder, tmp_path/'executed')
    other = make_run(tmp_path/'runs'/'b', made(2), settings={'lr': bad})
    outside = make_run(tmp_path/'runs'/'c', made(3))
    (tmp_path/'log.jsonl').write_text(lines_of(made(9, scale=77.)))
    (other.path/'record'/'log.jsonl').unlink()
    (other.path/'record'/'log.jsonl').symlink_to(tmp_path/'log.jsonl')
    shutil.rmtree(outside.path/'record')
    (outside.path/'record').symlink_to(tmp_path)
    c = compare(tmp_path/'runs')
    html = c._repr_html_()
    assert [o['batches'] for o in c.values] == [300, 0, 0] and not (tmp_path/'executed').exists()
    assert '<img src=x' not in html and '&lt;img src=x' in html and '\x1b' not in repr(c)

def test_a_damaged_status_hides_no_other_run(tmp_path):
    huge = '1' + '0'*400
    for i, more in enumerate([f'"heartbeat": {huge}', '"pid": "x"', f'"batch": 1e400, "end": {huge}', '"state": {}']):
        folder = make_run(tmp_path/f'bad{i}', made(i))
        (folder.path/'status.json').write_text(f'{{"state": "running", {more}}}')
    make_run(tmp_path/'good', made(9))
    c = compare(tmp_path)
    found = {o['run']: o['status'] for o in c.values}
    assert found.pop('good') == 'done' and len(found) == 4 and all(o['batches'] == 300 for o in c.values)
    assert found['bad0'] == 'missing: status.json is damaged' and 'damaged' in repr(c)

def test_a_window_stays_inside_its_folder(tmp_path):
    "Reading a record, requests and answers follow no link out of the folder"
    elsewhere = tmp_path/'elsewhere'
    elsewhere.mkdir()
    (elsewhere/'log.jsonl').write_text(lines_of(made(9)))
    folder = make_run(tmp_path/'a', made(1), 'running')
    run = Run(folder.path)
    assert run.history.n_steps == 300 and ask(folder, 'stop') in pending(folder)
    for name in 'record', 'requests':
        shutil.rmtree(folder.path/name)
        (folder.path/name).symlink_to(elsewhere)
    name = f'{1:020d}-{1:08x}.json'
    (elsewhere/name).write_text('{"what": "stop"}')
    run = Run(folder.path)
    assert run.history.n_steps == 0 and pending(folder) == []
    for f, *args in (ask, folder, 'stop'), (answer, folder, name), (folder.file, f'requests/{name}'):
        with pytest.raises(ValueError, match='leads out of'): f(*args)
    (folder.path/'record').unlink()
    (folder.path/'record').mkdir()
    (folder.path/'record'/'log.jsonl').symlink_to(elsewhere/'log.jsonl')
    assert Run(folder.path).history.n_steps == 0
    assert {o.name for o in elsewhere.iterdir()} == {'log.jsonl', name}


# ---- what a run writes -----------------------------------------------------------------------------------------------

def learner_with(*hooks):
    torch.manual_seed(0)
    x = torch.randn(96, 3)
    return Learner(torch.nn.Linear(3, 1), (x, x[:, :1]), (x, x[:, :1]), loss_fn=torch.nn.functional.mse_loss, bs=8,
                   display=False, hooks=[GradAccum(3), *hooks])

def test_steps_are_known_of_validations_and_a_chart_without_them_is_by_batch(tmp_path):
    "One axis for all: a run with accumulated gradients would stand among steps with its batches"
    learn = learner_with(record := RunRecord(tmp_path/'a.jsonl'))
    learn.fit(3, hooks=[LambdaHook(after_step=lambda learn: learn.history.n_steps % 5 or record.tick(learn))])
    tail = RecordTail(tmp_path/'a.jsonl')
    tail.update()
    assert tail.history.steps == learn.history.steps and tail.history.epochs == learn.history.epochs
    for c in compare(learn), compare(tmp_path/'a.jsonl'):
        assert c.axis == 'step' and c.chart().panels[0].lines[0].xs[-1] == 12 and not c.notes()
    assert compare(learn).sources[0].settings['hooks'] == "['GradAccum', 'RunRecord']"
    (other := learner_with()).valid_dl = None
    other.fit(1)
    c = compare({'a': learn, 'b': other})
    assert c.axis == 'batch' and max(o.xs[-1] for o in c.chart().panels[0].lines if o.xs) == 36 and not c.notes()
    c = compare({'a': learn, 'b': other}, x='step')
    assert c.notes() == ['without loss by optimizer step: b'] and 'b' not in {o.end for o in c.chart().panels[0].lines}

# ---- live ------------------------------------------------------------------------------------------------------------

def watched(what, seen):
    "A live cell of a comparison, which has drawn it once in the cell `seen`"
    view = LiveCell('comparison', result=compare(what))
    view.redraw()
    assert len(seen) == 3 and seen.n_messages == 3
    return view

def test_live_without_widgets(tmp_path, cell):
    "It is drawn when there is news, and picture and table are left once all runs are over, however soon"
    make_run(tmp_path/'a', made(1))
    b = make_run(tmp_path/'b', made(2), state='running')
    view, ticks = watched(tmp_path, cell), []
    c = view.result
    assert c.is_live and {o['run']: o['status'] for o in c.values} == {'a': 'done', 'b': 'running'}
    view.step()
    assert cell.n_messages == 3         # nothing was new
    append(b, '{"kind": "step", "batch": 301, "train_loss": 0.5}')
    view.budget.next = view.plotted_at = 0
    view.step()
    line, picture, table = (o['text/html'] for o in cell)
    assert '>301<' in table and '<svg' not in picture and '1 of them live' in line and '>as of ' in line
    view.budget.next = float('inf')      # no further drawing is ever due
    b.write('status.json', {'state': 'failed', **now_here()})
    view.wait = lambda s: ticks.append(s) or len(ticks) > 9
    view._watch()
    line, picture, table = (o['text/html'] for o in cell)
    assert not ticks and '<img' in picture and 'image/png' in cell[1] and not c.is_live
    assert not re.search('live|as of|no update', line) and cell[2]['text/plain'].startswith('run')
    assert view.error is None and (b.path/'record'/'log.jsonl').exists()

def test_the_first_seconds(tmp_path, cell):
    "Before the first value there is no empty frame, and no legend of lines that are not drawn"
    folders = [make_run(tmp_path/f'r{i}', made(i), state='running') for i in range(10)]
    for o in folders: (o.path/'record'/'log.jsonl').unlink()
    view = watched(tmp_path, cell)
    assert view.result.title() == '10 runs · 10 of them live · no values yet' and view.result.chart() is None
    assert '<img' not in cell[1]['text/html'] and 'r9' in cell[2]['text/html']
    append(folders[9], '{"kind": "step", "batch": 1, "train_loss": 0.5}')
    view.budget.next = view.plotted_at = 0
    view.step()
    assert '<img' in cell[1]['text/html'] and 'others' not in cell[1]['text/html']
    names = {o.end or o.name for o in view.result.chart().panels[0].lines}
    assert names == {'r9', 'train_loss, smoothed'}

def test_a_comparison_that_began_in_a_fit_shows_how_it_ended(cell):
    for end, status in (lambda learn: learn.stop(), 'stopped'), (lambda learn: None, 'done'):
        cell.clear()
        cell.n_messages, views, learn = 0, [], learner_with()
        def look(learn, views=views, end=end):
            if not views: views.append(watched({'a': learn}, cell))
            end(learn)
        learn.fit(2, hooks=[LambdaHook(after_step=look)])
        view, = views
        assert [o['status'] for o in view.result.values] == ['still training'] and view.result.is_live
        view.wait = lambda s: True      # it ends at once
        view._watch()
        row, = view.result.values
        assert row['status'].startswith(status) and not view.result.is_live
        assert row['batches'] == learn.history.n_steps

def test_what_is_stored_while_it_is_live_can_be_read_later(tmp_path, monkeypatch, cell):
    "Without a kernel or a script, and where `<svg>` is dropped: a picture, since when, and how to see it again"
    folder = make_run(tmp_path/'a', made(1), state='running')
    monkeypatch.chdir(tmp_path)
    view = View(folder, RecordTail(folder.record))
    view.look()
    view._open_widgets()
    view.redraw()
    stored = cell[1]
    cell.clear()
    cell.n_messages = 0
    watched(tmp_path, cell)
    for html in stored['text/html'], ''.join(o['text/html'] for o in cell):
        assert '<svg' not in html and 'src="data:image/' in html and re.search(r'no update since \d{4}-', html)
    assert "attach(&#x27;a&#x27;) shows the run" in stored['text/html'] and "attach('a')" in stored['text/plain']

def test_a_run_that_failed_before_its_first_record(tmp_path):
    make_run(tmp_path/'good', made(1))
    make_run(tmp_path/'bad', made(1, n=5), state='failed')
    (tmp_path/'bad'/'record'/'log.jsonl').write_text(
        '{"kind": "mark", "batch": 0, "step": 0, "samples": 0, "time_s": 0.1}\n')
    c = compare(f'{tmp_path}/*')
    times = {o['run']: o['time_s'] for o in c.values}
    assert math.isnan(times['bad']) and times['good'] > 0 and 'bad' in repr(c)
    (tmp_path/'bad'/'record'/'log.jsonl').write_text('{"kind": "epoch", "batch": 0, "epoch": 0}\n')
    assert [o['epochs'] for o in runs(tmp_path, sort='run').values] == ['0', '5']

def test_names_are_short_and_printable_everywhere():
    evil = '\x1b[31m' + 'x'*200
    c = compare({'a': made(1), evil: made(2, metric='f1')}, metric='accuracy')
    assert c.notes() == ['without accuracy by optimizer step: \\x1b[31mxxxxxxxxxxxxxxx…']
    assert not any(o in repr(c) for o in ('\x1b', 'x'*30)) and '\x1b' not in c.chart().svg() + c._repr_html_()
    a, b = Source('p', made(1), {'run': 'other', 'lr': 1}), Source('q', made(2), {'run': 'third'})
    row = Comparison([a, b]).values[0]
    assert (row['run'], row['config.run']) in (('p', 'other'), ('q', 'third'))

def test_the_best_value_is_that_of_the_run_not_of_the_training_before_it(tmp_path):
    h = History()
    for e, v in enumerate([.3, .5, .4]):
        h.columns.extend(10, {'train_loss': [v]*10})
        row = {'valid_loss': v, 'valid_accuracy': 1 - v}
        h.valid_rows.append({'batch': h.n_steps, 'epoch': e, 'step': 10*(e + 1), **row})
        h.add_epoch({'epoch': e, 'train_loss': v, **row, 'time_s': 2.})
    for name, n in ('old', 30), ('own', 10), ('all', 0): make_run(tmp_path/name, h, first_batch=n)
    log = tmp_path/'all'/'record'/'log.jsonl'       # a validation before training is no result of it
    early = {'kind': 'valid', 'batch': 0, 'epoch': 0, 'step': 0, 'valid_loss': .001, 'valid_accuracy': 1.}
    log.write_text(json.dumps(early) + '\n' + log.read_text())
    c = compare(f'{tmp_path}/*')
    rows = {o['run']: (o['best valid_loss'], o['best valid_accuracy']) for o in c.values}
    assert rows['own'] == (.4, .6) and rows['all'] == (.3, .7) and all(map(math.isnan, rows['old']))
    assert repr(c).count('*') == 2 and [row[0] for row in c.rows() if '*' in f'{row}'] == ['all']
    bests = {o['run']: o['best valid_loss'] for o in runs(tmp_path).values}
    assert bests['own'] == .4 and bests['all'] == .3 and math.isnan(bests['old'])
    make_run(tmp_path/'own', h, 'running', first_batch=10)
    RunFolder(tmp_path/'own').write('status.json', {**now_here(), 'state': 'running', 'batch': 15, 'end': 30})
    status, = [o['status'] for o in compare(f'{tmp_path}/*').values if o['run'] == 'own']
    assert status.endswith(' 25 %')     # 5 of its 20 batches

ERRORS = [{'module': 'builtins', 'type': 'SystemExit', 'args': [0]}, {'module': [], 'type': 5}, 'text',
          {'module': 'subprocess', 'type': 'Popen', 'args': [['touch', 'oops']]},
          {'module': 'torch', 'type': 'OutOfMemoryError', 'args': ['x']},
          {'module': 'builtins', 'type': 'KeyError', 'args': ['\x1b[2Jx', 3], 'message': '\x1b', 'notes': 5}]

@pytest.mark.parametrize('error', ERRORS)
def test_what_a_folder_says_of_its_error_is_plain(error, tmp_path, capsys):
    "Escape sequences do not reach the terminal, and `wait` raises nothing that ends this process"
    esc, expected = '\x1b[2J', {4: torch.OutOfMemoryError, 5: KeyError}.get(ERRORS.index(error), RuntimeError)
    folder = make_run(tmp_path/'a', made(1))
    if isinstance(error, dict): error = {'traceback': esc, **error}
    folder.write('status.json', {'state': 'failed', 'note': esc, 'error': error})
    run = attach(folder.path)
    for command in 'status', 'stop': main([command, str(folder.path)])
    with pytest.raises(expected) as e: run.wait(1)
    assert type(e.value) is expected and (expected is not KeyError or e.value.args[-1] == 3)
    seen = [capsys.readouterr().out, repr(run), str(run.state), str(run.error), str(e.value), str(e.value.__cause__)]
    assert not [o for o in seen if '\x1b' in o]

NUMBERS = '1' + '0'*400, '-1e308', '[]'
DAMAGED = [*([f'{{"kind": "{kind}", "batch": 301, "epoch": {v}, "step": {v}, "time_s": {v}, "samples": {v}, '
              f'"valid_loss": {v}, "train_loss": {v}}}' for kind in ('valid', 'epoch', 'step', 'mark')]*3
             + [f'{{"kind": "valid", "batch": {v}, "valid_loss": 1.0}}', v] for v in NUMBERS),
           *([f'{{"kind": "steps", "batch": {v}, "after": {v}, "columns": {{"train_loss": "AAAAAAAA8D8="}}}}',
              f'{{"kind": "steps", "batch": 301, "after": [{v}, {v}, 0], "columns": {{"train_loss": {v}, "a": "AA"}}}}',
              f'{{"kind": "flag", "batch": {v}, "text": {v}}}'] for v in ('[]', '1' + '0'*15, '-1', '"x"', 'null')),
           ['{"kind": "epoch", "batch": 300, "epoch": {}}'],
           ['{"kind": "epoch", "batch": 300}'], ['{"kind": "valid", "batch": 300}'], ['{"kind": "step", "batch": []}'],
           ['half a li', '[1]', '[{"a":'*10**5, '{"kind": "step", "batch": 301, "train_loss": "x"}']]
STATUS = {'rate': 'x', 'end_epoch': '\x1b', 'batch': [], 'valid_idx': {}, 'end': 'e', 'epoch': {}, 'training': False,
          'position': 5}

@pytest.mark.parametrize('lines', DAMAGED, ids=range(len(DAMAGED)))
def test_a_damaged_record_can_be_looked_at(lines, tmp_path, capsys):
    folder = make_run(tmp_path/'a', made(1), first_row='x', first_batch=[], versions=[], settings='s', parent=5)
    append(folder, *lines)
    for state, status in ('running', STATUS), ('done', {}), ('failed', STATUS):
        folder.write('status.json', {**now_here(), 'state': state, **status})
        run = attach(folder.path)
        view = View(run.folder, run._tail)
        view.look()
        view.update()
        shown = view.status().text() + view.picture()[1]
        assert '\x1b' not in shown + capsys.readouterr().out
    assert len(runs(tmp_path).rows()) == 2
    for x in AXES:
        c = compare(tmp_path, x=x)
        assert repr(c) and not re.search('nan|inf', c.chart().svg())
        assert len(c.values) == 1 and c.values[0]['batches'] >= 300     # the other lines are read
