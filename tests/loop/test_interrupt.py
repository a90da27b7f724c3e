"A fit that is stopped at any moment goes on as if nothing had happened, and leaves nothing behind"
import os, random, signal, threading
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from multiprocessing import get_context

import numpy, psutil, pytest, torch

from common import digest, make_learner, shuffled
from trainer_nb.loop.fit import TrainingInterrupted
from trainer_nb.loop.hooks import EVENTS, CancelFit, Hook, LambdaHook
from trainer_nb.loop.metrics import accuracy

FIT = dict(n_epochs=2, valid_every=2)       # 10 training batches, and 6 validation passes of 4 batches
N_BATCHES = 34

def draw():
    "As somebody does between a stop and `resume`"
    return random.random(), numpy.random.rand(), torch.rand(3)

def start(*hooks, shared=False, **kwargs):
    "`shared`: training and validation draw from one generator"
    random.seed(0)
    numpy.random.seed(0)
    torch.manual_seed(0)
    kwargs['generator'] = torch.Generator().manual_seed(3) if shared else None
    return make_learner(train_dl=shuffled(**kwargs), valid_dl=shuffled(seed=2, bs=7, **kwargs),
                        metrics=[accuracy], hooks=hooks)

class At(Hook):
    "Acts in the `n`-th call of an event"
    def __new__(cls, act, n=1, event='after_step'):       # a class of its own, which has this event only
        return super().__new__(type('At', (cls,), {event: cls.count}))
    def __init__(self, act, n=1, event=None): self.act, self.n, self.i = act, n, 0
    def count(self, learn):
        self.i += 1
        if self.n in (self.i, 'all'): self.act(learn)

def stop(learn): learn.stop()
def interrupt(learn=None): os.kill(os.getpid(), signal.SIGINT)

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

def children(): return set(psutil.Process().children(recursive=True))

# Real signals, in another process

class Press(Hook):
    "Sends SIGINT to all of the group, as a terminal does, a moment after batch `at`; the last batch waits for it"
    def __init__(self, at): self.at, self.n, self.is_sent = at, 0, threading.Event()
    def after_step(self, learn):
        self.n += 1
        if self.n == self.at: threading.Timer(random.Random(self.n).random()*.003, self.press).start()
        if self.n == N_BATCHES: self.is_sent.wait()
    def press(self):
        os.killpg(0, signal.SIGINT)
        self.is_sent.set()

def interrupted_fits(n_fits, n_workers):
    "In a process group of its own"
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)        # a parent may have had it ignored
    rand, before, expected = random.Random(n_fits), children(), whole(num_workers=n_workers)
    for i in range(n_fits):
        learn = start(Press(rand.randint(1, N_BATCHES)), num_workers=n_workers)
        s, h = learn.state, learn.history
        with pytest.raises(TrainingInterrupted):
            learn.fit(**FIT)
            learn.hooks[0].is_sent.wait()
        psutil.wait_procs(children() - before, timeout=5)
        assert not children() - before
        assert learn.batch is None and learn.cancelled == 'interrupt'
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        assert all(p.grad is None for p in learn.model.parameters())
        assert s.optimizer_step == 5*s.epoch + s.batch_idx and s.samples_seen == 24*s.epoch + min(5*s.batch_idx, 24)
        assert len(h.steps['train_loss'] if h.n_steps else ()) == s.optimizer_step and len(h) == s.epoch
        draw()
        learn.resume()
        assert digest(learn) == expected, i

@pytest.mark.skipif(not hasattr(os, 'killpg'), reason='no process groups here')
@pytest.mark.parametrize('n_fits, n_workers', [
    (3, 0), *(pytest.param(100, n, marks=pytest.mark.soak) for n in (0, 2))])
def test_interrupt_and_resume_in_a_real_process(n_fits, n_workers):
    child = get_context('fork').Process(target=interrupted_fits, args=(n_fits, n_workers))
    child.start()
    child.join(60 + 10*n_fits)
    child.kill()
    assert child.exitcode == 0, 'see the captured stderr'

# Stops at every boundary

def test_stop_with_workers():
    kept = {'num_workers': 2, 'persistent_workers': True}
    learn, before = start(At(stop, 24), **kept), children()
    learn.fit(**FIT)
    left = children() - before
    assert learn.cancelled == 'stop' and learn.model.training and learn.batch is None
    draw()
    learn.resume()
    shut_down(learn)
    assert not left, 'worker processes were alive between stop and resume'
    assert digest(learn) == whole(**kept)

@pytest.mark.parametrize('event, n', [
    *((e, 1) for e in EVENTS if e not in ('after_fit', 'after_cancel')), ('after_valid', 2), ('after_epoch', 2)])
def test_stop_in_every_event(event, n):
    learn = start(At(stop, n, event))
    learn.fit(**FIT)
    if (event, n) != ('after_epoch', 2):        # there is something left to do
        assert learn.cancelled == 'stop'
        draw()
        learn.hooks[0].n = None
        learn.resume()
    assert digest(learn) == whole()

@pytest.mark.parametrize('shared', [False, True])
def test_stop_at_every_batch_of_one_fit(shared):
    "Before it resumes, somebody looks at the data, as one does in a notebook"
    at = At(stop, 'all')
    learn = start(at, shared=shared)
    learn.fit(**FIT)
    while learn.cancelled == 'stop':
        draw()
        next(iter(learn.train_dl)), next(iter(learn.valid_dl))
        learn.remove_hook(at)
        learn.validate()
        learn.add_hook(at)
        learn.resume()
    assert at.i == N_BATCHES and digest(learn) == whole(shared=shared)

def test_hooks_and_models_of_a_fit_are_there_after_resume_and_left_at_the_end():
    "A hook given to fit, a part of the model that stays in evaluation mode, and a model that a hook chose"
    class Frozen(Hook):
        def __init__(self): self.seen = []
        def before_epoch(self, learn): learn.own_model[2].eval()
        def model_for(self, learn, model): return torch.nn.Sequential(model)
        def after_pred(self, learn): self.seen.append((learn.training, learn.own_model[2].training, len(learn.model)))
    seen = []
    for n in None, 2, 8, 20:
        frozen = Frozen()
        learn = start(At(stop, n))
        model = learn.model
        learn.fit(**FIT, hooks=[frozen])
        for _ in range(2):
            assert frozen not in learn.hooks and learn.model is model and model[2].training
            if learn.cancelled == 'stop': learn.resume()
        seen.append((frozen.seen, digest(learn)))
    assert all(o == seen[0] for o in seen) and {o[1:] for o in seen[0][0]} == {(False, 1)}

def test_resume_needs_a_stop():
    def cancel(learn): raise CancelFit
    learn = start()
    for hooks in (), (LambdaHook(after_step=cancel),):
        with pytest.raises(RuntimeError, match='nothing to resume'): learn.resume()
        learn.fit(1, hooks=hooks)
    with pytest.raises(RuntimeError, match='nothing to resume'): learn.resume()

# Interrupts in this process

@pytest.mark.parametrize('n', [1, 6, 34])
def test_interrupt_raises_and_says_where(n):
    events = []
    learn = start(At(interrupt, n), LambdaHook(**{e: lambda learn, e=e: events.append(e)
                                                  for e in ('after_cancel', 'after_fit')}))
    with pytest.raises(TrainingInterrupted, match=r'epoch \d.*resume\(\)') as e: learn.fit(**FIT)
    assert isinstance(e.value, KeyboardInterrupt) and len(e.value._render_traceback_()) == 1
    assert events == ['after_cancel', 'after_fit'] and learn.cancelled == 'interrupt'
    draw()
    assert learn.resume() is learn.history and digest(learn) == whole()
    learn = start(At(interrupt, n))
    assert learn.fit(**FIT, on_interrupt='return') is learn.history and learn.cancelled == 'interrupt'

@pytest.mark.parametrize('event', ['before_fit', 'before_valid', 'after_epoch', 'after_fit'])
def test_no_interrupt_is_lost(event):
    "Wherever it comes, 'Run All' stops, hooks are told, and the numbers stay right"
    told, reference = [], start()
    reference.fit(1)
    learn = start(At(interrupt, 1, event), LambdaHook(after_cancel=lambda learn: told.append(learn.cancelled)))
    with pytest.raises(KeyboardInterrupt): learn.fit(1)
    if event != 'after_fit': assert told == ['interrupt'] and learn.cancelled == 'interrupt'     # else it is over
    try: learn.resume()
    except RuntimeError: assert learn.state.epoch == 1
    assert digest(learn) == digest(reference)

@pytest.mark.parametrize('point', ['do_step', 'before_valid'])
def test_the_second_interrupt_raises_at_once(point):
    log, before = [], children()
    def twice(learn, *nxt):
        for i in range(2):
            interrupt()
            log.append(i)
    learn = start(LambdaHook(after_fit=lambda learn: log.append('after_fit')), num_workers=2)
    model, handler = learn.model, signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt) as e: learn.fit(2, hooks=[LambdaHook(**{point: twice})])
    assert not isinstance(e.value, TrainingInterrupted) and log == [0, 'after_fit']
    assert learn.model is model and model.training and learn.batch is None
    assert signal.getsignal(signal.SIGINT) is handler and not children() - before
    learn.train_dl = shuffled()
    n = len(learn.history)
    learn.fit(1)
    assert len(learn.history) == n + 1

def test_fit_in_another_thread():
    "No signal handler can be set there; the numbers are the same"
    expected, learn, handler = whole(), start(At(stop, 6)), signal.getsignal(signal.SIGINT)
    def work():
        learn.fit(**FIT)
        return learn.resume()
    with ThreadPoolExecutor() as pool: pool.submit(work).result(60)
    assert digest(learn) == expected and signal.getsignal(signal.SIGINT) is handler
