"""Interrupts at any bytecode of a fit: wherever they hit, everything is restored, and the next fit works

A tracer calls the handler of SIGINT, as Python itself would, before chosen bytecodes of the library, contextlib and
PyTorch's optimizers.
"""
import contextlib, dis, functools, random, signal, sys, threading, warnings
from collections import Counter
from pathlib import Path

import pytest, torch

import trainer_nb
from common import batches, make_learner
from trainer_nb.all import (AMP, EMA, Checkpoint, EarlyStopping, Freeze, GradAccum, GradClip, Hook, JSONLLogger,
                            LambdaHook, NaNGuard, OneCycle, TrainingInterrupted, accuracy)
from trainer_nb.save.files import Lock
from trainer_nb.loop.fit import Interrupts


TRACED = str(Path(trainer_nb.__file__).parent), contextlib.__file__, \
    str(Path(torch.__file__).parent/'autograd/grad_mode.py'), \
    str(Path(torch.__file__).parent/'optim'), str(Path(torch.__file__).parent/'amp')

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
        return self.step

    def step(self, frame, event, arg):
        if event == 'opcode' and frame.f_lasti not in unsafe(frame.f_code): self.arrive(frame, frame.f_lasti)
        return self.step

    def watch(self, code, offset):
        "The same for `sys.monitoring`"
        if not code.co_filename.startswith(TRACED): return sys.monitoring.DISABLE
        if threading.get_ident() == self.thread and offset not in unsafe(code): self.arrive(sys._getframe(1), offset)

    def arrive(self, frame, offset):
        place = frame.f_code, offset
        self.places.append(place)
        if self.moments and place == self.moments[0][0]:
            self.n += 1
            if self.n >= self.moments[0][1] and signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ()):
                self.interrupt(frame)

    def interrupt(self, frame):
        del self.moments[0]
        self.n, self.places = 0, []
        self.hit.append(f'{Path(frame.f_code.co_filename).name}:{frame.f_lineno} {frame.f_code.co_name}')
        signal.getsignal(signal.SIGINT)(signal.SIGINT, frame)

    def __enter__(self):
        if MONITOR:
            self.thread = threading.get_ident()
            MONITOR.use_tool_id(TOOL, 'injector')
            MONITOR.register_callback(TOOL, MONITOR.events.INSTRUCTION, self.watch)
            MONITOR.set_events(TOOL, MONITOR.events.INSTRUCTION)
        else:
            self.outer = sys.gettrace()
            sys.settrace(self.trace)
        return self

    def __exit__(self, *args):
        if not MONITOR: return sys.settrace(self.outer)
        MONITOR.set_events(TOOL, 0)
        MONITOR.free_tool_id(TOOL)

class Tell(Hook):
    "Counts the fits that it saw begin and end"
    ord = 0
    def __init__(self, ord): self.ord, self.begun, self.ended = ord, 0, 0
    def before_fit(self, learn): self.begun += 1
    def after_fit(self, learn): self.ended += 1

def make(folder):
    "A learner with much that has to be put back"
    torch.manual_seed(0)
    hooks = [Tell(-1000), Checkpoint(folder/'run', keep=1), Freeze('0.bias'), AMP(), GradAccum(2), GradClip(1.),
             NaNGuard(), EMA(), OneCycle(),
             EarlyStopping(restore_best=False), JSONLLogger(folder/'log.jsonl'), Tell(1000)]
    learn = make_learner(train_dl=batches()[:3], valid_dl=batches(seed=2)[:2], hooks=hooks, display='text')
    learn.model[1].eval()
    learn.model[3].bias.requires_grad_(False)
    return learn

def seen_around(learn):
    "What must be the same after each fit and each pass"
    for o in threading.enumerate():     # a cancelled timer of the display takes a moment to end
        if isinstance(o, threading.Timer) and o.finished.is_set(): o.join()
    names = 'batch', 'pred', 'loss', 'result', 'is_fitting'
    return {
        **{k: getattr(learn, k) for k in names}, 'thread': learn.history.columns.thread,
        'threads': threading.active_count(),
        'handler': signal.getsignal(signal.SIGINT), 'blocked': signal.pthread_sigmask(signal.SIG_BLOCK, ()),
        'model': id(learn.model), 'modes': [m.training for m in learn.model.modules()],
        'frozen': [p.requires_grad for p in learn.model.parameters()], 'hooks': list(map(id, learn.hooks))}

def seen(learn):
    "The same, and what a fit may leave behind besides"
    return {**seen_around(learn), 'told': learn.hooks[0].ended == learn.hooks[-1].ended,
            'lock': learn.get_hook('Checkpoint').folder.lock.file, 'accumulation': learn.state.grad_accum_steps}

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

def faults(learn, before, *moments):
    "Fit with these interrupts; returns (what is not in order afterwards, where they hit)"
    first, begun = learn.hooks[0], learn.hooks[0].begun
    with Injector(*moments) as injector:
        error = []
        try: learn.fit(1)
        except KeyboardInterrupt: pass
        except Exception as e: error = [f'{type(e).__name__}: {e}']
    reset_modes()
    now = seen(learn)
    wrong = error + [k for k in before if now[k] != before[k]]
    if first.ended < first.begun: wrong.append('after_fit')
    try:
        lock = Lock(learn.get_hook('Checkpoint').folder.path)
        lock.acquire()
        lock.release()
    except RuntimeError: wrong.append('folder')
    n = len(learn.history)
    try: learn.fit(1)
    except Exception as e: wrong.append(f'next fit: {type(e).__name__}: {e}')
    if len(learn.history) != n + 1 or learn.history.epochs['epoch'] != list(range(n + 1)): wrong.append('history')
    return wrong, injector.hit

@pytest.fixture
def learn(tmp_path, capsys):
    warnings.simplefilter('ignore')
    learn = make(tmp_path)
    learn.fit(1)
    return learn

def campaign(learn, pairs):
    "Returns (list of (what was wrong, where the interrupts hit), number of those that hit)"
    before, res, n_hits = seen(learn), [], 0
    for moments in pairs:
        wrong, hit = faults(learn, before, *moments)
        n_hits += len(hit)
        if not wrong: continue
        res.append((wrong, hit))
        learn = make(Path(learn.get_hook('Checkpoint').folder.path).parent/f'again{len(res)}')
        learn.fit(1)
        before = seen(learn)
    return res, n_hits

def walk(learn, *moments, run=lambda learn: learn.fit(1)):
    "Return a dict: each place that `run(learn)` comes through after interrupts at these moments → how often"
    with contextlib.suppress(KeyboardInterrupt), Injector(*moments) as injector: run(learn)
    return Counter(injector.places)

def choose(places, rand):
    "A moment; each place in the code has the same chance, however often it is come to"
    place = rand.choice(list(places))
    return place, rand.randint(1, min(places[place], 5))

def closing(places):
    "Those in what ends a fit: come to after the last hook of a step"
    last = max(i for i, (code, _) in enumerate(places) if code.co_name == 'after_step')
    return dict([*places.items()][last + 1:])

def pairs(learn, rand, n, only=lambda places: places):
    "`n` times two interrupts: the first one in a batch, the second one at any place after it"
    begin = next(place for place in walk(learn) if place[0].co_name == 'do_step')
    seconds = only(walk(learn, (begin, 1)))
    learn.fit(1)
    for _ in range(n): yield (begin, 1), choose(seconds, rand)

def test_a_second_interrupt_in_what_ends_a_fit_leaves_nothing_behind(learn):
    wrong, n_hits = campaign(learn, pairs(learn, random.Random(0), 16, closing))
    assert not wrong and n_hits == 32

@pytest.mark.soak
def test_5000_interrupts_at_any_bytecode(learn):
    rand, hits, wrong = random.Random(1), 0, []
    firsts = walk(learn)
    learn.fit(1)
    for i in range(100):
        first = choose(firsts, rand)
        anywhere = walk(learn, first)
        learn.fit(1)
        both = [(first, choose(anywhere, rand)) for _ in range(25)] if anywhere else [(first,)]*25
        found, n = campaign(learn, both)
        wrong, hits = wrong + found, hits + n
    print(f'{hits} interrupts, {len(wrong)} fits left something behind')
    assert not wrong and hits > 4500

def test_a_hook_that_hangs_at_the_end_can_be_interrupted(monkeypatch):
    "Others are still called, and nothing is left behind"
    monkeypatch.setattr(Interrupts, 'patience', 0.)
    class Hangs(Hook):
        def after_fit(self, learn):
            for _ in range(3): signal.raise_signal(signal.SIGINT)
            raise AssertionError('it goes on')
    last = Tell(1000)
    learn = make_learner(train_dl=batches(), hooks=[Hangs(), last])
    handler = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt): learn.fit(1)
    assert last.ended == 1 and signal.getsignal(signal.SIGINT) is handler and not learn.is_fitting
    learn.remove_hook('Hangs')
    learn.fit(1)

def test_interrupts_that_come_before_the_first_event_are_not_lost():
    class Opens(Hook):
        def around_fit(self, learn):
            for _ in range(self.n): signal.raise_signal(signal.SIGINT)
            return contextlib.nullcontext()
    opens = Opens()
    learn = make_learner(train_dl=batches(), hooks=[opens])
    opens.n = 1
    with pytest.raises(TrainingInterrupted): learn.fit(1)
    opens.n = 2
    with pytest.raises(KeyboardInterrupt): learn.fit(1)
    opens.n = 0
    learn.fit(1)
    assert len(learn.history) == 1 and learn.state.optimizer_step == 5

def test_a_second_interrupt_does_not_part_an_epoch_from_its_row():
    "Before each bytecode of what closes an epoch"
    warnings.simplefilter('ignore')
    learn = make_learner(train_dl=batches()[:1], hooks=[Tell(0)])
    learn.fit(1)
    begin, *places = [p for p in walk(learn) if p[0].co_name in ('_close_epoch', 'closed', 'add_epoch')]
    assert len(places) > 100
    for place in places[::5]:
        with Injector((begin, 1), (place, 1)) as injector, pytest.raises(KeyboardInterrupt): learn.fit(1)
        assert len(injector.hit) == 2
        learn.fit(1)
        assert learn.history.epochs['epoch'] == list(range(learn.state.epoch)), injector.hit


# Validation, prediction and a search outside of a fit: the first interrupt ends them, and everything is as it was

def search(learn): return learn.lr_find(n_steps=3).losses      # it returns what it has

PASSES = {'validate': lambda learn: learn.validate(), 'lr_find': search,
          'predict': lambda learn: learn.predict(learn.valid_dl, with_targs=True)}

class Modal(torch.optim.SGD):
    "An optimizer that is told of training and evaluation, as schedule-free ones are"
    mode = 'eval'
    def train(self): self.mode = 'train'
    def eval(self): self.mode = 'eval'

def make_for_passes():
    torch.manual_seed(0)
    learn = make_learner(train_dl=batches()[:2], valid_dl=batches(seed=2)[:2],
                         optim=lambda params: Modal(params, lr=.1), metrics=[accuracy],
                         hooks=[AMP(), EMA(), Tell(0)])
    learn.fit(1)
    learn.model.train()
    learn.model[1].eval()
    learn.opt.train()
    learn._opts_train = True        # as in a pause of a fit
    return learn

def seen_around_passes(learn):
    names = 'training', 'stepped', 'n_batches', 'cancelled'
    return {**seen_around(learn), **{k: getattr(learn, k) for k in names}, 'requests': [*learn.requests],
            'optimizer': learn.opt.mode, 'average': [m.training for m in learn.ema.model.modules()]}

def faults_of_pass(learn, run_pass, *moments):
    "(what is not in order after a pass with these interrupts, number of those that hit)"
    before = seen_around_passes(learn)
    with Injector(*moments) as injector:
        raised = False
        try: run_pass(learn)
        except KeyboardInterrupt: raised = True
    now = seen_around_passes(learn)
    goes_on = raised != bool(injector.hit) and run_pass is not search
    wrong = [k for k in before if now[k] != before[k]] + ['it went on']*goes_on
    return [(wrong, injector.hit)]*bool(wrong), len(injector.hit)

@pytest.mark.parametrize('name', PASSES)
def test_an_interrupt_in_a_pass_outside_of_a_fit_leaves_nothing_behind(name):
    learn, run_pass, rand, wrong, n_hits = make_for_passes(), PASSES[name], random.Random(2), [], 0
    before, places = run_pass(learn), walk(learn, run=run_pass)
    for place in rand.sample([*places], 60):
        found, n = faults_of_pass(learn, run_pass, (place, rand.randint(1, places[place])))
        wrong, n_hits = wrong + found, n_hits + n
        reset_modes()
    assert not wrong and n_hits == 60
    after = run_pass(learn)
    assert all(map(torch.equal, before, after)) if name == 'predict' else after == before

@pytest.mark.soak
def test_two_interrupts_at_every_bytecode_of_a_pass():
    learn, rand, wrong, n_hits = make_for_passes(), random.Random(3), [], 0
    for run_pass in PASSES.values():
        places = walk(learn, run=run_pass)
        for i, place in enumerate(places):
            moments = [(place, rand.randint(1, places[place]))]
            if i % 2 and (rest := walk(learn, *moments, run=run_pass)): moments.append(choose(rest, rand))
            found, n = faults_of_pass(learn, run_pass, *moments)
            wrong, n_hits = wrong + found, n_hits + n
        reset_modes()
    print(f'{n_hits} interrupts in passes, {len(wrong)} left something behind')
    assert not wrong and n_hits > 2000

def test_a_pass_leaves_interrupts_to_a_handler_of_ones_own():
    "Somebody else's, or that of another learner whose fit makes the pass"
    learn, got = make_for_passes(), []
    learn.add_hook(LambdaHook(before_step=lambda learn: signal.raise_signal(signal.SIGINT)))
    old = signal.signal(signal.SIGINT, lambda *args: got.append(1))
    try: learn.validate()
    finally: signal.signal(signal.SIGINT, old)
    assert len(got) == 2
    other = make_learner(hooks=[LambdaHook(after_epoch=lambda _: learn.validate(learn.valid_dl[:1]))])
    with pytest.raises(TrainingInterrupted): other.fit(1)
    assert len(other.history) == 1
