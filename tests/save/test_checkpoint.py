"A run survives whatever happens to its process, its files and its disk"
import json, os, random, signal, subprocess, sys, threading
from pathlib import Path

import pytest, torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from common import digest, make_learner, problem, same, shuffled, stop_at, told, weights
from trainer_nb.all import Checkpoint, Hook, LambdaHook, accuracy
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

ENDS = {'kill': -9, 'interrupt': 3, 'error': 4}
EVENTS = ('before_step', 'after_pred', 'after_loss', 'after_backward', 'after_step', 'before_epoch', 'before_valid',
          'after_valid', 'after_epoch')
SETUPS = {
    'plain': {}, 'accumulated': {'aug': True, 'accum': True}, 'amp': {'amp': True, 'accum': True},
    'workers': {'workers': 2, 'aug': True}, 'persistent': {'workers': 2, 'persistent': True, 'accum': True},
    'seeded': {'workers': 2, 'seeded': True, 'aug': True, 'amp': True}}

@pytest.mark.parametrize('setup, n_stops', [
    ('seeded', 3), *(pytest.param(o, 60, marks=pytest.mark.soak) for o in SETUPS)])
def test_stopped_anywhere_and_resumed_in_a_new_process(fork, tmp_path, setup, n_stops):
    "At random moments, until there were `n_stops`: record and weights are those of a training that nobody stops"
    rand, done = random.Random(f'{setup} {n_stops}'), 0
    setup = dict(SETUPS[setup], valid_every=rand.choice([None, 2, 3]), valid_first=rand.random() < .5)
    def result(name): return (tmp_path/name/'digest').read_text()
    assert fork(folder=str(tmp_path/'whole'), every='epoch', **setup) == 0
    for i in map(str, range(n_stops)):
        every, seen = rand.choice(['epoch', 1, 2, '0.0001s', '0.0001s']), []
        for attempt in range(20):
            kind = rand.choice([*ENDS])
            stop = dict(event=rand.choice(EVENTS), n=rand.randint(1, 12), kind=kind) if done < n_stops else None
            code = fork(folder=str(tmp_path/i), every=every, stop=stop, seed=attempt, **setup)
            seen.append((stop, code))
            if code == 0: break
            assert code == ENDS[kind], (setup, every, seen)
            done += 1
        assert result(i) == result('whole'), (setup, every, seen)
    assert done >= n_stops

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
        assert fork(folder=str(folder.path), every='0.0001s', kill_after=.02 + .6*rand.random(), seed=i,
                    big=1_000_000, n_epochs=10_000) == -9
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

def seeded(train_dl=shuffled, valid_dl=None, seed=0, **kwargs):
    torch.manual_seed(seed)
    return make_learner(train_dl=train_dl(), valid_dl=valid_dl and valid_dl(), seed=7, metrics=[accuracy], **kwargs)

# What is put where

def measured(*values):
    "A hook that sets the `valid_loss` of each epoch"
    values = iter(values)
    return LambdaHook(after_valid=lambda learn: learn.history.valid_rows[-1].update(valid_loss=next(values)))

def steps(hook): return [o['step'] for o in hook.folder.manifests()]

@pytest.mark.parametrize('kwargs, expected, stopped', [
    ({'keep': 2}, [15, 20, 25], [27]), ({'keep': 1, 'mode': 'max'}, [10, 25], [27]),
    ({'monitor': None, 'every': '2 epochs'}, [10, 20, 25], [27]), ({'monitor': None, 'every': 10}, [10, 20, 25], [27]),
    ({'every': '9 epochs'}, [5, 15, 25], [27]), ({'best_only': True, 'every': 1}, [5, 15], [])])
def test_how_often_it_saves_and_what_it_keeps(tmp_path, kwargs, expected, stopped):
    "Five epochs of five steps, of which the third is the best; then a stop"
    check = Checkpoint(tmp_path, **{'keep': 99, **kwargs})
    learn = seeded(valid_dl=shuffled, hooks=[measured(5., 6., 3., 4., 4.), check])
    learn.fit(5)
    assert steps(check) == expected and len(check.saved) >= len(expected)
    learn.fit(1, hooks=[stop_at(27)])
    assert [o for o in steps(check) if o > 25] == stopped

def test_files_of_others_are_never_touched(tmp_path, capsys):
    "Those of another run stay, and the newest is the one that was written last, whatever its step"
    others = [tmp_path/o for o in ('notes.txt', 'checkpoint-00001-step-1.pt', 'checkpoint-mine.json', 'model.tmp')]
    for o in others: o.write_text('mine')
    for seed, n in (0, 4), (1, 2):
        learn = seeded(seed=seed, hooks=[check := Checkpoint(tmp_path, keep=1)])
        learn.fit(n)
    assert 'of another run' in capsys.readouterr().out and steps(check) == [20, 10]
    assert all(o.read_text() == 'mine' for o in others)
    (again := seeded(seed=2)).fit(2, resume=tmp_path)
    assert digest(again) == digest(learn)

def test_a_hook_that_saves_another_learner_begins_another_run(tmp_path):
    "In a loop over folds, each has its own best"
    check, runs = Checkpoint(tmp_path, keep=1), []
    for fold in range(2):
        learn = seeded(valid_dl=shuffled, seed=fold, hooks=[measured(fold, fold + .5), check])
        for _ in range(2): learn.fit(1)
        assert check.best()['metric'] == fold
        runs.append(check.run)
    assert [o['run'] for o in check.folder.manifests()] == [runs[0]]*2 + [runs[1]]*2     # best and latest
    again = seeded(valid_dl=shuffled, hooks=[check])
    again.fit(3, resume=tmp_path)
    assert check.run == runs[1] and again.state.epoch == 3

def test_training_goes_on_while_a_file_is_written(tmp_path, monkeypatch):
    """A save copies: what is written is the state of that moment, however much later it is written;
    and one write is on its way at most"""
    slow, n_open, most, put = threading.Event(), [], [], Folder.put
    def late(self, *args):
        n_open.append(1)
        most.append(len(n_open))
        slow.wait(10)
        n_open.pop()
        put(self, *args)
    monkeypatch.setattr(Folder, 'put', late)
    check = Checkpoint(tmp_path, every=2, keep=99)
    go = LambdaHook(before_step=lambda learn: slow.set() if learn.state.optimizer_step == 3 else None)
    (learn := seeded(hooks=[check, go])).fit(2)
    assert {*most} == {1} and steps(check) == [2, 4, 6, 8, 10, 10]
    (other := seeded(seed=1)).load(tmp_path/check.folder.manifests()[0]['file'])
    other.resume()
    assert digest(other) == digest(learn)

def test_what_does_not_fit_is_named_and_changes_nothing(tmp_path):
    "A training that was stopped in the middle of an epoch is resumed with something else"
    seeded(valid_dl=shuffled).fit(2, hooks=[stop_at(7), Checkpoint(tmp_path/'a')])
    (tmp_path/'empty').mkdir()
    in_order = DataLoader(TensorDataset(*problem()), batch_size=5)
    for make, folder, words in [
            (lambda: seeded(lambda: shuffled(30), shuffled), 'a', 'samples 24 there, 30 here'),
            (lambda: seeded(lambda: in_order, shuffled), 'a', 'RandomSampler there, SequentialSampler here'),
            (lambda: make_learner(nn.Linear(4, 3)), 'a', '0.weight is .8, 4. there and missing here'),
            (make_learner, 'a', 'accuracy'),
            (make_learner, 'empty', 'empty'), (make_learner, 'none', 'none')]:
        def rest(): return len(learn.history), learn.state.optimizer_step, len(learn.opt.state)
        learn = make()
        before, old = rest(), weights(learn.model)
        with pytest.raises((ValueError, OSError), match=words): learn.fit(2, resume=tmp_path/folder)
        assert same(old, weights(learn.model)) and before == rest(), words
    learn.fit(1)

# Faults of the disk, of another process, and of a person

INFO = {'run': 'a', 'step': 1, 'epoch': 0, 'in_epoch': True, 'position': '', 'processes': 1, 'monitor': None,
        'metric': None, 'rating': None}

@pytest.mark.skipif(not os.path.isdir('/proc/self/fd'), reason='needs the names of open files')
def test_everything_is_on_the_disk_before_it_is_in_its_place(tmp_path, monkeypatch):
    """The order of the system's calls, which is what a power failure leaves of them; a file is moved,
    never changed where it is"""
    log, fsync, replace = [], os.fsync, os.replace
    def name(o): return '.tmp' if str(o).endswith('.tmp') else 'folder' if Path(o).is_dir() else Path(o).suffix
    def noted_fsync(fd):
        fsync(fd)
        log.append(('fsync', name(os.readlink(f'/proc/self/fd/{fd}'))))
    def noted_replace(a, b):
        replace(a, b)
        log.append((name(a), name(b)))
    monkeypatch.setattr(os, 'fsync', noted_fsync)
    monkeypatch.setattr(os, 'replace', noted_replace)
    beside, folder = ('fsync', '.tmp'), ('fsync', 'folder')
    Folder(tmp_path).put({'a': 1}, INFO)
    assert log == [beside, ('.tmp', '.pt'), folder, beside, ('.tmp', '.json'), folder]

@pytest.fixture
def limit():
    "A function that limits the size of files, which the system reports like a full disk"
    import resource
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    old = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    yield lambda n=soft: resource.setrlimit(resource.RLIMIT_FSIZE, (n, hard))
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    signal.signal(signal.SIGXFSZ, old)

def test_a_full_disk(tmp_path, limit):
    "From step 4 to step 8 it changes no number, unless errors of a save are `strict`"
    def disk(learn):
        if learn.state.optimizer_step == 4:
            check.finish()
            limit(8000)
        if learn.state.optimizer_step == 8: limit()
    check = Checkpoint(tmp_path/'a', every=2, keep=9)
    learn, whole = seeded(hooks=[check, LambdaHook(before_step=disk)]), seeded()
    with told() as said: learn.fit(2)
    whole.fit(2)
    assert digest(learn) == digest(whole) and len({*said}) == 1 and 'File too large' in said[0]
    assert {2, 4, 10} <= {*steps(check)} <= {2, 4, 8, 10} and not list((tmp_path/'a').glob('.*.tmp'))
    check = Checkpoint(tmp_path/'b', every=2, strict=True)
    with pytest.raises(OSError, match='File too large'): seeded(hooks=[check, LambdaHook(before_step=disk)]).fit(2)

def test_two_runs_in_one_folder(tmp_path):
    "The second one is refused as long as the first one trains"
    learn, other = (seeded(hooks=[Checkpoint(tmp_path)]) for _ in range(2))
    def second(learn):
        with pytest.raises(RuntimeError, match='in use .*this process'): other.fit(1)
    learn.fit(1, hooks=[LambdaHook(before_step=second, after_epoch=second)])
    other.fit(1, resume=True)
    assert digest(other) == digest(learn)

def test_an_interrupt_while_saving_is_a_keyboard_interrupt(tmp_path):
    "At any line of our code and of torch's that writes: torch's zip writer would replace it by an error of its own"
    learn, path = make_learner(), tmp_path/'a.pt'
    learn.save(path)
    whole, files = path.read_bytes(), (os.path.join('save', 'files.py'), os.path.join('torch', 'serialization.py'))
    old = sys.gettrace()
    for n in range(1, 10**6, 59):
        seen = []
        def trace(frame, *_):
            if not frame.f_code.co_filename.endswith(files): return None
            seen.append(f'{frame.f_code.co_name}:{frame.f_lineno}')
            if len(seen) == n: signal.raise_signal(signal.SIGINT)
            return trace
        sys.settrace(trace)
        try: learn.save(path)
        except KeyboardInterrupt: assert path.read_bytes() == whole, seen[n - 1]
        else: assert len(seen) < n, f'{seen[n - 1]}: it was lost'
        finally: sys.settrace(old)
        if len(seen) < n: break
    assert n > 300 and not list(tmp_path.glob('.*')) and signal.getsignal(signal.SIGINT) is signal.default_int_handler

def test_what_no_checkpoint_can_hold_ends_the_fit_after_its_first_batch(tmp_path):
    class Held(Hook):
        def state_dict(self): return {'of': [self]}
    learn = make_learner(hooks=[Held(), Checkpoint(tmp_path)])
    with pytest.raises(TypeError, match="'of'.*Held.* state_dict"): learn.fit(2)
    assert learn.state.optimizer_step == 1
