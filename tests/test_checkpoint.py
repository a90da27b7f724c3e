"A run survives whatever happens to its process, its files and its disk"
import json, os, random, subprocess, sys, threading, warnings
from contextlib import contextmanager
from pathlib import Path

import pytest, torch, torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from common import batches, digest, make_learner, problem, record, same, shuffled, weights
from trainer_nb.checkpoint import Checkpoint
from trainer_nb.data import Cursor, TensorLoader
from trainer_nb.files import Folder
from trainer_nb.hooks import Hook, LambdaHook
from trainer_nb.metrics import accuracy
from trainer_nb.run import TrainingInterrupted
from trainer_nb.seeded import SeededLoader


@contextmanager
def forks():
    "A function that runs a training in a new process, and returns how it ended: 0 done, 3 interrupted, 4 failed on purpose, -9 killed"
    child = subprocess.Popen([sys.executable, Path(__file__).with_name('checkpoint_child.py')], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)
    def run(**c):
        watchdog = threading.Timer(60, child.kill)
        watchdog.start()
        try:
            child.stdin.write(json.dumps(c) + '\n')
            return int(child.stdout.readline())
        finally: watchdog.cancel()
    try: yield run
    finally:
        child.stdin.close()
        child.wait(10)
        child.stdout.close()

@pytest.fixture(scope='module')
def fork():
    with forks() as run: yield run

def lines(log): return dict(o.split(': ', 1) for o in Path(log).read_text().splitlines())

def result(log): return Path(f'{log}.digest').read_text()

ENDS = {'kill': -9, 'interrupt': 3, 'error': 4}
EVENTS = 'before_step', 'after_pred', 'after_loss', 'after_backward', 'after_step', 'before_epoch', 'before_valid', 'after_epoch'
SETUPS = {
    'plain': dict(), 'augmented': dict(aug=True), 'accumulated': dict(aug=True, accum=True), 'amp': dict(amp=True, accum=True),
    'workers': dict(workers=2, aug=True), 'persistent': dict(workers=2, persistent=True, accum=True),
    'seeded': dict(workers=2, seeded=True, aug=True, amp=True), 'skipped': dict(workers=2, skip=True)}

def campaign(fork, tmp_path, setup, n_stops, rand):
    "Stop a training at random moments, going on in a new process each time; then another one, until there were `n_stops`"
    setup = dict(SETUPS[setup], valid_every=rand.choice([None, 2, 3]))
    assert fork(folder=str(tmp_path/'whole'), log=str(tmp_path/'whole.log'), every='epoch', **setup) == 0
    expected, digest, done = lines(tmp_path/'whole.log'), result(tmp_path/'whole.log'), 0
    for i in range(10*n_stops):
        folder, log, seen = str(tmp_path/f'{i}'), str(tmp_path/f'{i}.log'), []
        every = rand.choice(['epoch', 1, 2, '0.0001s', '0.0001s'])
        for attempt in range(20):
            kind = rand.choice([*ENDS])
            stop = dict(event=rand.choice(EVENTS), n=rand.randint(1, 12), kind=kind) if done < n_stops else None
            code = fork(folder=folder, log=log, every=every, stop=stop, seed=attempt, **setup)
            seen.append((stop, code))
            if code == 0: break
            assert code == ENDS[kind], (setup, every, seen)
            done += 1
        assert result(log) == digest, (setup, every, seen)
        wrong = {k: (v, expected.get(k)) for k, v in lines(log).items() if v != expected.get(k)}
        assert not wrong and lines(log).keys() == expected.keys(), (setup, every, seen, wrong)
        if done >= n_stops: return
    raise AssertionError(f'{done} stops')

@pytest.mark.parametrize('setup', SETUPS)
@pytest.mark.parametrize('n_stops', [8, pytest.param(60, marks=pytest.mark.soak)])
def test_stopped_anywhere_and_resumed_in_a_new_process(fork, tmp_path, setup, n_stops):
    campaign(fork, tmp_path, setup, n_stops, random.Random(f'{setup} {n_stops}'))

@pytest.mark.parametrize('n_kills', [10, pytest.param(200, marks=pytest.mark.soak)])
def test_killed_while_saving(fork, tmp_path, n_kills):
    "After `kill -9` at any moment there is a newest file that is whole, newer than every one before, and nothing half-written is left once a training has begun"
    rand, folder = random.Random(n_kills), Folder(tmp_path/'a')
    other = tmp_path/'a/checkpoint-00001-step-1.txt'
    other.parent.mkdir()
    other.touch()
    n = 0
    for i in range(n_kills):
        assert fork(folder=str(folder.path), log=str(tmp_path/'log'), every='0.0001s', kill_after=.02 + .3*rand.random(), seed=i) == -9
        if (newest := folder.newest()) is None:
            assert n == 0
            continue
        assert newest[1]['n'] >= n, 'the newest was lost'
        n = newest[1]['n']
        assert newest[1] == folder.manifests()[-1], 'the newest is damaged'
    assert n and other.exists()
    folder.tidy()
    assert not [o for o in folder.path.iterdir() if o.suffix == '.tmp'] and len(folder.manifests()) <= 4


# In one process: another learner, after other random numbers

def stop_at(step): return LambdaHook(after_step=lambda learn: learn.stop() if learn.state.optimizer_step == step and learn.training else None, name='Stop')

class Reads:
    "A dataset that notes what is read, in shared memory, so that workers are seen, too"
    def __init__(self, n): self.n, self.counts = n, torch.zeros(n, dtype=torch.int64).share_memory_()
    def __len__(self): return self.n
    def __getitem__(self, i):
        self.counts[i] += 1
        return i

@pytest.mark.parametrize('cls, n_workers, skip', [(DataLoader, 0, False), (SeededLoader, 0, False), (SeededLoader, 2, False), (DataLoader, 2, True)])
def test_skipping_10_000_batches_reads_no_sample(cls, n_workers, skip):
    n, data = 20_010, Reads(20_010)
    make = lambda data, n_workers: cls(data, batch_size=2, shuffle=True, num_workers=n_workers)
    torch.manual_seed(0)
    expected = [b.tolist() for b in make(range(n), 0)][10_000:]     # read from its beginning
    torch.manual_seed(0)
    cursor, other = Cursor(make(data, n_workers)), Cursor(make(data, n_workers))
    iter(cursor)
    cursor.n = 10_000
    state = cursor.state_dict()
    cursor.close()
    torch.rand(10)
    data.counts.zero_()
    other.load_state_dict(state)
    other.skip = skip
    assert [b.tolist() for b in other] == expected and data.counts.sum() == 10

def resumed(tmp_path, make, step=3, **kwargs):
    "A training that nobody stops, and one of the same kind that is stopped and goes on in another learner: digests, and what it warned of"
    whole = make(0)
    whole.fit(2)
    stopped = make(0)
    stopped.fit(2, hooks=[stop_at(step), Checkpoint(tmp_path)])
    torch.rand(5)
    other = make(1)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter('always')
        other.fit(2, hooks=[Checkpoint(tmp_path, **kwargs)], resume=True)
    return digest(whole), digest(other), [str(o.message) for o in seen]

def seeded(seed, train_dl, valid_dl=None, **kwargs):
    torch.manual_seed(seed)
    return make_learner(train_dl=train_dl(), valid_dl=valid_dl and valid_dl(), seed=7, metrics=[accuracy], **kwargs)

class Stream(IterableDataset):
    def __iter__(self): return iter(zip(*problem()))

LOADERS = {
    'tensors': lambda: TensorLoader(*problem(), bs=5, shuffle=True), 'list': batches, 'generator of its own': lambda: shuffled(generator=torch.Generator().manual_seed(1)),
    'no batches': lambda: DataLoader(TensorDataset(*(o.unsqueeze(1) for o in problem())), batch_size=None, shuffle=True),
    'replacement': lambda: DataLoader(TensorDataset(*problem()), batch_size=5, sampler=torch.utils.data.RandomSampler(range(24), replacement=True)),
    'weighted': lambda: DataLoader(TensorDataset(*problem()), batch_size=5, sampler=torch.utils.data.WeightedRandomSampler(torch.arange(1., 25), 24))}

@pytest.mark.parametrize('kind', LOADERS)
@pytest.mark.parametrize('step', [1, 3, 4, 5, 7])
def test_loaders_that_are_exact(tmp_path, kind, step):
    whole, other, seen = resumed(tmp_path, lambda seed: seeded(seed, LOADERS[kind], LOADERS[kind]), step)
    assert whole == other and not seen

@pytest.mark.parametrize('n_workers', [0, 2])
def test_iterables_are_read_again_and_say_so(tmp_path, n_workers):
    make_dl = lambda: DataLoader(Stream(), batch_size=5, num_workers=n_workers)
    whole, other, seen = resumed(tmp_path, lambda seed: seeded(seed, make_dl))
    assert whole == other and len(seen) == 1 and 'first 3 batches are read again' in seen[0]

def test_a_lazy_sampler_is_named(tmp_path):
    class Lazy:
        def __iter__(self): return (int(torch.randint(24, ())) for _ in range(24))
        def __len__(self): return 24
    _, _, seen = resumed(tmp_path, lambda seed: seeded(seed, lambda: DataLoader(TensorDataset(*problem()), batch_size=2, sampler=Lazy())))
    assert len(seen) == 1 and 'generator of its own' in seen[0]

@pytest.mark.parametrize('n_workers', [0, 2])
def test_stateful_loaders_are_asked(tmp_path, n_workers):
    torchdata = pytest.importorskip('torchdata.stateful_dataloader')
    make_dl = lambda: torchdata.StatefulDataLoader(TensorDataset(*problem()), batch_size=5, shuffle=True, num_workers=n_workers)
    whole, other, seen = resumed(tmp_path, lambda seed: seeded(seed, make_dl))
    assert whole == other and not seen

def test_torchmetrics(tmp_path):
    tm = pytest.importorskip('torchmetrics')
    def make(seed): return seeded(seed, shuffled, shuffled)
    def with_metrics(seed):
        learn = make(seed)
        learn.metrics = [tm.Accuracy('multiclass', num_classes=3), tm.MetricCollection({'f1': tm.F1Score('multiclass', num_classes=3), 'auroc': tm.AUROC('multiclass', num_classes=3)})]
        return learn
    whole, other, seen = resumed(tmp_path, with_metrics)
    assert whole == other and not seen
