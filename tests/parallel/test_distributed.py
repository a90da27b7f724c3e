"Several processes train as one: the same numbers, whatever else happens; the references are fits of one process"
import gc, json, math, os, random, shutil, signal, subprocess, sys, time
from pathlib import Path

import psutil, pytest, torch, torch.nn.functional as F
from accelerate import DistributedDataParallelKwargs, FullyShardedDataParallelPlugin
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from common import alive, make_learner, plain_loop, problem, same, sgd, until, weights
from programs.sam import sam
from trainer_nb.all import (
    Accelerate, Checkpoint, EarlyStopping, EMA, GradAccum, GradClip, GradNorm, Hook, LambdaHook, NaNGuard,
    OneCycle, ProcessFailed, TensorLoader, TrainingInterrupted, accuracy
)

@pytest.fixture(autouse=True)
def nothing_is_left():
    "No process, no process group and no environment variable, however a test ended"
    before = {o.pid for o in psutil.Process().children(recursive=True)}
    yield
    assert not [o for o in psutil.Process().children(recursive=True) if o.pid not in before]
    assert not torch.distributed.is_initialized() and not {'RANK', 'WORLD_SIZE', 'MASTER_PORT'} & os.environ.keys()

X, Y = problem(46)          # batches of 9 leave one sample over: with 4 processes, three have none

class Net(nn.Module):
    "`d` and `g` for two optimizers"
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.d = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
        self.g = nn.Linear(4, 4)
    def forward(self, x): return self.d(self.g(x))

class Idle(Net):
    """A part that nobody uses, and one that every second batch uses: the last one of a window has no gradient for it,
    and each process has gradients of other rows of it"""
    def __init__(self):
        super().__init__()
        self.idle, self.more, self.n = nn.Linear(2, 2), nn.Embedding(50, 4, sparse=True), 0
    def forward(self, x):
        self.n += self.training
        return super().forward(self.more(x[:, 0].abs().mul(10).long().clamp(max=49)) if self.n % 2 else x)

class Precise(Net):
    "In double precision, as rounding may end a line search"
    def __init__(self):
        super().__init__()
        self.double()
    def forward(self, x): return super().forward(x.double())

def wolfe(params): return torch.optim.LBFGS(params, lr=.1, max_iter=4, line_search_fn='strong_wolfe')
def two_optims(m): return {'d': sgd(m.d.parameters()), 'g': torch.optim.SGD(m.g.parameters(), lr=.05)}

def token_step(batch, learn):
    x, y = batch
    pred, here = learn.model(x), x[:, 0] > -1
    n = here.sum().double()
    loss = (F.cross_entropy(pred, y, reduction='none')*here).sum()/n.clamp(min=1)
    return {'loss': loss, 'n': n*.01, 'pred': pred[here], 'targ': y[here]}

def in_place_step(batch, learn): return {'loss': F.cross_entropy(learn.model(batch[0].mul_(.5)), batch[1])}

def two_steps(batch, learn):
    x, m = batch[0], learn.model
    yield 'd', m.d(x).square().mean() + m.d(m.g(x)).mean()
    yield 'g', (m.d(m.g(x)) - 1).square().mean()

def several(pred, targ):
    return {'mean': pred.mean(), 'of': torch.stack([(pred.argmax(1) == c).float().mean() for c in range(3)])}

class Drawn:
    "Batches that are drawn one by one, by Python, without a length"
    def __iter__(self): return ((X[i], Y[i]) for i in (random.choices(range(46), k=9) for _ in range(5)))

SAMPLES = TensorDataset(X, Y)
DATA = {'stock': lambda: DataLoader(SAMPLES, batch_size=9, shuffle=True), 'drawn': Drawn,
        'workers': lambda: DataLoader(SAMPLES, 9, True, num_workers=1, persistent_workers=True),
        'drop_last': lambda: DataLoader(SAMPLES, batch_size=9, drop_last=True)}

def wrapped(): return Accelerate(kwargs_handlers=[DistributedDataParallelKwargs()])     # as on GPUs

def now_and_then(learn):
    for p in learn.own_model.g.parameters(): p.requires_grad_(learn.state.batch_idx % 3 < 2)

CASES = {   # what is given to the learner, and to fit
    'plain': dict(metrics=[accuracy, several]),
    'wrapped, frozen now and then': dict(hooks=lambda: [wrapped(), LambdaHook(before_step=now_and_then)]),
    'adam': dict(optim=lambda p: torch.optim.Adam(p, lr=.01, eps=1e-3), hooks=lambda: [GradNorm(), NaNGuard(every=2)]),
    'accumulation and clip': dict(hooks=lambda: [GradAccum(3), GradClip(.5)]),
    'idle': dict(model=Idle, hooks=lambda: [GradAccum(2)]),
    'everything': dict(hooks=lambda: [GradAccum(2), GradClip(.5), OneCycle(.2), EMA(.9),
                                      EarlyStopping(1, min_delta=.12)], fit=dict(n_epochs=8)),
    'tokens and windows': dict(train_step=token_step, hooks=lambda: [GradAccum(4), GradClip(.5)]),
    'classes': dict(loss_fn=nn.CrossEntropyLoss(torch.tensor([1., 5., 25.]), ignore_index=1)),
    'in place': dict(train_step=in_place_step, data='drawn', metrics=[]),
    'two optimizers': dict(train_step=two_steps, optim=two_optims, metrics=[],
                           hooks=lambda: [GradAccum(2), GradClip(.5)]),
    'by steps': dict(hooks=lambda: [GradAccum(2)], fit=dict(max_steps=7, valid_every=2)),
    'sam': dict(model=Precise, optim=sam),
    'wolfe, wrapped': dict(model=Precise, optim=wolfe, train_step=token_step,
                           hooks=lambda: [wrapped(), GradNorm(), GradClip(.2)]),
    **{name: dict(data=name) for name in DATA if name != 'drawn'}}
SELDOM = 'plain', 'adam', 'by steps', 'stock', 'workers', 'drop_last'

def learner(case, *more):
    "A learner of one of the cases, or of what is given instead"
    c = dict(CASES[case] if isinstance(case, str) else case)
    c.pop('fit', None)
    m, hooks, optim, data = c.pop('model', Net)(), c.pop('hooks', list)(), c.pop('optim', sgd), c.pop('data', None)
    return make_learner(m, DATA[data]() if data else TensorLoader(X, Y, bs=9, shuffle=True),
                        TensorLoader(X[:31], Y[:31], bs=10), optim=two_optims(m) if optim is two_optims else optim,
                        seed=5, hooks=[*hooks, *more], **{'metrics': [accuracy], **c})

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

@pytest.mark.parametrize('case', [pytest.param(o, marks=[pytest.mark.soak]*(o in SELDOM)) for o in CASES])
def test_equals_one_process(case):
    args = CASES[case].get('fit', dict(n_epochs=3))
    alone = learner(case)
    alone.fit(**args)
    for n in (2, 4) if case in SELDOM or case == 'everything' else (2,):
        learn = learner(case)
        learn.launch(n, **args)
        check_equal(alone, learn, 1e-6)
        if stop := learn.get_hook('EarlyStopping', None):
            assert stop.best_epoch == alone.get_hook('EarlyStopping').best_epoch and stop.is_over
            assert len(learn.history) < 8

def test_equals_the_loop_that_everybody_has_written():
    "Not only our own loop: plain PyTorch, whole batches, windows of two that are weighted by samples"
    torch.manual_seed(5)
    order, m = torch.randperm(46), Net()
    plain_loop(m, sgd(m.parameters()), [(X[i], Y[i]) for i in order.split(18)], clip=.5)
    learn = learner(dict(hooks=lambda: [GradAccum(2), GradClip(.5)]))
    learn.launch(2, 1)
    for v, w in zip(weights(learn.model), weights(m)): assert close(v, w)

def test_messages_are_few(monkeypatch):
    "One for each optimizer step, however many batches it has"
    sizes, plain, n = [], torch.distributed.all_reduce, sum(p.numel() for p in Net().parameters())
    def counted(x, **kwargs):
        sizes.append(x.numel())
        plain(x, **kwargs)
    monkeypatch.setattr(torch.distributed, 'all_reduce', counted)
    learner('plain', GradAccum(3)).launch(2, 2)
    assert sum(o >= n for o in sizes) == 2*2

def test_metric_objects():
    from torchmetrics.classification import MulticlassAUROC, MulticlassF1Score
    def with_metrics():
        return learner(dict(metrics=[MulticlassF1Score(3, average='macro'), MulticlassAUROC(3, thresholds=None)]))
    alone, learn = with_metrics(), with_metrics()
    alone.fit(1)
    learn.launch(2, 1)
    check_equal(alone, learn)

def test_values_of_batches_are_those_of_whole_batches():
    "Numbers that a step returns, recorded means, and a name that another rank alone has"
    def step(batch, learn):
        pred = learn.model(batch[0])
        return {'loss': F.cross_entropy(pred, batch[1]), 'size': pred.square().mean()}
    def record(learn):
        learn.record('double', 2*learn.result['size'], mean=True)
        if not learn.is_main: learn.record('there', learn.loss, mean=True)
    alone, learn = (learner(dict(train_step=step, metrics=[]), LambdaHook(after_loss=record)) for _ in range(2))
    alone.fit(2)
    learn.launch(2, 2)
    for rows, name in ('steps', 'double'), ('epochs', 'train_double'):
        ours, theirs = getattr(alone.history, rows), getattr(learn.history, rows)
        assert {'train_size', name} < ours.keys()
        for k in ours.keys() - {'time_s'}: assert close(ours[k], theirs[k]), (k, ours[k], theirs[k])
    assert all(math.isfinite(o) for o in learn.history.epochs['train_there'])

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

class In(Hook):
    "Does something in one process alone, in the `n`-th batch, validation included"
    def __init__(self, rank, f, n=14): self.rank, self.f, self.n = rank, f, n
    def after_step(self, learn):
        self.n -= 1
        if not self.n and learn.world.rank == self.rank: self.f(learn)
        if -40 < self.n < 0: time.sleep(.01)        # others hear of it in the middle of something

def interrupt(learn): os.kill(os.getpid(), signal.SIGINT)

@pytest.fixture(scope='module')
def undisturbed():
    learn = noisy()
    learn.launch(2, N)
    return learn

def test_stop_and_go_on_is_bit_equal(undisturbed):
    "Interrupted here, then stopped in the other process"
    learn = noisy(In(0, interrupt, 40), In(1, lambda learn: learn.stop(), 75))
    with pytest.raises(TrainingInterrupted, match=r'learn.launch\(2\) continues'): learn.launch(2, N)
    assert learn.cancelled == 'interrupt' and learn.state.epoch < N
    learn.launch(2)
    assert learn.cancelled == 'stop' and learn.state.epoch < N
    with pytest.raises(RuntimeError, match=r'in 2 processes, .*learn.launch\(2\)'): learn.resume()
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

@pytest.mark.parametrize('n', [2, 3])
def test_kill_and_resume(n, killed, tmp_path, undisturbed):
    "As many processes go on bit-equal, another number from the last epoch's end, and says so"
    shutil.copytree(killed, tmp_path/'run')
    learn = noisy(Checkpoint(tmp_path/'run'))
    newest = learn.get_hook('Checkpoint').folder.manifests()[-1]
    assert (newest['step'], newest['processes'], newest['in_epoch']) == (21, 2, True)
    if n == 2:
        learn.launch(2, N, resume=True)
        return check_same(learn, undisturbed)
    said = 'by 2 processes.* world of {}'.format
    with pytest.warns(UserWarning, match=said(n)): learn.launch(n, N, resume=True)
    assert learn.state.epoch == N and len(learn.history.steps['train_loss']) == N*6
    with pytest.raises(ValueError, match=said(1)): noisy().load(killed/newest['file'])

# Faults

def fail(learn): raise ZeroDivisionError('on purpose')

@pytest.mark.parametrize('what, words', [
    (fail, r'ZeroDivisionError: on purpose[\s\S]*raised in hook In'), (lambda learn: os._exit(0), 'code 0')])
def test_an_end_elsewhere(what, words):
    with pytest.raises(ProcessFailed, match=f'process 2 of 3 .*{words}'):
        learner('tokens and windows', In(2, what)).launch(3, 8)

def test_an_error_here():
    learn = learner('plain', In(0, fail))
    with pytest.raises(ZeroDivisionError) as e: learn.launch(2, 3)
    assert any('hook In' in o for o in e.value.__notes__) and learn.cancelled == 'error' and learn.is_main
    learn.remove_hook(In)
    learn.launch(2, 1)      # it can be used again

@pytest.mark.parametrize('rank', [0, 1])
def test_nothing_remains_of_failures(rank):
    "Without the garbage collector: no socket or thread, even while the errors are looked at, and no open file"
    def seen():
        me = psutil.Process()
        return len(me.net_connections()), me.num_threads(), me.num_fds()
    def launch():
        with pytest.raises(ProcessFailed if rank else ZeroDivisionError) as e:
            learner('plain', In(rank, fail)).launch(2, 3)
        return e
    launch()        # what is loaded late is loaded
    gc.collect()
    gc.disable()
    try:
        before, errors = seen(), [launch() for _ in range(3)]
        assert all(now <= then for now, then in zip(seen()[:2], before))
        errors.clear()
        assert all(now <= then for now, then in zip(seen(), before))
    finally: gc.enable()

def test_the_second_interrupt_ends_at_once():
    with pytest.raises(KeyboardInterrupt) as e:
        learner('plain', In(0, lambda learn: [interrupt(learn) for _ in range(2)])).launch(2, 3)
    assert not isinstance(e.value, TrainingInterrupted)

def test_what_is_refused_before_anything_happens(monkeypatch):
    learn, sharded = learner('plain'), FullyShardedDataParallelPlugin(fsdp_version=2)
    def check(error, message, *args, learn=learn, **kwargs):
        with pytest.raises(error, match=message): learn.launch(*args, **kwargs)
        assert not learn.history.n_steps and learn.state.epoch == 0
    check(ValueError, 'n_procs is 0', 0, 1)
    check(ValueError, 'stays sharded.*learn.start.*torchrun', 2, 1,
          learn=learner('plain', Accelerate(cpu=True, fsdp_plugin=sharded)))
    monkeypatch.setattr(torch.accelerator, 'is_available', lambda: True)
    monkeypatch.setattr(torch.accelerator, 'current_accelerator', lambda: torch.device('cuda'))
    monkeypatch.setattr(torch.accelerator, 'device_count', lambda: 1)
    check(ValueError, 'n_procs is 2.*1 device', 2, 1)
    monkeypatch.setattr(torch.cuda, 'is_initialized', lambda: True)
    check(RuntimeError, 'cuda is in use.*Restart.*accelerate launch', 2, 1)
    monkeypatch.undo()
    monkeypatch.delattr(os, 'fork')
    check(RuntimeError, 'can fork: use learn.start', 2, 1)

# From a shell

NOTEBOOK = ('from accelerate import debug_launcher; from distributed_script import *; '     # without accelerators
            'debug_launcher(train, (sys.argv[2], Accelerate(cpu=True)))')
ACCELERATE = ['-m', 'accelerate.commands.launch', '--num_processes=2', '--num_machines=1', '--mixed_precision=no',
              '--dynamo_backend=no', '--main_process_port=0']
LAUNCHERS = {'torchrun': ['-m', 'torch.distributed.run', '--standalone', '--nproc-per-node=2'],
             'accelerate launch': [*ACCELERATE, '--multi_gpu'],
             'accelerate launch, in parts': [*ACCELERATE, '--use_fsdp', '--fsdp_version=2'],
             'notebook_launcher': ['-c', NOTEBOOK]}

def from_a_shell(path, *args):
    "Run Python where the tests can be imported"
    here = Path(__file__).parent
    env = {**os.environ, 'PYTHONPATH': os.pathsep.join(map(str, (here.parents[1], here.parent, here))),
           'OMP_NUM_THREADS': '1', 'GLOO_SOCKET_IFNAME': 'lo'}
    res = subprocess.run([sys.executable, *args], env=env, cwd=path, text=True, capture_output=True, timeout=300)
    assert res.returncode == 0 and 'Traceback' not in res.stderr, res.stderr
    return res.stdout

@pytest.mark.soak
@pytest.mark.parametrize('launcher', LAUNCHERS)
def test_launchers(launcher, tmp_path):
    "The same script under each: one screen, one log, and the numbers of one process"
    import distributed_script
    distributed_script.train(str(tmp_path/'alone'))
    shown = from_a_shell(tmp_path, *LAUNCHERS[launcher], distributed_script.__file__, tmp_path/'out')
    [alone], [found] = ([json.loads(o) for o in (tmp_path/k).read_text().splitlines()] for k in ('alone', 'out'))
    assert found['n'] == 2 and found['in_parts'] is ('in parts' in launcher) and shown.count('train_loss') == 1
    assert all(map(close, found['weights'], alone['weights']))
    assert close(found['losses'], alone['losses']) and close(found['accuracy'], alone['accuracy'])
    assert len({len((tmp_path/f'{k}.csv').read_text().splitlines()) for k in ('alone', 'out')}) == 1

@pytest.mark.parametrize('n', [2, pytest.param(4, marks=pytest.mark.soak)])
def test_sharded(n, tmp_path):
    "FSDP, or two copies of it, under torchrun: the numbers of one process, files of whole tensors, stop and resume"
    if not hasattr(torch.cpu.Stream, 'record_event'): pytest.skip(f'torch {torch.__version__} shards on a GPU only')
    from_a_shell(tmp_path, '-m', 'torch.distributed.run', '--standalone', f'--nproc-per-node={n}',
                 Path(__file__).with_name('sharded_script.py'), tmp_path/'done', str(n//2))
    assert (tmp_path/'done').exists()
