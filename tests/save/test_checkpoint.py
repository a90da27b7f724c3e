"A run survives whatever happens to its process, its files and its disk"
import json, os, random, signal, subprocess, sys, threading, warnings
from pathlib import Path

import pytest, torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from common import Share, Stream, digest, make_learner, problem, same, shuffled, stop_at, told, weights
from trainer_nb.all import Checkpoint, Hook, LambdaHook, SeededLoader, accuracy
from trainer_nb.data import Pass
from trainer_nb.save.files import Folder, read_checkpoint


@pytest.fixture(scope='module')
def fork():
    """A function that runs a training in a new process, and returns how it ended: 0 done, 3 interrupted,
    4 failed on purpose, -9 killed"""
    child = subprocess.Popen([sys.executable, Path(__file__).parents[1]/'checkpoint_child.py'], stdin=subprocess.PIPE,
                             stdout=subprocess.PIPE, text=True, bufsize=1)
    def run(**c):
        watchdog = threading.Timer(300, child.kill)
        watchdog.start()
        try:
            child.stdin.write(json.dumps(c) + '\n')
            return int(child.stdout.readline())
        finally: watchdog.cancel()
    try: yield run
    finally:
        child.stdin.close()
        child.wait(60)
        child.stdout.close()

def lines(log): return dict(o.split(': ', 1) for o in Path(log).read_text().splitlines())

def result(log): return Path(f'{log}.digest').read_text()

ENDS = {'kill': -9, 'interrupt': 3, 'error': 4}
EVENTS = ('before_step', 'after_pred', 'after_loss', 'after_backward', 'after_step', 'before_epoch', 'before_valid',
          'after_valid', 'after_epoch')
SETUPS = {
    'plain': dict(), 'augmented': dict(aug=True), 'accumulated': dict(aug=True, accum=True),
    'amp': dict(amp=True, accum=True),
    'workers': dict(workers=2, aug=True), 'persistent': dict(workers=2, persistent=True, accum=True),
    'seeded': dict(workers=2, seeded=True, aug=True, amp=True)}

def campaign(fork, tmp_path, setup, n_stops, rand):
    """Stop a training at random moments, going on in a new process each time; then another one,
    until there were `n_stops`"""
    setup = dict(SETUPS[setup], valid_every=rand.choice([None, 2, 3]), valid_first=rand.random() < .5)
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
        wrong = {k: (v, expected.get(k)) for k, v in lines(log).items() if v != expected.get(k)}
        assert not wrong and lines(log).keys() == expected.keys(), (setup, every, seen, wrong)
        assert result(log) == digest, (setup, every, seen)
        if done >= n_stops: return
    raise AssertionError(f'{done} stops')

@pytest.mark.parametrize('setup, n_stops', [
    ('seeded', 3), *(pytest.param(o, 60, marks=pytest.mark.soak) for o in SETUPS)])
def test_stopped_anywhere_and_resumed_in_a_new_process(fork, tmp_path, setup, n_stops):
    campaign(fork, tmp_path, setup, n_stops, random.Random(f'{setup} {n_stops}'))

@pytest.mark.parametrize('n_kills', [8, pytest.param(200, marks=pytest.mark.soak)])
def test_killed_while_saving(fork, tmp_path, n_kills):
    """After `kill -9` at any moment there is a newest file that is whole, newer than every one before,
    and nothing half-written is left once a training has begun"""
    rand, folder = random.Random(n_kills), Folder(tmp_path/'a')
    other = tmp_path/'a/checkpoint-00001-step-1.txt'
    other.parent.mkdir()
    other.touch()
    n = n_unfinished = 0
    for i in range(n_kills):
        assert fork(folder=str(folder.path), log=str(tmp_path/'log'), every='0.0001s',
                    kill_after=.02 + .6*rand.random(), seed=i, big=1_000_000, n_epochs=10_000) == -9
        n_unfinished += any(folder.path.glob('.*.tmp'))
        if not folder.notes():
            assert n == 0
            continue
        path, newest = read_checkpoint(folder.path)[1], folder.manifests()[-1]
        assert newest['n'] >= n, 'the newest was lost'
        n = newest['n']
        assert path.name == newest['file'], 'the newest is damaged'
    assert n and other.exists() and n_unfinished >= n_kills//10, 'the kills missed the saves'
    folder.tidy()
    assert not [o for o in folder.path.iterdir() if o.suffix == '.tmp'] and len(folder.manifests()) <= 4


# In one process: another learner, after other random numbers

class Reads(TensorDataset):
    "Counts its reads, in shared memory, so that those of workers are seen, too"
    def __init__(self, n):
        super().__init__(torch.arange(float(n)))
        self.n_reads = torch.zeros(1, dtype=torch.int64).share_memory_()
    def __getitem__(self, i):
        self.n_reads += 1
        return self.tensors[0][i]

@pytest.mark.parametrize('cls, n_workers', [(DataLoader, 0), (SeededLoader, 2)])
def test_skipping_10_000_batches_reads_no_sample(cls, n_workers):
    data = Reads(20_010)
    pass_, other = (Pass(cls(data, batch_size=2, shuffle=True, num_workers=n_workers)) for _ in range(2))
    iter(pass_)
    pass_.n = 10_000
    state = pass_.state_dict()
    pass_.close()
    data.n_reads.zero_()
    other.load_state_dict(state)
    assert len(list(other)) == 5 and data.n_reads == 10

def resumed(tmp_path, make):
    """A training that nobody stops, and one of the same kind that is stopped and goes on in another learner: digests,
    and what it warned of"""
    whole = make(0)
    whole.fit(2)
    stopped = make(0)
    stopped.fit(2, hooks=[stop_at(3), Checkpoint(tmp_path)])
    torch.rand(5)
    other = make(1)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter('always')
        warnings.filterwarnings('ignore', 'This DataLoader will create')        # where there is one CPU
        warnings.filterwarnings('ignore', 'This process .* is multi-threaded')   # Python 3.12 and newer, of each fork
        other.fit(2, hooks=[Checkpoint(tmp_path)], resume=True)
    return digest(whole), digest(other), [str(o.message) for o in seen]

def seeded(seed, train_dl, valid_dl=None, **kwargs):
    torch.manual_seed(seed)
    return make_learner(train_dl=train_dl(), valid_dl=valid_dl and valid_dl(), seed=7, metrics=[accuracy], **kwargs)

@pytest.mark.parametrize('n_workers', [0, 2])
def test_iterables_are_read_again_and_say_so(tmp_path, n_workers):
    make_dl = lambda: DataLoader(Stream([*zip(*problem())]), batch_size=5, num_workers=n_workers)
    whole, other, seen = resumed(tmp_path, lambda seed: seeded(seed, make_dl))
    assert whole == other and 'first 3 batches are read again' in seen[0]
    assert len(seen) == max(n_workers, 1) and all('each sample comes 2 times' in o for o in seen[1:])

class NoisyStream(Stream):
    def __iter__(self): return iter([(x + torch.rand(4), y) for x, y in self.data])

@pytest.mark.parametrize('is_kept', [True, False])
def test_persistent_workers_of_an_iterable_are_named(tmp_path, is_kept):
    "In mid-epoch the order alone was said to matter, and nothing was said at an epoch's end"
    data = NoisyStream([*zip(*problem())])
    def loader(): return DataLoader(data, batch_size=5, num_workers=1, persistent_workers=is_kept)
    def make(*hooks): return seeded(0, loader, hooks=hooks)
    (whole := make()).fit(2)
    make(Checkpoint(tmp_path/'end')).fit(1)
    make(Checkpoint(tmp_path/'mid')).fit(2, hooks=[stop_at(7)])
    for place in 'end', 'mid':
        with told() as texts: (other := make(Checkpoint(tmp_path/place))).fit(2, resume=True)
        assert any('random numbers that they draw there may differ' in o for o in texts) == is_kept
        assert any('exact if it yields the same ones again' in o for o in texts) == (place == 'mid')
        assert is_kept or digest(other) == digest(whole)

@pytest.mark.parametrize('n_workers', [0, 2])
def test_stateful_loaders_are_asked(tmp_path, n_workers):
    torchdata = pytest.importorskip('torchdata.stateful_dataloader')
    make_dl = lambda: torchdata.StatefulDataLoader(TensorDataset(*problem()), batch_size=5, shuffle=True,
                                                   num_workers=n_workers)
    whole, other, seen = resumed(tmp_path, lambda seed: seeded(seed, make_dl))
    assert whole == other and ['StatefulDataLoader with 2 workers' in o for o in seen] == [True]*bool(n_workers)

# What is put where

def test_the_last_ones_and_the_best_are_kept(tmp_path):
    values = iter([5., 3., 1., 4., 6., 7., 8., 9.])
    class Measured(Hook):
        def after_valid(self, learn): learn.history.valid_rows[-1]['valid_loss'] = next(values)
    check = Checkpoint(tmp_path, keep=2)
    learn = seeded(0, shuffled, shuffled, hooks=[Measured(), check])
    learn.fit(8)
    assert [(o['epoch'], o['metric']) for o in check.folder.manifests()] == [(3, 1.), (7, 8.), (8, 9.)]
    assert check.best()['metric'] == 1
    high = Checkpoint(tmp_path/'b', keep=1, mode='max')
    values = iter([1., 3., 2.])
    seeded(0, shuffled, shuffled, hooks=[Measured(), high]).fit(3)
    assert [o['metric'] for o in high.folder.manifests()] == [3., 2.]

@pytest.mark.parametrize('kwargs, steps', [
    (dict(every='2 epochs'), [10, 20, 25]), (dict(every='10 steps'), [10, 20, 25]), (dict(every=10), [10, 20, 25]),
    (dict(monitor='valid_loss', every='9 epochs'), [5, 15, 25]),
    (dict(monitor='valid_loss', best_only=True), [5, 15]),
    (dict(monitor='valid_loss', best_only=True, every=1), [5, 15])])
def test_how_often_it_saves(tmp_path, kwargs, steps):
    "Five epochs of five steps, of which the first and the third are the best so far; then a stop"
    values = iter([5., 6., 3., 4., 7.])
    class Measured(Hook):
        def after_valid(self, learn): learn.history.valid_rows[-1]['valid_loss'] = next(values)
    check = Checkpoint(tmp_path, keep=99, **{'monitor': None, **kwargs})
    learn = seeded(0, shuffled, shuffled, hooks=[Measured(), check])
    learn.fit(5)
    assert [o['step'] for o in check.folder.manifests()] == steps and len(check.saved) == len(steps)
    learn.fit(1, hooks=[stop_at(27)])
    assert [o['step'] for o in check.folder.manifests()[len(steps):]] == ([] if 'best_only' in kwargs else [27])

def test_the_best_only_needs_a_column_that_says_which():
    with pytest.raises(ValueError, match="monitor is None, .* expected a column's name"):
        Checkpoint('a', best_only=True, monitor=None)
    with pytest.raises(ValueError, match="monitors 'valid_loss', but there is no valid_dl"):
        seeded(0, shuffled, hooks=[Checkpoint('a', best_only=True)]).fit(1)

def test_files_of_others_are_never_touched(tmp_path, capsys):
    "Those of another run stay, and the newest is the one that was written last, whatever its step"
    others = [tmp_path/o for o in ('notes.txt', 'checkpoint-00001-step-1.pt', 'checkpoint-mine.json', 'model.tmp')]
    for o in others: o.write_text('mine')
    for seed, n in (0, 4), (1, 2):
        learn = seeded(seed, shuffled, hooks=[Checkpoint(tmp_path, keep=1)])
        learn.fit(n)
    assert 'of another run' in capsys.readouterr().out
    assert [o['step'] for o in Folder(tmp_path).manifests()] == [20, 10]
    assert all(o.read_text() == 'mine' for o in others)
    again = seeded(2, shuffled, hooks=[Checkpoint(tmp_path)])
    again.fit(2, resume=True)
    assert digest(again) == digest(learn)

def test_a_hook_that_saves_another_learner_begins_another_run(tmp_path):
    "In a loop over folds, the best of the first was the best of all"
    check, best, runs = Checkpoint(tmp_path, keep=1), [], []
    class Measured(Hook):
        def after_valid(self, learn): learn.history.valid_rows[-1]['valid_loss'] = learn.config
    for fold in range(3):
        learn = seeded(fold, shuffled, shuffled, hooks=[Measured(), check], config=float(fold))
        learn.fit(1)
        learn.fit(1)
        best.append(check.best()['metric'])
        runs.append(check.run)
    assert best == [0, 1, 2] and len({*runs}) == 3
    assert [o['run'] for o in check.folder.manifests()] == [r for r in runs for _ in range(2)]     # best and latest
    again = seeded(5, shuffled, shuffled, hooks=[Measured(), check], config=0.)
    again.fit(3, resume=tmp_path)
    assert check.run == runs[-1] and again.state.epoch == 3

def test_training_goes_on_while_a_file_is_written(tmp_path, monkeypatch):
    """A save copies: what is written is the state of that moment, however much later it is written;
    and one write is on its way at most"""
    slow, n_open, most = threading.Event(), [0], [0]
    put = Folder.put
    def late(self, *args):
        n_open[0] += 1
        most[0] = max(most[0], n_open[0])
        slow.wait(10)
        n_open[0] -= 1
        return put(self, *args)
    monkeypatch.setattr(Folder, 'put', late)
    def go(learn):
        if learn.state.optimizer_step == 3: slow.set()
    check = Checkpoint(tmp_path, every=2, keep=99)
    learn = seeded(0, shuffled, hooks=[check, LambdaHook(before_step=go)])
    learn.fit(2)
    assert most == [1] and [o['step'] for o in check.folder.manifests()] == [2, 4, 6, 8, 10, 10]
    other = seeded(1, shuffled)
    other.load(tmp_path/check.folder.manifests()[0]['file'])
    other.resume()
    assert digest(other) == digest(learn)

# Bad input

def bad(tmp_path, make, **kwargs):
    """A training that was stopped in the middle of an epoch is resumed with something else: the error;
    the learner is as it was"""
    if not Folder(tmp_path).manifests(): seeded(0, shuffled, shuffled).fit(2, hooks=[stop_at(7), Checkpoint(tmp_path)])
    learn = make()
    before = weights(learn.model), len(learn.history), learn.state.optimizer_step, learn.opt.state_dict()['state']
    with pytest.raises((ValueError, OSError)) as e: learn.fit(2, resume=kwargs.get('resume', tmp_path))
    assert same(before[0], weights(learn.model))
    assert before[1:] == (len(learn.history), learn.state.optimizer_step, learn.opt.state_dict()['state'])
    learn.fit(1)
    return f'{type(e.value).__name__}: {e.value}'

def test_what_does_not_fit_is_named_and_changes_nothing(tmp_path):
    def with_dl(dl): return lambda: seeded(1, lambda: dl, shuffled)
    assert 'samples 24 there, 30 here' in bad(tmp_path, with_dl(shuffled(30)))
    assert 'bs 5 there, 6 here' in bad(tmp_path, with_dl(shuffled(bs=6)))
    in_order = DataLoader(TensorDataset(*problem()), batch_size=5)
    assert 'sampler RandomSampler there, SequentialSampler here' in bad(tmp_path, with_dl(in_order))
    wide = nn.Sequential(nn.Linear(4, 9), nn.Linear(9, 3))
    assert '0.weight is (8, 4) there and (9, 4) here' in bad(tmp_path, lambda: make_learner(wide))
    assert 'AdamW with groups of [4]' in bad(tmp_path, lambda: make_learner(optim=torch.optim.SGD))
    def backwards(params): return torch.optim.AdamW([*params][::-1])
    assert 'or the same ones in another order' in bad(tmp_path, lambda: make_learner(optim=backwards))
    assert "['accuracy'], and now there are []" in bad(tmp_path, lambda: make_learner())
    (tmp_path/'empty').mkdir()
    for o in 'empty', 'none': assert 'FileNotFoundError' in bad(tmp_path, make_learner, resume=tmp_path/o)

@pytest.mark.parametrize('workers', [(0, 2), (2, 0)])
def test_another_number_of_workers_is_the_same_order(tmp_path, workers):
    make = lambda seed, n: seeded(seed, lambda: shuffled(num_workers=n), shuffled)
    whole, stopped, other = make(0, workers[0]), make(0, workers[0]), make(1, workers[1])
    whole.fit(2)
    stopped.fit(2, hooks=[stop_at(7), Checkpoint(tmp_path)])
    with pytest.warns(UserWarning, match='the order of the samples is the same'): other.fit(2, resume=tmp_path)
    assert digest(whole) == digest(other)

# Faults of the disk

INFO = {'run': 'a', 'step': 1, 'epoch': 0, 'in_epoch': True, 'position': '', 'processes': 1, 'monitor': None,
        'metric': None, 'rating': None}

@pytest.mark.skipif(not os.path.isdir('/proc/self/fd'), reason='needs the names of open files')
def test_everything_is_on_the_disk_before_it_is_in_its_place(tmp_path, monkeypatch):
    """The order of the system's calls, which is what a power failure leaves of them; a file is moved,
    never changed where it is"""
    log, fsync, replace = [], os.fsync, os.replace
    def name(o): return '.tmp' if str(o).endswith('.tmp') else 'folder' if Path(o).is_dir() else Path(o).suffix
    def noted_fsync(fd): fsync(fd); log.append(('fsync', name(os.readlink(f'/proc/self/fd/{fd}'))))
    def noted_replace(a, b): replace(a, b); log.append((name(a), name(b)))
    monkeypatch.setattr(os, 'fsync', noted_fsync)
    monkeypatch.setattr(os, 'replace', noted_replace)
    beside, folder = ('fsync', '.tmp'), ('fsync', 'folder')
    Folder(tmp_path).put({'a': 1}, INFO)
    assert log == [beside, ('.tmp', '.pt'), folder, beside, ('.tmp', '.json'), folder]

def test_disk_full(tmp_path):
    """A disk that fails from step 4 to step 8 changes no number

    It is a limit on the size of files, which the system reports like a full disk.
    """
    import resource
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    def limit(n): resource.setrlimit(resource.RLIMIT_FSIZE, (n, hard))
    def disk(learn):
        if learn.training and learn.state.optimizer_step == 4:
            check.finish()
            limit(8000)
        if learn.training and learn.state.optimizer_step == 8: limit(soft)
    check = Checkpoint(tmp_path/'a', every=2, keep=9)
    learn, whole = (seeded(0, shuffled, shuffled, hooks=o) for o in ([check, LambdaHook(before_step=disk)], []))
    old = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        with told() as seen: learn.fit(2)
    finally:
        limit(soft)
        signal.signal(signal.SIGXFSZ, old)
    whole.fit(2)
    assert digest(learn) == digest(whole)
    steps = [o['step'] for o in check.folder.manifests()]
    assert len({*seen}) == 1 and 'File too large' in seen[0], seen
    assert steps[:2] == [2, 4] and steps[-1] == 10 and 6 not in steps
    assert not list((tmp_path/'a').glob('.*.tmp'))

def test_strict(tmp_path, monkeypatch):
    def put(*args): raise OSError(28, 'No space left on device')
    monkeypatch.setattr(Folder, 'put', put)
    with pytest.raises(OSError, match='No space left'):
        seeded(0, shuffled, hooks=[Checkpoint(tmp_path, strict=True)]).fit(2)

def test_two_runs_in_one_folder(tmp_path):
    """The second one is refused as long as the first one trains, in another process or in this one;
    a dead process holds nothing"""
    code = (f"from trainer_nb.save.files import Lock; import time; lock = Lock({str(tmp_path)!r}); lock.acquire(); "
            "print('locked', flush=True); time.sleep(60)")
    child = subprocess.Popen([sys.executable, '-c', code], stdout=subprocess.PIPE, text=True)
    assert child.stdout.readline() == 'locked\n'
    learn = seeded(0, shuffled, hooks=[Checkpoint(tmp_path)])
    with pytest.raises(RuntimeError, match=f'in use by another run .process {child.pid}'): learn.fit(1)
    child.kill()
    child.wait()
    child.stdout.close()
    other = seeded(0, shuffled, hooks=[Checkpoint(tmp_path)])
    def second(l):
        with pytest.raises(RuntimeError, match='in use by another run .this process'): other.fit(1)
    learn.fit(1, hooks=[LambdaHook(before_valid=second, after_epoch=second)])
    other.fit(1, resume=True)
    assert digest(other) == digest(learn)

# Other cases

def test_save_what_was_loaded(tmp_path):
    "A state from the middle of an epoch can be loaded, saved again, and resumed from"
    first, again, other = (make_learner() for _ in range(3))
    first.fit(1, hooks=[stop_at(3)])
    for name, a, b in ('a', first, again), ('b', again, other):
        a.save(tmp_path/name)
        b.load(tmp_path/name)
    for o in first, other: o.resume()
    assert same(weights(first.model), weights(other.model))

def test_an_interrupt_while_saving_is_a_keyboard_interrupt(tmp_path):
    "At any line of our code and of torch's that writes: torch's zip writer would replace it by an error of its own"
    learn, path = make_learner(), tmp_path/'a.pt'
    learn.save(path)
    whole = path.read_bytes()
    files = os.path.join('save', 'files.py'), os.path.join('torch', 'serialization.py')
    def interrupted_at(n):      # whether there was an n-th line
        count, where = 0, None
        def trace(frame, event, arg):
            nonlocal count, where
            if not frame.f_code.co_filename.endswith(files): return None
            count += 1
            if count == n:
                where = f'{frame.f_code.co_name}:{frame.f_lineno}'
                signal.raise_signal(signal.SIGINT)
            return trace
        old = sys.gettrace()
        sys.settrace(trace)
        try: learn.save(path)
        except KeyboardInterrupt: pass
        except BaseException as e: raise AssertionError(f'{where}: {type(e).__name__}: {e}') from e
        else: assert where is None, f'{where}: it was lost'
        finally: sys.settrace(old)
        assert path.read_bytes() == whole or where is None
        return where is not None
    n = 1
    while interrupted_at(n): n += 59
    assert n > 300 and not list(tmp_path.glob('.*')) and signal.getsignal(signal.SIGINT) is signal.default_int_handler

class Tagged(torch.Tensor): "As MONAI's MetaTensor: it may hold more than numbers"

class Wrapped:
    "A metric object around another object"
    def __init__(self): self.inner = Share()
    def reset(self): self.inner.reset()
    def update(self, pred, targ): self.inner.update(pred, targ)
    def compute(self): return self.inner.compute()

def test_a_tensor_of_a_subclass_is_saved_in_mid_epoch(tmp_path):
    def loss(pred, targ): return nn.functional.cross_entropy(pred, targ).as_subclass(Tagged)
    whole, other, seen = resumed(tmp_path, lambda seed: seeded(seed, shuffled, loss_fn=loss))
    assert whole == other and not seen

def test_what_no_checkpoint_can_hold_ends_the_fit_after_its_first_batch(tmp_path):
    learn = make_learner(metrics=[Wrapped()], hooks=[Checkpoint(tmp_path)])
    with pytest.raises(TypeError, match="'inner'.* is a common.Share") as e: learn.fit(2)
    assert 'state_dict() and load_state_dict()' in str(e.value) and learn.state.optimizer_step == 1
