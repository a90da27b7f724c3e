"Requests are executed between two batches and change no number; buttons appear where they can work, and leave nothing"
import gc, signal, sys, threading, time, weakref
from functools import cache, partial
from types import SimpleNamespace

import pytest, torch
from ipywidgets.widgets.widget import _instances as open_widgets

import trainer_nb.show.controls as controls_module
from common import digest, make_learner, shuffled, told, until
from trainer_nb.loop.fit import TrainingInterrupted
from trainer_nb.loop.hooks import Hook, LambdaHook
from trainer_nb.loop.metrics import accuracy
from trainer_nb.show.controls import Controls, _hint, pause, unpause

FIT = dict(n_epochs=2, valid_every=2)       # 10 training batches, and 6 validation passes of 4 batches: 34 boundaries
VIEW = 'application/vnd.jupyter.widget-view+json'

def start(*hooks, **kwargs):
    torch.manual_seed(0)
    return make_learner(train_dl=shuffled(), valid_dl=shuffled(seed=2, bs=7), metrics=[accuracy], hooks=hooks, **kwargs)

@cache
def calm():
    "The digest of an uninterrupted fit"
    learn = start()
    learn.fit(**FIT)
    return digest(learn)

class At(Hook):
    "Calls `f(learn)` after the `n`-th batch, training and validation alike"
    def __init__(self, n, f): self.n, self.f, self.i = n, f, 0
    def after_step(self, learn):
        self.i += 1
        if self.i == self.n: self.f(learn)

def meanwhile(f): threading.Thread(target=f, daemon=True).start()

class Screen:
    "Stands for a notebook's front end: keeps what is displayed, what it becomes, and what is said beside the buttons"
    def __init__(self): self.shown, self.said = [], []
    def display(self, bundle, raw, display_id, metadata=None):
        self.shown.append(bundle)
        return self
    def update(self, bundle, raw): self.shown.append(bundle)
    def done(self): return [o for o in self.said if ' at batch ' in o]

@pytest.fixture
def screen(monkeypatch):
    screen = Screen()
    monkeypatch.setattr(controls_module, 'front_end', lambda: 'html')
    monkeypatch.setattr(controls_module, '_clickable', lambda: screen)
    monkeypatch.setattr('IPython.display.display', screen.display)
    say = Controls._say
    def heard(self, learn, text, *args, **kwargs):
        if text not in ('', *screen.said[-1:]): screen.said.append(text)        # the end says it again
        say(self, learn, text, *args, **kwargs)
    monkeypatch.setattr(Controls, '_say', heard)
    return screen

def click(*labels):
    def f(learn):
        for o in labels: learn.get_hook(Controls).panel.buttons[o].click()
    return f

def interrupt(learn=None): signal.raise_signal(signal.SIGINT)


# Requests

def test_requests_of_another_thread_are_done_at_the_next_boundary():
    seen = []
    def look(learn): seen.append((learn.state.batch_idx, learn.batch, threading.current_thread()))
    def fitted(*whats):
        def ask(learn):
            thread = threading.Thread(target=lambda: [learn.request(o) for o in whats])
            thread.start()
            thread.join()
        learn = start(At(3, ask))
        learn.fit(3)
        return learn
    learn = fitted(look, 'stop')
    assert learn.cancelled == 'stop' and learn.state.batch_idx == 3 and not len(learn.history)
    assert seen == [(3, None, threading.current_thread())]
    learn = fitted('stop_epoch')
    assert learn.cancelled is None and len(learn.history) == 1 and learn.history.epochs['valid_loss']


# Pause

def pause_and_go_on(learn):
    learn.request(pause)
    learn.request(unpause)

def click_and_go_on(learn):
    click('Pause')(learn)
    resume = partial(click('Pause'), learn)         # the button reads Resume then
    meanwhile(lambda: (until(lambda: learn.get_hook(Controls).said.startswith('paused')), resume()))

@pytest.mark.parametrize('n', [1, 4, 10, 34])     # in training, in validation, at the ends of an epoch and of the fit
def test_a_pause_at_any_batch_changes_nothing(n, screen):
    for hooks in [At(n, pause_and_go_on)], [At(n, click_and_go_on), Controls()]:
        learn = start(*hooks)
        learn.fit(**FIT)
        assert digest(learn) == calm()
    paused, resumed = screen.done()
    assert paused.startswith('paused at ') and resumed == paused.replace('paused', 'resumed')

@pytest.mark.parametrize('n', [1, 4])       # in training, in validation
def test_nothing_moves_in_a_pause_and_requests_are_done(n):
    seen, counts, learn = [], LambdaHook(before_step=lambda learn: seen.append('batch')), start()
    def look(learn): seen.append(learn.position)
    def ask():
        until(lambda: not learn.requests)
        for f in look, look, pause, look, unpause:        # one `unpause` ends a second pause, too
            learn.request(f)
            until(lambda: f not in learn.requests)
            time.sleep(.03)
    learn.fit(**FIT, hooks=[counts, At(n, lambda learn: (learn.request(pause), meanwhile(ask)))])
    assert digest(learn) == calm() and seen.count('batch') == 34
    assert seen[:n] == ['batch']*n and len({*seen[n:n + 3]}) == 1 and seen[n + 3:] == ['batch']*(34 - n)

@pytest.mark.parametrize('n, how', [(1, 'stop'), (33, 'interrupt')])          # in training, in validation
def test_stop_in_a_pause(n, how, screen):
    learn = start(Controls())
    end = learn.stop if how == 'stop' else interrupt
    hooks = [At(n, lambda learn: (click('Pause')(learn), meanwhile(lambda: (until(screen.done), end()))))]
    try: learn.fit(**FIT, hooks=hooks)
    except TrainingInterrupted: assert how == 'interrupt'
    paused, ended = screen.done()
    assert learn.cancelled == how and ended == paused.replace('paused', {'stop': 'stopped'}.get(how, 'interrupted'))
    torch.rand(3)
    learn.resume()
    assert digest(learn) == calm()

# Buttons

class Checkpoint(Hook):
    provides = 'checkpoints'
    def __init__(self): self.saved = []
    def save(self, learn): self.saved.append((learn.state.batch_idx, learn.batch, threading.current_thread()))

def test_checkpoint_button(screen):
    "It works where something saves checkpoints, between two batches, before a stop that is asked for with it"
    enabled, hook = [], Checkpoint()
    def look(learn): enabled.append(not learn.get_hook(Controls).panel.buttons['Checkpoint now'].disabled)
    learn = start(Controls(), At(1, look))
    learn.fit(1)
    learn.fit(1, hooks=[hook, At(2, click('Checkpoint now', 'Stop after batch'))])
    assert enabled == [False] and hook.saved == [(2, None, threading.current_thread())]
    assert learn.cancelled == 'stop' and screen.done()[0] == 'saves a checkpoint at batch 7'

@pytest.mark.parametrize('end', [lambda learn: None, lambda learn: 1/0, interrupt])
def test_nothing_is_left(end, screen):
    "No widget, no reference to the learner, and a click that comes too late does nothing"
    before, panels = set(open_widgets), []
    learn = start(Controls(), At(1, lambda learn: panels.append(learn.get_hook(Controls).panel)), At(34, end))
    try: learn.fit(**FIT)
    except (ZeroDivisionError, TrainingInterrupted): assert learn.cancelled
    assert (digest(learn) == calm() or learn.cancelled) and set(open_widgets) == before
    assert [VIEW in o for o in (screen.shown[0], screen.shown[-1])] == [True, False]
    assert screen.shown[0]['text/plain'] == _hint()
    n_said = len(screen.said)
    panels[0].buttons['Stop after batch'].click()
    assert not learn.requests and len(screen.said) == n_said
    if learn.cancelled: return      # the traceback holds it
    ref = weakref.ref(learn)
    del learn
    panels.clear()
    gc.collect()
    assert ref() is None

def test_buttons_that_fail_end_nothing(screen, monkeypatch):
    def fail(*args, **kwargs): raise RuntimeError('no comm')
    monkeypatch.setattr('ipywidgets.Button', fail)
    learn = start(Controls(), At(3, pause_and_go_on))
    with told() as said: learn.fit(**FIT)
    assert digest(learn) == calm() and len(said) == 1 and 'no comm' in said[0]

def test_without_ipywidgets_there_is_a_line(monkeypatch):
    kernel = SimpleNamespace(shell_channel_thread=True, _allow_stdin=True)
    monkeypatch.setattr('IPython.get_ipython', lambda: SimpleNamespace(kernel=kernel, execution_count=1))
    monkeypatch.setitem(sys.modules, 'ipywidgets', None)
    screen = Screen()
    monkeypatch.setattr('IPython.display.display', screen.display)
    learn = start(Controls(), At(3, pause_and_go_on))
    learn.fit(**FIT)
    assert digest(learn) == calm() and not any(VIEW in o for o in screen.shown)
    assert screen.shown[0]['text/plain'] == _hint() and screen.shown[1]['text/plain'].startswith('paused at batch ')
