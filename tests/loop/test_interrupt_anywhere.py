"""Interrupts at any bytecode of a fit: wherever they hit, everything is restored, and the next fit works

A tracer calls the handler of SIGINT, as Python itself would, before chosen bytecodes of the library, contextlib and
PyTorch's optimizers.
"""
import contextlib, dis, functools, random, signal, sys, threading
from collections import Counter
from pathlib import Path

import pytest, torch

import trainer_nb
from common import batches, make_learner, same, weights
from trainer_nb.all import (
    AMP, EMA, Checkpoint, EarlyStopping, Freeze, GradAccum, GradClip, Hook, JSONLLogger, LambdaHook, NaNGuard,
    OneCycle, TrainingInterrupted
)

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

class Tell(Hook):
    "Counts the fits that it saw begin and end"
    def __init__(self, ord=0): self.ord, self.begun, self.ended = ord, 0, 0
    def before_fit(self, learn): self.begun += 1
    def after_fit(self, learn): self.ended += 1

def seen(learn):
    "What must be the same after each fit and each pass"
    for o in threading.enumerate():     # a cancelled timer of the display takes a moment to end
        if isinstance(o, threading.Timer) and o.finished.is_set(): o.join()
    names = 'batch', 'pred', 'loss', 'result', 'is_fitting', 'training'
    return {
        **{k: getattr(learn, k) for k in names}, 'thread': learn.history.columns.thread,
        'threads': threading.active_count(),
        'handler': signal.getsignal(signal.SIGINT), 'blocked': signal.pthread_sigmask(signal.SIG_BLOCK, ()),
        'model': id(learn.model), 'modes': [m.training for m in learn.model.modules()],
        'average': [m.training for m in learn.ema.model.modules()], 'accumulation': learn.state.grad_accum_steps,
        'lock': learn.get_hook('Checkpoint').folder.lock.file,
        'frozen': [p.requires_grad for p in learn.model.parameters()], 'hooks': list(map(id, learn.hooks))}

def make(folder):
    "A learner with much that has to be put back"
    torch.manual_seed(0)
    hooks = [Tell(-1000), Checkpoint(folder/'run', keep=1), Freeze('0.bias'), AMP(), GradAccum(2), GradClip(1.),
             NaNGuard(), EMA(), OneCycle(), EarlyStopping(restore_best=False), JSONLLogger(folder/'log.jsonl'),
             Tell(1000)]
    learn = make_learner(train_dl=batches()[:3], valid_dl=batches(seed=2)[:2], hooks=hooks, display='text')
    learn.model[1].eval()
    learn.model[3].bias.requires_grad_(False)
    learn.fit(1)
    return learn

RUNS = {'fit': lambda learn: learn.fit(1),
        'validate': lambda learn: learn.validate(),
        'lr_find': lambda learn: learn.lr_find(n_steps=3),      # it returns what it has
        'predict': lambda learn: learn.predict(learn.valid_dl, with_targs=True)}

def faults(learn, name, *moments):
    "Run this with these interrupts; returns (what is not in order afterwards, where they hit)"
    before, old, first, last = seen(learn), weights(learn.model), learn.hooks[0], learn.hooks[-1]
    wrong, raised = [], False
    with Injector(*moments) as injector:
        try: RUNS[name](learn)
        except KeyboardInterrupt: raised = True
        except Exception as e: wrong.append(f'{type(e).__name__}: {e}')
    reset_modes()
    now = seen(learn)
    wrong += [k for k in before if now[k] != before[k]]
    if first.ended < first.begun or first.ended != last.ended: wrong.append('after_fit')
    if name in ('validate', 'predict') and (learn.requests or raised != bool(injector.hit)): wrong.append('it went on')
    if name != 'fit' and not same(old, weights(learn.model)): wrong.append('weights')
    n = len(learn.history)
    try: learn.fit(1)
    except Exception as e: wrong.append(f'next fit: {type(e).__name__}: {e}')
    if len(learn.history) != n + 1 or learn.history.epochs['epoch'] != list(range(n + 1)): wrong.append('history')
    return wrong, injector.hit

def choose(places, rand):
    "A moment; each place in the code has the same chance, however often it is come to"
    place = rand.choice(list(places))
    return place, rand.randint(1, min(places[place], 5))

@pytest.mark.parametrize('name', RUNS)
@pytest.mark.parametrize('n, n_seconds', [(3, 5), pytest.param(40, 15, marks=pytest.mark.soak)])
def test_interrupts_at_any_bytecode_leave_nothing_behind(name, n, n_seconds, tmp_path, capsys):
    "One, and another one in what then ends it: the first ends what runs outside of a fit, and asks a fit to stop"
    learn, rand, found, n_hits = make(tmp_path), random.Random(1), [], 0
    firsts = walk(lambda: RUNS[name](learn))
    for _ in range(n):
        first = choose(firsts, rand)
        seconds = walk(lambda: RUNS[name](learn), first)
        learn.fit(1)
        late = dict([*seconds.items()][len(seconds)*2//3:])      # most of them in what ends it
        for moments in [(first,)] + [(first, choose(late, rand)) for _ in range(n_seconds) if late]:
            wrong, hit = faults(learn, name, *moments)
            n_hits += len(hit)
            if not wrong: continue
            found.append((wrong, hit))
            learn = make(tmp_path/str(len(found)))
    assert not found and n_hits > 3*n, (found, n_hits)

def test_a_second_interrupt_does_not_part_an_epoch_from_its_row():
    learn = make_learner(train_dl=batches()[:1])
    begin, *places = [p for p in walk(lambda: learn.fit(1)) if p[0].co_name == '_close_epoch']
    for place in places[::7]:
        with Injector((begin, 1), (place, 1)), pytest.raises(KeyboardInterrupt): learn.fit(1)
        learn.fit(1)
        assert learn.history.epochs['epoch'] == list(range(learn.state.epoch)), place

def test_a_pass_leaves_interrupts_to_a_handler_of_ones_own():
    "Somebody else's, or that of another learner whose fit makes the pass"
    learn, got = make_learner(valid_dl=batches()[:2]), []
    learn.add_hook(LambdaHook(before_step=lambda learn: signal.raise_signal(signal.SIGINT)))
    old = signal.signal(signal.SIGINT, lambda *args: got.append(1))
    try: learn.validate()
    finally: signal.signal(signal.SIGINT, old)
    assert len(got) == 2
    other = make_learner(hooks=[LambdaHook(after_epoch=lambda _: learn.validate(learn.valid_dl[:1]))])
    with pytest.raises(TrainingInterrupted): other.fit(1)
    assert len(other.history) == 1
