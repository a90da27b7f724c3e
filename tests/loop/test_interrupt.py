"A fit that is stopped at any moment goes on as if nothing had happened, and leaves nothing behind"
import json, os, random, signal, subprocess, sys, threading, time
from functools import cache
from pathlib import Path

import pytest, torch

from common import batches, digest, make_learner, shuffled
from interrupt_child import children, draw
from trainer_nb.loop.hooks import EVENTS, CancelFit, Hook, LambdaHook
from trainer_nb.loop.metrics import accuracy
from trainer_nb.loop.fit import TrainingInterrupted


# Real signals, in another process

@pytest.mark.skipif(not hasattr(os, 'killpg'), reason='no process groups here')
@pytest.mark.parametrize('n_fits', [5, pytest.param(100, marks=pytest.mark.soak)])
@pytest.mark.parametrize('n_workers', [0, pytest.param(2, marks=pytest.mark.soak)])
def test_interrupt_and_resume_in_a_real_process(n_workers, n_fits):
    rand = random.Random(n_fits + n_workers)
    child = subprocess.Popen([sys.executable, Path(__file__).parents[1]/'interrupt_child.py', str(n_workers),
                              str(n_fits)],
                             stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1,
                             start_new_session=True)
    watchdog = threading.Timer(60 + 10*n_fits, child.kill)      # a child that hangs must not hang the tests
    watchdog.start()
    try:
        n_batches, expected = child.stdout.readline().split()
        for i in range(n_fits):
            moment = 0 if i == 0 else rand.randint(1, int(n_batches))       # 0: the fit starts
            for _ in range(moment + 1): line = child.stdout.readline()
            time.sleep(rand.random()*.003)                                  # somewhere inside the next step
            os.killpg(child.pid, signal.SIGINT)                             # as a terminal does: to all of the group
            child.stdin.write('sent\n')
            while not (line := child.stdout.readline()).startswith('{'): assert line, 'the child has died'
            assert json.loads(line) == {'digest': expected, 'wrong': []}, f'interrupted after batch {moment}'
    finally:
        watchdog.cancel()
        child.stdin.close()
        if child.wait(10) or child.stdout.close(): raise AssertionError(f'the child ended with {child.returncode}')


# Stops at every boundary

FIT = dict(n_epochs=2, valid_every=2)       # 10 training batches, and 6 validation passes of 4 batches

def start(*hooks, n_workers=0, shared=False, **kwargs):
    "`shared`: training and validation draw from one generator"
    torch.manual_seed(0)
    kwargs |= {'num_workers': n_workers, 'generator': torch.Generator().manual_seed(3) if shared else None}
    return make_learner(train_dl=shuffled(**kwargs), valid_dl=shuffled(seed=2, bs=7, **kwargs),
                        metrics=[accuracy], hooks=hooks)

class StopAt(Hook):
    "Stops in the `n`-th call of an event"
    def __new__(cls, n=None, event='after_step'):       # a class of its own, which has this event only
        return super().__new__(type('StopAt', (cls,), {event: cls.count}))
    def __init__(self, n=None, event=None): self.n, self.i = n, 0
    def count(self, learn):
        self.i += 1
        if self.i == self.n or self.n == 'all': learn.stop()

@cache
def whole(**kwargs):
    "The digest of a fit that nobody stops"
    learn = start(**kwargs)
    learn.fit(**FIT)
    shut_down(learn)
    return digest(learn)

def shut_down(learn):
    "End persistent workers: at the end of Python, torch takes five seconds for each"
    for dl in learn.train_dl, learn.valid_dl:
        if dl._iterator is not None: dl._iterator._shutdown_workers()
        dl._iterator = None

@pytest.mark.parametrize('n', [15, 33])
def test_stop_with_workers(n):
    kept = {'n_workers': 2, 'persistent_workers': True}
    learn, before = start(StopAt(n), **kept), children()
    model = learn.model
    learn.fit(**FIT)
    left = children() - before
    assert learn.cancelled == 'stop' and learn.model is model and model.training and learn.batch is None
    draw()
    learn.resume()
    shut_down(learn)
    assert not left, 'worker processes were alive between stop and resume'
    assert digest(learn) == whole(**kept)

@pytest.mark.parametrize('event, n', [
    *((e, 1) for e in EVENTS if e not in ('after_fit', 'after_cancel')), ('after_valid', 2), ('after_epoch', 2)])
def test_stop_in_every_event(event, n):
    stop = StopAt(n, event)
    learn = start(stop)
    learn.fit(**FIT)
    if (event, n) != ('after_epoch', 2):        # there is something left to do
        assert learn.cancelled == 'stop'
        draw()
        stop.n = None
        learn.resume()
    assert digest(learn) == whole()

@pytest.mark.parametrize('shared', [False, True])
def test_stop_at_every_batch_of_one_fit(shared):
    "Before it resumes, somebody looks at the data, as one does in a notebook"
    stop = StopAt('all')
    learn = start(stop, shared=shared)
    learn.fit(**FIT)
    while learn.cancelled == 'stop':
        draw()
        next(iter(learn.train_dl)), next(iter(learn.valid_dl))
        n, stop.n = stop.i, None
        learn.validate()
        stop.i, stop.n = n, 'all'
        learn.resume()
    assert stop.i == 34 and digest(learn) == whole(shared=shared)

def test_hooks_of_the_fit_and_own_modes_are_there_after_resume():
    "A hook given to fit, and a part of the model that the user keeps in evaluation mode while training"
    class Frozen(Hook):
        def __init__(self): self.seen = []
        def before_epoch(self, learn): learn.model[2].eval()
        def after_pred(self, learn): self.seen.append((learn.training, learn.model[2].training))
    def run(*hooks):
        torch.manual_seed(0)
        learn, frozen = make_learner(valid_dl=batches(), hooks=hooks), Frozen()
        learn.fit(2, hooks=[frozen])
        assert frozen not in learn.hooks and learn.model[2].training
        return learn, frozen
    for n in range(1, 20):
        learn, frozen = run(StopAt(n))
        learn.resume()
        assert learn.model[2].training and frozen not in learn.hooks
        assert frozen.seen == run()[1].seen and not any(mode for _, mode in frozen.seen)

def test_a_model_that_a_hook_chose_is_left_at_the_end():
    class Replace(Hook):
        def model_for(self, learn, model): return torch.nn.Sequential(model)
        def before_step(self, learn): assert learn.model[0] is learn.own_model
    for n in None, 3, 8:
        learn = start(Replace(), StopAt(n))
        model = learn.model
        learn.fit(**FIT)
        assert learn.model is model
        if n: learn.resume()
        assert learn.model is model and digest(learn) == whole()

def test_resume_needs_a_stop():
    learn = start()
    for _ in range(2):
        with pytest.raises(RuntimeError, match='nothing to resume'): learn.resume()
        learn.fit(1)
    def cancel(learn): raise CancelFit
    learn.fit(1, hooks=[LambdaHook(after_step=cancel)])
    with pytest.raises(RuntimeError, match='nothing to resume'): learn.resume()

# Interrupts in this process

def interrupt(learn=None): os.kill(os.getpid(), signal.SIGINT)

class InterruptAt(StopAt):
    "The same with a signal"
    def __new__(cls, n=None, event='after_step'): return super().__new__(cls, n, event)
    def count(self, learn):
        self.i += 1
        if self.i == self.n: interrupt()

@pytest.mark.parametrize('n', [1, 6, 34])
def test_interrupt_raises_and_says_where(n):
    events = []
    learn = start(InterruptAt(n), LambdaHook(**{e: lambda learn, e=e: events.append(e)
                                                for e in ('after_cancel', 'after_fit')}))
    with pytest.raises(TrainingInterrupted, match=r'epoch \d.*resume\(\)') as e: learn.fit(**FIT)
    assert isinstance(e.value, KeyboardInterrupt) and e.value.__suppress_context__
    assert len(e.value._render_traceback_()) == 1
    assert events == ['after_cancel', 'after_fit'] and learn.cancelled == 'interrupt'
    draw()
    learn.resume()
    assert digest(learn) == whole()

@pytest.mark.parametrize('event', ['before_fit', 'before_valid', 'after_epoch', 'after_fit'])
def test_no_interrupt_is_lost(event):
    "Wherever it comes, 'Run All' stops, hooks are told, and the numbers stay right"
    told = []
    learn = start(InterruptAt(1, event), LambdaHook(after_cancel=lambda learn: told.append(learn.cancelled)))
    with pytest.raises(KeyboardInterrupt): learn.fit(1)
    if event != 'after_fit': assert told == ['interrupt'] and learn.cancelled == 'interrupt'     # else it is over
    try: learn.resume()
    except RuntimeError: assert learn.state.epoch == 1
    reference = start()
    reference.fit(1)
    assert digest(learn) == digest(reference)

def test_on_interrupt_return():
    learn = start(InterruptAt(4))
    assert learn.fit(**FIT, on_interrupt='return') is learn.history
    assert learn.cancelled == 'interrupt' and learn.state.optimizer_step < 10
    assert learn.resume() is learn.history and digest(learn) == whole()

@pytest.mark.parametrize('point', ['do_step', 'do_opt_step', 'before_valid'])
def test_the_second_interrupt_raises_at_once(point):
    log, before = [], children()
    def twice(learn, *nxt):
        interrupt()
        log.append('first')
        interrupt()
        log.append('second')
    learn = start(LambdaHook(after_fit=lambda learn: log.append('after_fit')), n_workers=2)
    model, handler = learn.model, signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt) as e: learn.fit(2, hooks=[LambdaHook(**{point: twice})])
    assert not isinstance(e.value, TrainingInterrupted) and log == ['first', 'after_fit']
    assert learn.model is model and model.training and learn.batch is None
    assert signal.getsignal(signal.SIGINT) is handler
    assert not children() - before
    n = len(learn.history)
    learn.fit(2)
    assert len(learn.history) == n + 2 and log == ['first', 'after_fit', 'after_fit']


# Threads

def test_fit_in_another_thread():
    "No signal handler can be set there; it can be stopped, and the numbers are the same"
    torch.manual_seed(0)
    running, result = threading.Event(), []
    learn = start(StopAt(6), LambdaHook(after_step=lambda learn: running.set()))
    handler = signal.getsignal(signal.SIGINT)
    def work():
        try:
            learn.fit(**FIT)
            learn.resume()
            result.append(digest(learn))
            learn.fit(10**6)
            result.append(learn.cancelled)
        except BaseException as e: result.append(e)
    thread = threading.Thread(target=work)
    thread.start()
    while thread.is_alive() and not result: time.sleep(.01)
    while thread.is_alive():
        learn.stop()
        time.sleep(.01)
    thread.join()
    assert result == [whole(), 'stop'] and signal.getsignal(signal.SIGINT) is handler
