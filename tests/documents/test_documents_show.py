"What four documents ask of a display: metrics while it runs, lines of a log, bars"
import io, logging, re, sys

import pytest, torch

from common import Unsized, batches, digest, make_learner, stop_at
from trainer_nb.features.gradients import GradAccum
from trainer_nb.loop.hooks import LambdaHook
from trainer_nb.loop.metrics import Metric, accuracy
from trainer_nb.save import Checkpoint
from trainer_nb.show import display as module
from trainer_nb.show.display import Log, progress

def learner(display, **kwargs):
    torch.manual_seed(0)
    kwargs = {'train_dl': batches(200), 'valid_dl': batches(seed=2), 'metrics': [accuracy], **kwargs}
    return make_learner(display=display, **kwargs)

def live_lines(parts): return [o for o in parts if '░ epoch' in o or '█ epoch' in o]

def untimed(lines): return [re.sub(r'[\d.]+ (it/s|s/it)|\d\d:\d\d|[\d.]+ m?s\b| +', ' ', o) for o in lines]


# Metrics so far

class Share:
    "The share of samples of class 1, as a metric object"
    def reset(self): self.n = self.total = 0
    def update(self, pred, targ): self.n, self.total = self.n + int((targ == 1).sum()), self.total + len(targ)
    def compute(self):
        if self.total < 10: raise ValueError('too few samples')
        return self.n/self.total

class Large(Share):
    def update(self, pred, targ):
        super().update(pred, targ)
        self.kept = torch.zeros(2**20)

def test_the_live_line_has_every_metric_of_the_batches_so_far(monkeypatch, capsys):
    "And changes no number"
    monkeypatch.setenv('COLUMNS', '200')
    expected, seen = [], []
    def look(learn):
        if not learn.training: return
        x, y = learn.batch
        seen.append(((learn.result['pred'].argmax(1) == y).sum().item(), (y == 1).sum().item(), len(y)))
        hits, ones, total = map(sum, zip(*seen))
        learn.display.draw(learn)       # this batch is counted: `after_step`
        expected.append((hits/total, ones/total))
    def made(display, *hooks):
        metrics = [accuracy, Metric(Share(), name='share'), Metric(Large(), name='large')]
        return learner(display, metrics=metrics, hooks=hooks, seed=0)
    learn, plain = made('tty', LambdaHook(after_step=look)), made(False)
    for o in learn, plain: o.fit(1)
    assert digest(learn) == digest(plain)
    lines = live_lines(re.split(r'[\r\n]', capsys.readouterr().out))
    lines = [o for o in lines if 'accuracy' in o and 'valid' not in o][-len(expected):]
    assert learn.display.error is None and len(lines) == len(expected) == 40
    for line, (hits, ones) in zip(lines, expected):
        assert f'accuracy {hits:.4g} ' in line and 'large' not in line, line
        assert f'share {ones:.4g} ' in line or line is lines[0], line       # too few samples for the first one

def test_a_line_has_at_most_eight_values_and_fits_a_terminal_of_80_columns(monkeypatch, capsys):
    monkeypatch.setenv('COLUMNS', '80')
    metrics, seen = [Metric(lambda pred, targ: pred.mean(), name=f'metric_{i}') for i in range(12)], []
    def look(learn):
        learn.display.draw(learn)
        seen.append(learn.display.status(learn).text())
    learner('tty', metrics=metrics, valid_dl=None, hooks=[LambdaHook(after_step=look)]).fit(1)
    parts = re.split(r'[\r\n]', capsys.readouterr().out)
    assert max(map(len, parts)) < 80 and all('loss' in o and 'it/s' in o for o in live_lines(parts)[1:])
    assert 'done: 1 epoch' in ' '.join(parts[-3:])
    assert 'metric_6' in seen[-1] and 'metric_7' not in seen[-1] and ' · and 5 more · ' in seen[-1]


# Lines of a log

class Pipe(io.StringIO):
    "Notes how many batches were done when a line could be read"
    def __init__(self, learn):
        super().__init__()
        self.learn, self.at = learn, {}
    def flush(self):
        for line in self.lines(): self.at.setdefault(line, self.learn.history.n_steps)
    def lines(self): return self.getvalue().splitlines()

def streamed(monkeypatch, *hooks, display='text', columns=120):
    "(history, pipe) of a fit of 200 steps with ten validations"
    monkeypatch.setenv('COLUMNS', str(columns))
    learn = learner(display, train_dl=Unsized(batches(200)*5), hooks=hooks)
    with monkeypatch.context() as m:
        m.setattr(sys, 'stdout', pipe := Pipe(learn))
        m.setattr('trainer_nb.show.display.Text.flush_s', 0.)      # these batches take microseconds
        learn.fit(max_steps=200, valid_every=20)
    return learn.history, pipe

def test_a_stream_prints_its_validations_as_they_come(monkeypatch):
    h, pipe = streamed(monkeypatch)
    lines = [o for o in pipe.lines() if 'valid_loss ' in o and '·' in o]
    said = [int(re.search(r'batch (\d+)', o)[1]) for o in lines]
    assert [pipe.at[o] for o in lines] == said == [*range(20, 200, 20)] and len(h.valids['valid_loss']) == 10
    for line, loss, acc in zip(lines, h.valids['valid_loss'], h.valids['valid_accuracy']):
        assert f'valid_loss {loss:.4g} · valid_accuracy {acc:.4g} · ' in line
        assert re.search(r'it/s · \d\d:\d\d left$', line)
    row, end = pipe.lines()[-2:]        # the tenth is in the epoch's row
    assert f'{h.valids["valid_loss"][-1]:.4f}' in row.split() and end.startswith('done: 1 epoch, best valid_loss ')
    _, pipe = streamed(monkeypatch, columns=80)         # rate and time left have no room
    assert len([o for o in pipe.lines() if ' · valid_loss ' in o]) == 9 and max(map(len, pipe.lines())) < 80
    assert not re.search(r'[\r\x1b]', pipe.getvalue())

@pytest.mark.parametrize('hooks, every', [((), 3), ((Log(None),), None), ((Log('1min'),), 6), ((Log('5 steps'),), 5),
                                          ((GradAccum(4), Log('2 steps')), 8)])
def test_a_log_has_a_line_every_30_seconds_or_as_often_as_it_is_told(monkeypatch, capsys, hooks, every):
    "Steps are those of the optimizer"
    clock = [100.]
    def turn(learn): clock[0] += 10.    # of each batch
    monkeypatch.setattr(module, 'perf_counter', lambda: clock[0])
    learner('text', valid_dl=None, hooks=[*hooks, LambdaHook(after_step=turn)]).fit(1)
    text = capsys.readouterr().out
    found = [int(o) for o in re.findall(r'batch (\d+)/40 · loss', text)]
    assert found == [*range(every, 41, every)] if every else not found
    assert [o.lstrip('* ').split()[0] for o in text.splitlines()][-3:] == ['epoch', '0', 'done:']    # once

def test_the_same_lines_go_to_logging(monkeypatch, caplog):
    caplog.set_level('INFO')
    _, pipe = streamed(monkeypatch)
    _, other = streamed(monkeypatch, Log(logger='training.a'), display=False)
    assert not other.getvalue() and {o.name for o in caplog.records} == {'training.a'}
    assert untimed(caplog.messages) == untimed(pipe.lines()) and len(caplog.messages) == 12
    caplog.clear()
    streamed(monkeypatch, Log(logger=logging.getLogger('b')), Log(logger='c'))      # beside the lines in the pipe
    assert {o.name for o in caplog.records} == {'b', 'c'} and len(caplog.messages) == 24
    caplog.clear()
    learner(False, hooks=[Log(logger='d'), stop_at(3)]).fit(1)
    assert len(caplog.messages) == 1 and 'after 3 of 40' in caplog.messages[0]

@pytest.mark.parametrize('where', ['text', 'tty', 'log'])
def test_each_saved_checkpoint_is_a_line_of_a_log(where, capsys, caplog, tmp_path):
    "Once it is on disk, by its name, and with its value where that is the best so far; a bar is not disturbed"
    caplog.set_level('INFO')
    losses = iter([.5, .25, .75])
    hooks = [check := Checkpoint(tmp_path), *([Log(logger='a')] if where == 'log' else [])]
    learner(False if where == 'log' else where, valid_dl=[None], metrics=[], hooks=hooks,
            eval_step=lambda batch, learn: {'loss': torch.tensor(next(losses))}).fit(3)
    said = caplog.messages if where == 'log' else capsys.readouterr().out.splitlines()
    saved, ends = [o for o in said if 'saved' in o], ['best valid_loss 0.5', 'best valid_loss 0.25', 'epoch 2']
    assert len(saved) == (0 if where == 'tty' else 3)
    for line, o, end in zip(saved, check.folder.manifests(), ends): assert o['file'] in line and end in line

def test_a_log_takes_a_number_and_a_unit_and_changes_no_number(capsys):
    for wrong in 0, True, '0 steps', '10 minutes':
        with pytest.raises(ValueError, match=f"every is {wrong!r}: expected 'epoch', .*'30 s'"): Log(wrong)
    def run(*hooks):
        learn = learner(False, hooks=hooks)
        learn.fit(3, valid_every=7)
        return digest(learn)
    assert run(Log(.001), Log('3 steps', 'x')) == run()
    capsys.readouterr()
    run(Log('2 epochs'))
    assert re.findall(r'^[ *] +(\d) ', capsys.readouterr().out, re.M) == ['1']


# `progress`

@pytest.mark.parametrize('make, total, end', [
    (list, None, '0 steps in'), (lambda: (o for o in 'abc'), None, '3 steps in'),
    (lambda: range(3), 7, '3 of 7 steps in'), (lambda: range(7), 3, '7 steps in')])
@pytest.mark.parametrize('where', ['text', 'tty', 'html'])
def test_progress_shows_a_loop_of_your_own(make, total, end, where, monkeypatch, cell, capsys):
    monkeypatch.setattr(module, 'front_end', lambda: where)
    assert [*progress(make(), total)] == [*make()]
    out = capsys.readouterr().out
    if where == 'html': last, out = cell[-1]['text/plain'], out + '\n'
    else: last = out.split('\r')[-1]
    assert last.startswith(end) and out.count('\n') == 1
    assert ('\r' in out) == (where == 'tty') and '\x1b' not in out

def test_progress_of_a_loop_that_ends_early(monkeypatch, cell, capsys):
    monkeypatch.setattr(module, 'front_end', lambda: 'html')
    for i in progress(range(10)):
        if i == 4: break
        live = cell[-1]
    assert 'width:30.0%' in live['text/html'] and '30.00% [3/10' in live['text/plain']
    assert cell[-1]['text/plain'].startswith('4 of 10 steps in 00:00') and '<div' in cell[-1]['text/html']
    with pytest.raises(ZeroDivisionError):
        for i in progress(range(10)): 1/(i - 2)
    assert cell[-1]['text/plain'].startswith('2 of 10 steps')

def test_progress_prints_a_line_every_30_seconds_in_a_log(monkeypatch, capsys):
    clock = [0.]
    monkeypatch.setattr(module, 'perf_counter', lambda: clock[0])
    monkeypatch.setattr('time.time', lambda: clock[0])
    for _ in progress(range(10)): clock[0] += 10.
    lines = capsys.readouterr().out.splitlines()
    assert [o.split()[0] for o in lines] == ['30.00%', '60.00%', '90.00%', '10'] and '[3/10 00:30 < 01:10]' in lines[0]
