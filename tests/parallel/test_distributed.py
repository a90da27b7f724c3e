"""Several processes train as one: the same numbers, whatever else happens; the references are fits, and a loop,
in a single process"""
import gc, json, math, os, shutil, signal, subprocess, sys, time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import psutil, pytest, torch, torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from accelerate import DistributedDataParallelKwargs, FullyShardedDataParallelPlugin, ParallelismConfig

from common import Stream, alive, make_learner, plain_loop, problem, same, until, weights
from trainer_nb.all import (
    Accelerate, Checkpoint, EarlyStopping, EMA, Freeze, GradAccum, GradClip, GradNorm, LambdaHook,
    NaNGuard, OneCycle, ProcessFailed, SeededLoader, TensorLoader, TrainingInterrupted, accuracy
)
from trainer_nb.loop.hooks import Hook
from trainer_nb.parallel.accelerate import _make_world
from trainer_nb.parallel.launch import forked
from trainer_nb.runs.record import RecordTail, RunRecord

@pytest.fixture(autouse=True)
def nothing_is_left():
    "No process, no process group and no environment variable, however a test ended"
    before = {o.pid for o in psutil.Process().children(recursive=True)}
    yield
    assert not [o for o in psutil.Process().children(recursive=True) if o.pid not in before]
    assert not torch.distributed.is_initialized() and not {'RANK', 'WORLD_SIZE', 'MASTER_PORT'} & os.environ.keys()

X, Y = problem(46)          # batches of 9 leave one sample over: with 4 processes, three have none

class Net(nn.Module):
    "`d` and `g` for two optimizers; `idle` is used by nobody"
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.d = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
        self.g, self.idle = nn.Linear(4, 4), nn.Linear(2, 2)
    def forward(self, x): return self.d(self.g(x))

class Whole(Net):
    def __init__(self):
        super().__init__()
        del self.idle

class NowAndThen(Whole):
    "Uses `more` in every second batch only: the last one of a window of two has no gradient for it"
    def __init__(self):
        super().__init__()
        self.more, self.n = nn.Linear(4, 4), 0
    def forward(self, x):
        self.n += self.training
        return super().forward(self.more(x) if self.n % 2 else x)

def sgd(params): return torch.optim.SGD(params, lr=.1, momentum=.9)

def token_step(batch, learn):
    x, y = batch
    pred, here = learn.model.d(learn.model.g(x)), x[:, 0] > -1
    n = here.sum()
    return {'loss': (F.cross_entropy(pred, y, reduction='none')*here).sum()/n.clamp(min=1), 'n': n, 'pred': pred[here],
            'targ': y[here]}

def two_steps(batch, learn):
    x, m = batch[0], learn.model
    yield 'd', m.d(x).square().mean() + m.d(m.g(x)).mean()
    yield 'g', (m.d(m.g(x)) - 1).square().mean()

def two_optims(m): return {'d': sgd(m.d.parameters()), 'g': torch.optim.SGD(m.g.parameters(), lr=.05)}

def several(pred, targ):
    return {'mean': pred.mean(), 'of': torch.stack([(pred.argmax(1) == c).float().mean() for c in range(3)])}

SAMPLES, BATCHES = TensorDataset(X, Y), list(zip(X.split(9), Y.split(9)))
DATA = {'tensors': lambda: TensorLoader(X, Y, bs=9, shuffle=True),
        'stock': lambda: DataLoader(SAMPLES, batch_size=9, shuffle=True),
        'workers': lambda: DataLoader(SAMPLES, 9, True, num_workers=1, persistent_workers=True),
        'seeded': lambda: SeededLoader(SAMPLES, batch_size=9, shuffle=True),
        'list': lambda: BATCHES,
        'without length': lambda: DataLoader(Stream(BATCHES), batch_size=None),
        'drop_last': lambda: DataLoader(SAMPLES, batch_size=9, drop_last=True)}

def wrapped(): return Accelerate(kwargs_handlers=[DistributedDataParallelKwargs()])     # as on GPUs

def now_and_then(learn):
    for p in learn.own_model.g.parameters(): p.requires_grad_(learn.state.batch_idx % 3 < 2)

CASES = {   # what is given to the learner, and to fit
    'plain': dict(metrics=[accuracy, several]),
    'wrapped': dict(hooks=lambda: [wrapped(), GradClip(.5)]),
    'wrapped and frozen': dict(hooks=lambda: [wrapped(), Freeze('g')]),
    'wrapped, frozen now and then': dict(hooks=lambda: [wrapped(), LambdaHook(before_step=now_and_then)]),
    'adam': dict(optim=lambda p: torch.optim.Adam(p, lr=.01, eps=1e-3), hooks=lambda: [GradNorm(), NaNGuard(every=2)]),
    'frozen': dict(hooks=lambda: [Freeze('g')]),
    'accumulation and clip': dict(hooks=lambda: [GradAccum(3), GradClip(.5)]),
    'now and then': dict(model=NowAndThen, hooks=lambda: [GradAccum(2)]),
    'everything': dict(hooks=lambda: [GradAccum(2), GradClip(.5), OneCycle(.2), EMA(.9),
                                      EarlyStopping(1, min_delta=.12)], fit=dict(n_epochs=8)),
    'tokens': dict(train_step=token_step, model=Net),
    'tokens and windows': dict(train_step=token_step, hooks=lambda: [GradAccum(4), GradClip(.5)], model=Net),
    'two optimizers': dict(train_step=two_steps, optim=two_optims, metrics=[]),
    'two optimizers and windows': dict(train_step=two_steps, optim=two_optims, metrics=[],
                                       hooks=lambda: [GradAccum(2), GradClip(.5)]),
    'by steps': dict(hooks=lambda: [GradAccum(2)], fit=dict(max_steps=7, valid_every=2)),
    **{name: dict(data=name) for name in DATA}}

def learner(case, *more):
    c = dict(CASES[case])
    c.pop('fit', None)
    m, hooks, optim = c.pop('model', Whole)(), c.pop('hooks', list)(), c.pop('optim', sgd)
    if optim is two_optims: optim = two_optims(m)
    return make_learner(m, DATA[c.pop('data', 'tensors')](), TensorLoader(X[:31], Y[:31], bs=10), optim=optim, seed=5,
                        **{'metrics': [accuracy], 'loss_fn': None if 'train_step' in c else F.cross_entropy,
                           'hooks': [*hooks, *more], **c})

def close(a, b, atol=1e-6, rtol=0.):
    a, b = (torch.as_tensor(o, dtype=torch.float64) for o in (a, b))
    return torch.allclose(a, b, rtol=rtol, atol=atol, equal_nan=True)

def check_equal(a, b, rtol=0.):
    models = [(a.model, b.model), *([(a.ema.model, b.ema.model)] if a.ema else [])]
    for m, n in models: assert all(close(v, w, rtol=rtol) for v, w in zip(weights(m), weights(n), strict=True))
    for rows in 'steps', 'epochs', 'valids':
        ours, theirs = getattr(a.history, rows), getattr(b.history, rows)
        assert ours.keys() == theirs.keys()
        for k in ours.keys() - {'time_s'}: assert close(ours[k], theirs[k], rtol=rtol), (rows, k, ours[k], theirs[k])
    assert a.state == b.state

@pytest.mark.parametrize('case', [pytest.param(o, marks=[pytest.mark.soak]*(o != 'everything')) for o in CASES])
def test_equals_one_process(case):
    args = CASES[case].get('fit', dict(n_epochs=3))
    alone = learner(case)
    alone.fit(**args)
    for n in 2, 4:
        learn = learner(case)
        learn.launch(n, **args)
        check_equal(alone, learn)
        if stop := learn.get_hook('EarlyStopping', None):
            assert stop.best_epoch == alone.get_hook('EarlyStopping').best_epoch and stop.is_over
            assert len(learn.history) < 8

def test_equals_the_loop_that_everybody_has_written():
    "Not only our own loop: plain PyTorch, whole batches, windows of two that are weighted by samples"
    torch.manual_seed(5)
    order, m = torch.randperm(46), Whole()
    plain_loop(m, sgd(m.parameters()), [(X[i], Y[i]) for i in order.split(18)], clip=.5)
    learn = make_learner(Whole(), TensorLoader(X, Y, bs=9, shuffle=True), optim=sgd, seed=5,
                         hooks=[GradAccum(2), GradClip(.5)])
    learn.launch(2, 1)
    for v, w in zip(weights(learn.model), weights(m)): assert close(v, w)

def test_messages_are_few(monkeypatch):
    "One for each optimizer step, however many batches it has; none besides those of torch's DDP where it averages"
    sizes, plain = [], torch.distributed.all_reduce
    def counted(x, *args, **kwargs):
        sizes.append(x.numel())
        return plain(x, *args, **kwargs)
    monkeypatch.setattr(torch.distributed, 'all_reduce', counted)
    n = sum(p.numel() for p in Whole().parameters())
    for case, hooks, expected in (('plain', [], 12), ('plain', [wrapped()], 0),
                                  ('plain', [wrapped(), GradAccum(3)], 2*2), ('tokens', [GradAccum(3)], 2*2)):
        sizes.clear()
        learn = learner(case, *hooks)
        learn.launch(2, 2)
        assert sum(o >= n for o in sizes) == expected, (case, hooks, sizes)
        assert learn.state.optimizer_step == (4 if expected == 4 else 12)

def test_each_sample_once_and_each_process_its_own_noise(tmp_path):
    class Ids(torch.utils.data.Dataset):
        def __len__(self): return 23
        def __getitem__(self, i):
            with open(tmp_path/str(os.getpid()), 'a') as f: f.write(f'{i}\n')
            return X[i], Y[i]
    class Noise(Hook):
        def after_epoch(self, learn): (tmp_path/f'noise-{os.getpid()}').write_text(str(torch.rand(1).item()))
    learn = make_learner(Whole(), DataLoader(Ids(), batch_size=5, shuffle=True), hooks=[Noise()])
    learn.launch(3, 1)
    read = [[int(o) for o in p.read_text().split()] for p in tmp_path.iterdir() if p.name.isdigit()]
    n_read = Counter(i for ids in read for i in ids)
    assert len(read) == 3 and sorted(n_read.values()) == [1]*23
    assert len({p.read_text() for p in tmp_path.glob('noise-*')}) == 3

class Quantile:
    "A metric with a state that is no mean"
    def reset(self): self.seen = []
    def update(self, pred, targ): self.seen += pred.flatten().tolist()
    def compute(self): return torch.tensor(self.seen).quantile(.3)

def test_metric_objects():
    from torchmetrics.classification import MulticlassAUROC, MulticlassF1Score
    def metrics():
        return [MulticlassF1Score(3, average='macro'), MulticlassAUROC(3, thresholds=None)]
    alone, learn = learner('plain'), learner('plain')
    for o in alone, learn: o.metrics = metrics()
    alone.fit(2)
    learn.launch(4, 2)
    check_equal(alone, learn)
    learn = learner('plain')
    learn.metrics = [Quantile()]
    with pytest.raises(ValueError, match='metric `Quantile` keeps a state.*use a function, or torchmetrics'):
        learn.launch(2, 1)

def test_values_of_batches_are_those_of_whole_batches(tmp_path):
    "Numbers that a step returns, recorded means, and a name that another rank alone has; the record of a run, too"
    def step(batch, learn):
        pred = learn.model(batch[0])
        return {'loss': F.cross_entropy(pred, batch[1]), 'size': pred.square().mean()}
    def record(learn):
        learn.record('double', 2*learn.result['size'], mean=True)
        if not learn.is_main: learn.record('there', learn.loss, mean=True)
    alone, learn = (make_learner(Whole(), TensorLoader(X, Y, bs=9), train_step=step, optim=sgd, seed=5,
                                 hooks=[LambdaHook(after_loss=record)]) for _ in range(2))
    alone.fit(2)
    learn.launch(2, 2, hooks=[RunRecord(tmp_path/'log.jsonl')])
    for rows in 'steps', 'epochs':
        ours, theirs = getattr(alone.history, rows), getattr(learn.history, rows)
        for k in ours.keys() - {'time_s'}: assert close(ours[k], theirs[k]), (rows, k, ours[k], theirs[k])
    assert {'train_size', 'double'} < alone.history.steps.keys() and {'train_size', 'train_double'} < ours.keys()
    assert all(math.isfinite(o) for o in learn.history.epochs['train_there'])
    tail = RecordTail(tmp_path/'log.jsonl')
    tail.update()
    for k in 'train_size', 'double', 'train_loss', 'lr': assert tail.history.steps[k] == learn.history.steps[k], k

# Stop, go on, checkpoints

N = 12      # epochs, of six batches and five

class Centred(nn.Module):
    "Subtracts the mean of earlier batches, of this rank since the last validation: a buffer that training reads"
    def __init__(self):
        super().__init__()
        self.register_buffer('mean', torch.zeros(8))
    def forward(self, x):
        res = x - self.mean
        if self.training: self.mean.lerp_(x.detach().mean(0), .5)
        return res

def noisy(*hooks, **kwargs):
    "Dropout, a shuffled loader, windows, a buffer: all that a resume may get wrong"
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), Centred(), nn.Dropout(.5), nn.Linear(8, 3))
    return make_learner(model, DataLoader(SAMPLES, 9, shuffle=True), TensorLoader(X, Y, bs=10), lr=.01, seed=5,
                        metrics=[accuracy], hooks=[GradAccum(3), *hooks], **kwargs)

def check_same(a, b):
    assert same(weights(a.model), weights(b.model)) and a.history.steps == b.history.steps and a.state == b.state
    assert all(v == b.history.epochs[k] for k, v in a.history.epochs.items() if k != 'time_s')
    if a.ema: assert same(weights(a.ema.model), weights(b.ema.model))

class StopAt(Hook):
    "Asks for something in one process alone, in the `n`-th batch, validation included; all others hear of it"
    def __init__(self, n, what, rank=0): self.n, self.what, self.rank = n, what, rank
    def after_step(self, learn):
        self.n -= 1
        if not self.n and learn.world.rank == self.rank:
            if self.what == 'interrupt': os.kill(os.getpid(), signal.SIGINT)
            else: learn.stop()
        if -40 < self.n < 0: time.sleep(.01)        # agreed soon, and then in the middle of something

@pytest.fixture(scope='module')
def undisturbed():
    learn = noisy()
    learn.launch(2, N)
    return learn

@pytest.mark.parametrize('n, what, rank', [(40, 'stop', 1), (75, 'interrupt', 0)])
def test_stop_and_go_on_is_bit_equal(n, what, rank, undisturbed, tmp_path):
    learn = noisy(StopAt(n, what, rank))
    if what == 'interrupt':
        with pytest.raises(TrainingInterrupted, match=r'interrupted in epoch .*; learn.launch\(2\) continues'):
            learn.launch(2, N)
    else: learn.launch(2, N)
    assert learn.cancelled == what and learn.state.epoch < N
    message = r'in 2 processes, and can only be resumed in as many, not in 1. From a notebook: learn.launch\(2\)'
    with pytest.raises(RuntimeError, match=message): learn.resume()
    learn.launch(2)
    check_same(learn, undisturbed)
    with pytest.raises(RuntimeError, match='nothing to resume'): learn.launch(2)

@pytest.fixture(scope='module')
def killed(tmp_path_factory):
    """The folder of two processes of which the main one was killed, after a checkpoint in mid-epoch;
    and the other one has ended, too"""
    folder = tmp_path_factory.mktemp('killed')
    def kill(learn):
        if learn.state.optimizer_step != 21 or learn.state.batch_idx != 5: return
        if learn.is_main: learn.get_hook('Checkpoint').finish()     # it is on the disk
        with open(folder/'pids', 'a') as f: print(os.getpid(), file=f)
        time.sleep(.2)
        if learn.is_main: os.kill(os.getpid(), signal.SIGKILL)
    def at_an_end(learn):
        if learn.state.epoch == 9: learn.get_hook('Checkpoint').save(learn)
    if not (pid := os.fork()):
        try:
            noisy(Checkpoint(folder/'run', every=7, monitor=None),
                  LambdaHook(before_step=kill, after_epoch=at_an_end)).launch(2, N)
        finally: os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
    pids = [int(o) for o in (folder/'pids').read_text().split()]
    assert len(pids) == 2
    until(lambda: not any(map(alive, pids)))
    return folder/'run'

@pytest.mark.parametrize('n', [2, 4, 1])
def test_kill_and_resume(n, killed, tmp_path, undisturbed):
    "As many processes go on bit-equal, another number from the last epoch's end, and says so"
    shutil.copytree(killed, tmp_path/'run')
    learn = noisy(Checkpoint(tmp_path/'run'))
    newest = learn.get_hook('Checkpoint').folder.manifests()[-1]
    assert (newest['step'], newest['processes'], newest['in_epoch']) == (21, 2, True)
    if n == 2:
        learn.launch(2, N, resume=True)
        return check_same(learn, undisturbed)
    said = 'saved by 2 processes in the middle of an epoch, and this is a world of {}: resum'.format
    with pytest.warns(UserWarning, match=said(n) + 'ing from the end of an epoch'): learn.launch(n, N, resume=True)
    assert learn.state.epoch == N and len(learn.history.steps['train_loss']) == N*6
    with pytest.raises(ValueError, match=said(1) + 'e with as many'): noisy().load(killed/newest['file'])


# Sharded

@pytest.mark.parametrize('n', [2, pytest.param(4, marks=pytest.mark.soak)])
def test_sharded(n, tmp_path):
    "FSDP, or two copies of it, under torchrun: the numbers of one process, files of whole tensors, stop and resume"
    if not hasattr(torch.cpu.Stream, 'record_event'): pytest.skip(f'torch {torch.__version__} shards on a GPU only')
    here = Path(__file__).parent
    env = {**os.environ, 'PYTHONPATH': os.pathsep.join(map(str, (here.parents[1], here.parent, here))),
           'OMP_NUM_THREADS': '1', 'GLOO_SOCKET_IFNAME': 'lo'}
    res = subprocess.run([sys.executable, '-m', 'torch.distributed.run', '--standalone', f'--nproc-per-node={n}',
                          here/'sharded_script.py', tmp_path/'done', str(n//2)],
                         env=env, cwd=tmp_path, text=True, capture_output=True, timeout=300)
    assert res.returncode == 0 and (tmp_path/'done').exists(), res.stderr

def test_what_shards_refuse():
    plugin = FullyShardedDataParallelPlugin(fsdp_version=2)
    two = SimpleNamespace(num_processes=2, device=torch.device('cpu'), state=None)
    for config, shards in (ParallelismConfig(tp_size=2), plugin), (ParallelismConfig(dp_replicate_size=2), None):
        with pytest.raises(ValueError, match='expected a product of 2, the number of processes, and an fsdp_plugin'):
            _make_world(two, shards, config)
    with pytest.raises(ValueError, match='stays sharded until its process ends.*use learn.start.*or torchrun'):
        learner('plain', Accelerate(cpu=True, fsdp_plugin=plugin)).launch(2, 1)

# Faults

class In(Hook):
    "Does something in one process, in the second epoch"
    def __init__(self, rank, f): self.rank, self.f = rank, f
    def after_backward(self, learn):
        if learn.state.optimizer_step == 8 and learn.world.rank == self.rank: self.f(learn)

def fail(learn): raise ZeroDivisionError('on purpose')

def test_an_error_elsewhere():
    with pytest.raises(ProcessFailed, match=r'process 2 of 4 failed with ZeroDivisionError: on purpose\n\n'
                                            r'In process 2: Traceback[^$]*raised in hook In'):
        learner('tokens', In(2, fail)).launch(4, 3)

def test_an_error_here():
    learn = learner('plain', In(0, fail))
    with pytest.raises(ZeroDivisionError, match='on purpose') as e: learn.launch(4, 3)
    assert any('hook In, `after_backward`' in o for o in e.value.__notes__) and learn.cancelled == 'error'
    assert learn.is_main and learn.world.size == 1
    learn.remove_hook(In)
    learn.launch(2, 1)      # and it can be used again

def test_nothing_remains_of_a_failure():
    "While the error is looked at: no socket that listens, no thread of a group that is gone"
    def sockets(): return {(o.type, o.laddr, o.raddr) for o in psutil.Process().net_connections()}
    n, before = psutil.Process().num_threads(), sockets()       # other tests of this process may have left some
    with pytest.raises(ProcessFailed) as e: learner('plain', In(1, fail)).launch(2, 3)
    assert e.value.__context__ is not None      # its frames are there, too
    assert not sockets() - before and psutil.Process().num_threads() <= n

@pytest.mark.parametrize('rank', [0, 1])
def test_nothing_remains_of_three_failures(rank):
    "Without the garbage collector: no open file or socket, no process, no thread"
    def seen():
        me = psutil.Process()
        return me.num_fds(), len(me.net_connections()), len(me.children(recursive=True)), me.num_threads()
    def launch():
        with pytest.raises(ProcessFailed if rank else ZeroDivisionError): learner('plain', In(rank, fail)).launch(2, 3)
    launch()        # what is loaded late is loaded
    gc.collect()
    gc.disable()
    try:
        before = seen()
        for _ in range(3): launch()
        assert all(now <= then for now, then in zip(seen(), before))
    finally: gc.enable()

@pytest.mark.parametrize('code', [0, 3])
def test_a_process_that_ends_without_an_error(code):
    with pytest.raises(ProcessFailed, match=f'process 1 of 2 ended with code {code}'):
        learner('plain', In(1, lambda learn: os._exit(code))).launch(2, 3)

@pytest.mark.parametrize('how', ['SIGTERM', 'before they have met'])
def test_the_main_process_is_ended(how, tmp_path, monkeypatch):
    "The others end at once, wherever they are, and no folder is left"
    monkeypatch.setattr('tempfile.tempdir', str(tmp_path))
    def end(rank):
        with open(tmp_path/'pids', 'a') as f: print(os.getpid(), file=f)
        while len((tmp_path/'pids').read_text().split()) < 3: time.sleep(.01)
        if not rank: os.kill(os.getpid(), getattr(signal, how, signal.SIGKILL))
        time.sleep(60)
    if not (pid := os.fork()):
        gc.freeze()     # groups of earlier tests are the parent's to clean up
        try:
            if how in ('SIGTERM', 'SIGHUP'): signal.signal(getattr(signal, how), signal.SIG_DFL)   # nohup ignores it
            if how.startswith('SIG'):
                learner('plain', LambdaHook(before_step=lambda learn: end(learn.world.rank))).launch(3, 3)
            torch.distributed.init_process_group = lambda *args, rank, **kwargs: end(rank)
            learner('plain').launch(3, 3)
        finally: os._exit(1)
    os.waitpid(pid, 0)
    pids = [int(o) for o in (tmp_path/'pids').read_text().split()]
    def left():     # besides torch's own cache
        return [o for o in os.listdir(tmp_path) if o != 'pids' and not o.startswith('torchinductor')]
    until(lambda: not any(map(alive, pids)) and not left())

def test_the_second_interrupt_ends_at_once():
    def hang(learn):
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
    with pytest.raises(KeyboardInterrupt) as e: learner('plain', In(0, hang)).launch(2, 3)
    assert not isinstance(e.value, TrainingInterrupted)

def other_data(make):
    class Odd(Accelerate):
        "Gives process 1 other data"
        def around_fit(self, learn):
            if os.environ.get('RANK') == '1': learn.train_dl = make()
            return super().around_fit(learn)
    return Odd()

def test_other_data_in_a_process():
    message = 'train_dl is TensorLoader of 6 batches in process 0, but TensorLoader of 2 batches in process 1: all'
    with pytest.raises(RuntimeError, match=message):
        learner('plain', other_data(lambda: TensorLoader(X[:18], Y[:18], bs=9))).launch(2, 1)

def test_what_is_refused_before_anything_happens(monkeypatch):
    learn = learner('plain')
    for error, message, args, kwargs in (
            (ValueError, 'n_procs is 0: expected 1 or more', (0, 1), {}), (RuntimeError, 'nothing to resume', (2,), {}),
            (ValueError, 'either n_epochs or max_steps', (2, 1), {'max_steps': 1})):
        with pytest.raises(error, match=message): learn.launch(*args, **kwargs)
    monkeypatch.setattr(torch.accelerator, 'is_available', lambda: True)
    monkeypatch.setattr(torch.accelerator, 'current_accelerator', lambda: torch.device('cuda'))
    monkeypatch.setattr(torch.accelerator, 'device_count', lambda: 1)
    with pytest.raises(ValueError, match='n_procs is 2, but there is 1 device'): learn.launch(2, 1)
    monkeypatch.setattr(torch.cuda, 'is_initialized', lambda: True)
    with pytest.raises(RuntimeError, match='cuda is in use in this process already.*Restart.*accelerate launch'):
        learn.launch(2, 1)
    monkeypatch.undo()
    monkeypatch.delattr(os, 'fork')
    with pytest.raises(RuntimeError, match='an operating system that can fork: use learn.start'):
        learn.launch(2, 1)
    assert not learn.history.n_steps and learn.state.epoch == 0

# From a shell

NOTEBOOK = ('from accelerate import debug_launcher; from distributed_script import *; '
            'debug_launcher(train, (sys.argv[2], Accelerate(cpu=True)))')
ACCELERATE = ['-m', 'accelerate.commands.launch', '--num_processes=2', '--num_machines=1', '--mixed_precision=no',
              '--dynamo_backend=no', '--main_process_port=0']
LAUNCHERS = {'torchrun': ['-m', 'torch.distributed.run', '--standalone', '--nproc-per-node=2'],
             'accelerate launch': [*ACCELERATE, '--multi_gpu'],
             'accelerate launch, in parts': [*ACCELERATE, '--use_fsdp', '--fsdp_version=2'],
             # on a machine without accelerators it is called debug_launcher
             'notebook_launcher': ['-c', NOTEBOOK]}

@pytest.mark.soak
@pytest.mark.parametrize('launcher', LAUNCHERS)
def test_from_a_shell(launcher, tmp_path):
    "The same script under each launcher: one screen, one log, and the numbers of one process"
    from distributed_script import train
    train(str(tmp_path/'alone'))
    alone, here = json.loads((tmp_path/'alone').read_text()), str(Path(__file__).parents[1])
    env = {**os.environ, 'PYTHONPATH': os.pathsep.join([os.path.dirname(here), here]), 'OMP_NUM_THREADS': '1',
           'GLOO_SOCKET_IFNAME': 'lo'}
    res = subprocess.run([sys.executable, *LAUNCHERS[launcher], os.path.join(here, 'distributed_script.py'),
                          str(tmp_path/'out')], env=env, text=True, capture_output=True, timeout=100)
    assert res.returncode == 0 and 'Traceback' not in res.stderr, res.stderr
    (found,) = map(json.loads, (tmp_path/'out').read_text().splitlines())
    assert found['n'] == 2 and found['in_parts'] is ('in parts' in launcher)
    assert all(map(close, found['weights'], alone['weights'])) and res.stdout.count('train_loss') == 1
    assert close(found['losses'], alone['losses']) and close(found['accuracy'], alone['accuracy'])
    assert len((tmp_path/'out.csv').read_text().splitlines()) == len((tmp_path/'alone.csv').read_text().splitlines())

@pytest.mark.soak
def test_processes_always_meet(n=1000):
    """A process that is forked while a thread of this one holds a lock would wait for it for ever,
    as it did once in fifty times when a TCPStore served the others"""
    for _ in range(n):
        forked(torch.distributed.barrier, 4, 10)

