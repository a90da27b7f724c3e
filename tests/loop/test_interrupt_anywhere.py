"""Interrupts at any bytecode of a fit: wherever they hit, everything is restored, and the next fit works

A tracer calls the handler of SIGINT, as Python itself would, before chosen bytecodes of the library, contextlib and
PyTorch's optimizers.
"""
import contextlib, dis, functools, random, signal, sys, threading
from collections import Counter
from pathlib import Path

import pytest, torch

import trainer_nb
from common import batches, make_learner
from trainer_nb.all import (
    AMP, EMA, Checkpoint, EarlyStopping, Freeze, GradAccum, GradClip, Hook, JSONLLogger, LambdaHook, NaNGuard,
    OneCycle, TrainingInterrupted, accuracy
)
from trainer_nb.loop.fit import Interrupts
from trainer_nb.save.files import Lock

pytestmark = pytest.mark.filterwarnings('ignore')
of_torch = Path(torch.__file__).parent
TRACED = (str(Path(trainer_nb.__file__).parent), contextlib.__file__,
          *(str(of_torch/o) for o in ('autograd/grad_mode.py', 'optim', 'amp')))
MONITOR, TOOL = getattr(sys, 'monitoring', None), 3     # from Python 3.12 on, where a trace misses bytecodes

@functools.cache
def unsafe(code):
    "Where Python itself never raises an interrupt, and would leave a caught exception behind"
    return {o.offset for o in dis.get_instructions(code) if o.opname == 'PUSH_EXC_INFO'}

class Injector:
    """SIGINT at these moments, one after the other: ((code, offset of a bytecode), how often it is come to)

    `places` are all that were come to since the last interrupt.
    """
    def __init__(self, *moments): self.moments, self.n, self.hit, self.places = [*moments], 0, [], []

    def trace(self, frame, event, arg):
        if not frame.f_code.co_filename.startswith(TRACED): return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        if event == 'opcode': self.arrive(frame, frame.f_lasti)
        return self.trace

    def watch(self, code, offset):
        "The same for `sys.monitoring`"
        if not code.co_filename.startswith(TRACED): return MONITOR.DISABLE
        if threading.get_ident() == self.thread: self.arrive(sys._getframe(1), offset)

    def arrive(self, frame, offset):
        place = frame.f_code, offset
        if offset in unsafe(frame.f_code): return
        self.places.append(place)
        if not self.moments or place != self.moments[0][0]: return
        self.n += 1
        if self.n < self.moments[0][1] or signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, ()): return
        del self.moments[0]
        self.n, self.places = 0, []
        self.hit.append(f'{Path(frame.f_code.co_filename).name}:{frame.f_lineno} {frame.f_code.co_name}')
        signal.getsignal(signal.SIGINT)(signal.SIGINT, frame)

    def __enter__(self):
        self.thread, self.outer = threading.get_ident(), sys.gettrace()
        if not MONITOR: sys.settrace(self.trace)
        else:
            MONITOR.use_tool_id(TOOL, 'injector')
            MONITOR.register_callback(TOOL, MONITOR.events.INSTRUCTION, self.watch)
            MONITOR.set_events(TOOL, MONITOR.events.INSTRUCTION)
        return self

    def __exit__(self, *args):
        if not MONITOR: return sys.settrace(self.outer)
        MONITOR.set_events(TOOL, 0)
        MONITOR.free_tool_id(TOOL)

@pytest.fixture(autouse=True)
def reset():
    yield
    reset_modes()

def reset_modes():
    "Switch gradients on and autocast off: an exception between two lines of torch may leave them otherwise"
    torch.set_grad_enabled(True)
    torch.set_autocast_enabled('cpu', False)
    while torch.autocast_decrement_nesting() >= 0: pass
    torch.autocast_increment_nesting()
    torch.clear_autocast_cache()

def walk(run, *moments):
    "Return a dict: each place that `run` comes through after interrupts at these moments → how often"
    with contextlib.suppress(KeyboardInterrupt), Injector(*moments) as injector: run()
    reset_modes()
    return Counter(injector.places)

def choose(places, rand):
    "A moment; each place in the code has the same chance, however often it is come to"
    place = rand.choice(list(places))
    return place, rand.randint(1, min(places[place], 5))

class Tell(Hook):
    "Counts the fits that it saw begin and end"
    def __init__(self, ord=0): self.ord, self.begun, self.ended = ord, 0, 0
    def before_fit(self, learn): self.begun += 1
    def after_fit(self, learn): self.ended += 1

class Modal(torch.optim.SGD):
    "An optimizer that is told of training and evaluation, as schedule-free ones are"
    mode = 'eval'
    def train(self): self.mode = 'train'
    def eval(self): self.mode = 'eval'

def seen(learn):
    "What must be the same after each fit and each pass"
    for o in threading.enumerate():     # a cancelled timer of the display takes a moment to end
        if isinstance(o, threading.Timer) and o.finished.is_set(): o.join()
    names = 'batch', 'pred', 'loss', 'result', 'is_fitting', 'training'
    return {
        **{k: getattr(learn, k) for k in names}, 'thread': learn.history.columns.thread,
        'threads': threading.active_count(), 'requests': [*learn.requests],
        'handler': signal.getsignal(signal.SIGINT), 'blocked': signal.pthread_sigmask(signal.SIG_BLOCK, ()),
        'model': id(learn.model), 'modes': [m.training for m in learn.model.modules()],
        'optimizer': getattr(learn.opt, 'mode', None), 'average': [m.training for m in learn.ema.model.modules()],
        'frozen': [p.requires_grad for p in learn.model.parameters()], 'hooks': list(map(id, learn.hooks))}

# Fits: two interrupts

def make(folder):
    "A learner with much that has to be put back, after a fit"
    torch.manual_seed(0)
    hooks = [Tell(-1000), Checkpoint(folder/'run', keep=1), Freeze('0.bias'), AMP(), GradAccum(2), GradClip(1.),
             NaNGuard(), EMA(), OneCycle(), EarlyStopping(restore_best=False), JSONLLogger(folder/'log.jsonl'),
             Tell(1000)]
    learn = make_learner(train_dl=batches()[:3], valid_dl=batches(seed=2)[:2], hooks=hooks, display='text')
    learn.model[1].eval()
    learn.model[3].bias.requires_grad_(False)
    learn.fit(1)
    return learn

def faults(learn, *moments):
    "Fit with these interrupts; returns (what is not in order afterwards, where they hit)"
    before, tells, wrong, n = seen(learn), (learn.hooks[0], learn.hooks[-1]), [], len(learn.history)
    with Injector(*moments) as injector:
        try: learn.fit(1)
        except KeyboardInterrupt: pass
        except Exception as e: wrong.append(f'{type(e).__name__}: {e}')
    reset_modes()
    now, folder = seen(learn), learn.get_hook('Checkpoint').folder
    wrong += [k for k in before if now[k] != before[k]]
    if tells[0].ended < tells[0].begun or tells[0].ended != tells[1].ended: wrong.append('after_fit')
    if folder.lock.file or learn.state.grad_accum_steps != 1: wrong.append('lock or window')
    try:
        with contextlib.closing(Lock(folder.path)) as lock: lock.acquire()
    except RuntimeError: wrong.append('folder')
    n = len(learn.history)
    try: learn.fit(1)
    except Exception as e: wrong.append(f'next fit: {type(e).__name__}: {e}')
    if len(learn.history) != n + 1 or learn.history.epochs['epoch'] != list(range(n + 1)): wrong.append('history')
    return wrong, injector.hit
