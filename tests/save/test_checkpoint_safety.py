"""What a checkpoint holds is data: nothing in it is executed, no path leads out of its folder, and what is damaged is
found before it is used"""
import fcntl, json, os, pickle, random, re, shutil, signal, zipfile
from itertools import product

import pytest, torch

from common import Share, make_learner, same, shuffled, stop_when, told, weights
from trainer_nb.all import (
    AMP, Checkpoint, CSVLogger, EarlyStopping, EMA, GradAccum, LambdaHook, LRScheduler, MLflowLogger, OneCycle,
    TensorBoardLogger, accuracy
)
from trainer_nb.save.export import load_model
from trainer_nb.save.files import BadCheckpoint, Folder, Lock, read_state, write_state
from trainer_nb.loop.fit import Fit
from trainer_nb.save.snapshot import restore

class Call:
    "Unpickled, it makes a file"
    def __init__(self, path): self.path = path
    def __reduce__(self): return os.mkdir, (str(self.path),)

def saved(folder, n_epochs=1):
    "A folder of checkpoints, and the learner that wrote it"
    learn = make_learner(hooks=[Checkpoint(folder)])
    learn.fit(n_epochs)
    return learn

def newest(folder): return max(folder.glob('*.pt'))

def test_a_pickle_in_a_state_is_not_called(tmp_path):
    saved(tmp_path/'run')
    path = newest(tmp_path/'run')
    write_state(path, {'w': Call(tmp_path/'ran')})
    with pytest.raises(BadCheckpoint, match='Weights only load failed'): make_learner().load(path)
    with pytest.warns(UserWarning, match='Weights only'), pytest.raises(BadCheckpoint): make_learner().load(path.parent)
    assert not (tmp_path/'ran').exists()

def test_links_do_not_lead_out_of_the_folder(tmp_path):
    "In the place of a state and of its manifest"
    learn = saved(tmp_path/'run')
    path = newest(tmp_path/'run')
    keep = shutil.copytree(path.parent, tmp_path/'keep')
    for o in path, path.with_suffix('.json'):
        o.unlink()
        o.symlink_to(keep/o.name)
        for source in path, path.parent:
            with told() as said, pytest.raises(BadCheckpoint) as e: make_learner().load(source)
            assert 'leads out of' in str(e.value) + ''.join(said)
        o.unlink()
        shutil.copy(keep/o.name, o)
    (other := make_learner()).load(path)
    assert same(weights(other.model), weights(learn.model))

# Files that are something else, or were changed

def flips(path, n, rand):
    "The file with one bit changed, `n` times"
    whole = path.read_bytes()
    for _ in range(n):
        data, i = bytearray(whole), rand.randrange(8*len(whole))
        data[i//8] ^= 1 << i % 8
        path.write_bytes(data)
        yield i
    path.write_bytes(whole)

@pytest.mark.parametrize('n', [30, pytest.param(300, marks=pytest.mark.soak)])
def test_a_flipped_bit_is_found_or_changes_nothing(tmp_path, n):
    "Anywhere in a file of `learn.save`; some bytes of a zip archive are padding"
    learn, path, n_found = make_learner(), tmp_path/'one.pt', 0
    learn.fit(1)
    learn.save(path)
    for i in flips(path, n, random.Random(n)):
        other = make_learner()
        try: other.load(path)
        except BadCheckpoint: n_found += 1
        else:
            assert same(weights(other.model), weights(learn.model)), i
            assert other.history.steps == learn.history.steps, i
    assert n_found > .7*n

@pytest.mark.parametrize('share', [0., .3, .99, 1.])
def test_a_file_that_is_cut_off_is_found(tmp_path, share):
    saved(tmp_path/'run', 2)
    path = newest(tmp_path/'run')
    path.write_bytes(path.read_bytes()[:min(int(share*path.stat().st_size), path.stat().st_size - 1)])
    with pytest.raises(BadCheckpoint): make_learner().load(path)
    with pytest.warns(UserWarning, match='Trying the one before it'): (other := make_learner()).load(path.parent)
    assert other.state.epoch == 1

OTHERS = [b'<!DOCTYPE html><html><body>404</body></html>', pickle.dumps({'a': 1}), b'PK\x05\x06' + bytes(18)]

@pytest.mark.parametrize('data', [*OTHERS, None], ids=['page', 'pickle', 'zip', 'folder'])
def test_what_is_no_checkpoint_is_named_and_the_one_before_it_is_tried(tmp_path, data):
    saved(tmp_path/'run', 2)
    path = newest(tmp_path/'run')
    path.unlink()
    path.mkdir() if data is None else path.write_bytes(data)
    with pytest.warns(UserWarning, match=f'{path.name} .*Trying the one before it'): make_learner().load(tmp_path/'run')
    with pytest.warns(UserWarning, match='Trying the one before it'): make_learner().fit(2, resume=tmp_path/'run')
    with pytest.raises(BadCheckpoint, match=f'{path.name} is not a'): read_state(path)

def test_a_damaged_manifest_is_left_out(tmp_path):
    saved(tmp_path, 2)
    file = sorted(tmp_path.glob('*.json'))[-1]
    whole = json.loads(file.read_text())
    for note in ('['*100_000, '[]', 'null', '{}', '{"run": 1}', '\xff', json.dumps({**whole, 'step': 'x'}),
                 json.dumps({**whole, 'path': '/etc'})):
        file.write_text(note, 'latin1')
        with pytest.warns(UserWarning, match=f'{file.name} is damaged.*Skipping'):
            assert [o['epoch'] for o in Folder(tmp_path).manifests()] == [1]
        with pytest.raises(BadCheckpoint, match='is damaged'): make_learner().load(file.with_suffix('.pt'))

def test_a_folder_whose_manifests_are_all_damaged_is_not_a_fresh_start(tmp_path):
    make_learner(hooks=[Checkpoint(tmp_path)]).fit(1)
    for o in tmp_path.glob('*.json'): o.write_text('{}')
    with pytest.warns(UserWarning, match='Skipping'), pytest.raises(BadCheckpoint, match='none of the 1 checkpoints'):
        make_learner(hooks=[Checkpoint(tmp_path)]).fit(1, resume=True)

@pytest.mark.skipif(not hasattr(os, 'mkfifo'), reason='no pipes')
def test_a_pipe_in_the_place_of_a_file_does_not_block(tmp_path):
    make_learner(hooks=[Checkpoint(tmp_path)]).fit(1)
    for end in 'json', 'pt': os.mkfifo(tmp_path/f'checkpoint-00009-step-1.{end}')
    def fail(*args): raise AssertionError('it waits for a writer')
    old = signal.signal(signal.SIGALRM, fail)
    signal.alarm(60)
    with pytest.warns(UserWarning, match='00009-step-1.json is damaged .it is not a file.*Skipping'):
        (learn := make_learner(hooks=[Checkpoint(tmp_path)])).fit(2, resume=True)
    signal.alarm(0)
    signal.signal(signal.SIGALRM, old)
    assert learn.state.epoch == 2

# States

def own_hooks(tmp_path):
    def step(opt): return torch.optim.lr_scheduler.StepLR(opt, 3)
    return [AMP(), CSVLogger(tmp_path/'a.csv'), EarlyStopping(), EMA(), GradAccum(2), LRScheduler(step), OneCycle(),
            TensorBoardLogger(tmp_path/'tb'), MLflowLogger(), Checkpoint(tmp_path/'run')]

def test_a_hook_takes_nothing_but_its_own_state(tmp_path):
    "As a logger's `load_state_dict` set any attribute, a file could say where TensorBoard writes"
    for h in own_hooks(tmp_path):
        state, before = h.state_dict(), dict(vars(h))
        for key in 'folder', 'path', 'kwargs', 'make', 'write':
            with pytest.raises(ValueError, match=f"the state of {h.name} has an entry '{key}'"):
                h.load_state_dict({**state, key: '/elsewhere'})
        for key in state:
            with pytest.raises(ValueError, match=fr"the state of {h.name}\['{key}'\] is a complex"):
                h.load_state_dict({**state, key: 1j})
            if f'{key}?' in h.state_kinds: continue     # an entry that may be missing
            with pytest.raises(ValueError, match=f"the state of {h.name} has no entry '{key}'"):
                h.load_state_dict({k: v for k, v in state.items() if k != key})
        assert vars(h) == before
        h.load_state_dict(state)
        assert h.state_dict() == state

OURS = [(), ('state',), ('history',), ('history', 'series', 'train_loss'), ('rng_states', 0), ('loaders',),
        ('modules', 'model'), ('optimizers', ''), ('run',), ('run', 'train'),
        ('run', 'train_metrics'), ('run', 'train_metrics', 'averages', 'accuracy'),
        ('run', 'train_metrics', 'objects', 'Share'),
        *(('hooks', o) for o in ('EarlyStopping', 'EMA', 'GradAccum', 'OneCycle'))]

def test_a_state_with_an_entry_too_many_or_of_another_type_changes_nothing(tmp_path):
    "At the places of a checkpoint in mid-pass where the keys are ours"
    def make():
        return make_learner(train_dl=shuffled(), valid_dl=shuffled(), metrics=[accuracy, Share()],
                            hooks=[h for h in own_hooks(tmp_path)
                                   if h.name in ('EarlyStopping', 'EMA', 'GradAccum', 'OneCycle')])
    learn, path = make(), tmp_path/'a.pt'
    learn.fit(2, hooks=[stop_when(lambda learn: learn.history.n_steps == 8)])     # in an open window
    learn.save(path)
    other = make()
    before = weights(other.model)
    for at, is_planted in product(OURS, (True, False)):
        state = inner = torch.load(path, weights_only=True)
        for k in at: inner = inner[k]
        if 'objects' in at and not is_planted: continue
        key = 'planted' if is_planted else list(inner)[0]
        inner[key] = 'x' if is_planted else Ellipsis
        with pytest.raises(ValueError, match=f'{key!r}.* (expected|is a ellipsis)'):
            restore(other, state, Fit(), plan=True)
        assert same(weights(other.model), before) and not other.state.optimizer_step and not len(other.history), at
    other.load(path)
    assert other.state.batch_idx == 3

# The folder's lock

def elsewhere(f):
    "How `f` ends in a forked process"
    if not (pid := os.fork()):
        try: f()
        except RuntimeError as e: os._exit(1 + ('process' in str(e)))
        except BaseException: os._exit(3)
        os._exit(0)
    return ['taken', 'refused', 'refused, and the owner is named',
            'failed'][os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])]

def test_the_lock_outlives_a_copy_of_the_folder(tmp_path):
    "POSIX locks are lost when their process closes any opening of the file"
    found = []
    def look(learn):
        # they come and go
        shutil.copytree(tmp_path/'run', tmp_path/'copy', dirs_exist_ok=True, ignore=shutil.ignore_patterns('*.tmp'))
        (tmp_path/'run/.lock').read_text()
        found.append(elsewhere(Lock(tmp_path/'run').acquire))
    make_learner().fit(2, hooks=[Checkpoint(tmp_path/'run'), LambdaHook(after_epoch=look)])
    assert found == ['refused, and the owner is named']*2 and elsewhere(Lock(tmp_path/'run').acquire) == 'taken'

def test_a_forked_process_does_not_keep_the_lock_of_its_parent(tmp_path):
    "As the workers of a killed training live on for seconds; nor does it give the lock away when it ends"
    lock = Lock(tmp_path)
    lock.acquire()
    out, into = os.pipe()
    if not (pid := os.fork()):
        os.close(into)
        os.read(out, 1)         # until the parent has let it go
        os._exit(0)
    assert elsewhere(lock.acquire) == elsewhere(Lock(tmp_path).acquire) == 'refused, and the owner is named'
    lock.release()
    assert elsewhere(Lock(tmp_path).acquire) == 'taken'     # while the child lives
    os.close(into)
    os.close(out)
    assert os.waitpid(pid, 0)[1] == 0

def test_a_file_system_without_locks_is_named(tmp_path, monkeypatch):
    def flock(*args): raise OSError(95, 'Operation not supported')
    monkeypatch.setattr(fcntl, 'flock', flock)
    with pytest.warns(UserWarning, match='cannot be locked .Operation not supported'):
        (lock := Lock(tmp_path)).acquire()
    with pytest.raises(RuntimeError, match='of this process'): Lock(tmp_path).acquire()
    lock.release()

# Programs

@pytest.mark.parametrize('where', ['inputs', 'graph'])
def test_a_program_is_not_loaded_unasked(tmp_path, where):
    "torch calls what the pickle of its sample inputs names, and evaluates the expressions in its graph"
    learn, path = make_learner(), tmp_path/'model/program.pt2'
    learn.export(path.parent, example=torch.randn(2, 4))
    torch.save((Call(tmp_path/'ran'),), tmp_path/'inputs')
    evil, old = f"__import__('os').mkdir('{tmp_path}/ran')", zipfile.ZipFile(path)
    with zipfile.ZipFile(tmp_path/'new', 'w') as z:
        for o in old.infolist():
            data = old.read(o)
            if where == 'inputs' and 'sample_inputs' in o.filename: data = (tmp_path/'inputs').read_bytes()
            if where == 'graph' and o.filename.endswith('models/model.json'):
                data = re.sub(rb'"expr_str": "[^"]*"', f'"expr_str": "{evil}"'.encode(), data)
            z.writestr(o.filename, data)
    os.replace(tmp_path/'new', path)
    with pytest.raises(ValueError, match='trusted=True'): load_model(path.parent)
    assert same(weights(load_model(path.parent, make_learner().model)), weights(learn.model))
    assert not (tmp_path/'ran').exists()
    try: load_model(path.parent, trusted=True)
    except Exception: pass
    assert (tmp_path/'ran').exists()        # so it must be asked for
