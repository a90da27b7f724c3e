"""What a checkpoint holds is data: nothing in it is executed, no path leads out of its folder, and what is damaged is
found before it is used"""
import fcntl, json, os, pickle, random, shutil, socket
from itertools import product

import pytest, torch

from common import Share, make_learner, same, shuffled, stop_when, told, weights
from trainer_nb.all import CSVLogger, Checkpoint, EarlyStopping, EMA, GradAccum, OneCycle, accuracy
from trainer_nb.save.export import load_model
from trainer_nb.save.files import BadCheckpoint, Folder, Lock, read_state
from trainer_nb.loop.fit import Fit
from trainer_nb.save.state import restore

def saved(folder, n_epochs=1):
    "A folder of checkpoints, and the learner that wrote it"
    learn = make_learner(hooks=[Checkpoint(folder)])
    learn.fit(n_epochs)
    return learn

def newest(folder): return max(folder.glob('*.pt'))

class Call:
    "Unpickled, it makes a folder"
    def __init__(self, path): self.path = path
    def __reduce__(self): return os.mkdir, (str(self.path),)

@pytest.mark.parametrize('read', [
    lambda learn, path: learn.load(path), lambda learn, path: learn.load(path.parent),
    lambda learn, path: learn.fit(2, resume=path),
    lambda learn, path: learn.fit(2, resume=True, hooks=[Checkpoint(path.parent)])], ids=range(4))
def test_a_pickle_in_a_checkpoint_is_not_called(tmp_path, read):
    saved(tmp_path/'run')
    path, ran = newest(tmp_path/'run'), tmp_path/'ran'
    torch.save({**torch.load(path, weights_only=True), 'hooks': Call(ran)}, path)
    learn = make_learner()
    before = weights(learn.model)
    with pytest.raises((BadCheckpoint, FileNotFoundError)): read(learn, path)
    assert not ran.exists() and same(before, weights(learn.model))
    torch.load(path, weights_only=False)
    assert ran.exists()         # it would have been

def test_links_do_not_lead_out_of_the_folder(tmp_path):
    "In the place of a state and of its manifest"
    learn = saved(tmp_path/'run')
    path = newest(tmp_path/'run')
    keep = shutil.copytree(path.parent, tmp_path/'keep')
    for o, sources in (path, [path, path.parent]), (path.with_suffix('.json'), [path.parent]):
        o.unlink()
        o.symlink_to(keep/o.name)
        for source in sources:
            with told() as said, pytest.raises(BadCheckpoint) as e: make_learner().load(source)
            assert 'it is not a file, but a link' in str(e.value) + ''.join(said)
        o.unlink()
        shutil.copy(keep/o.name, o)
    (other := make_learner()).load(path)
    assert same(weights(other.model), weights(learn.model))

# Files that are something else, or were changed

@pytest.mark.parametrize('n', [30, pytest.param(300, marks=pytest.mark.soak)])
def test_a_flipped_bit_is_found_or_changes_nothing(tmp_path, n):
    "Anywhere in a file of `learn.save`; some bytes of a zip archive are padding"
    learn, path, rand, n_found = make_learner(), tmp_path/'one.pt', random.Random(n), 0
    learn.fit(1)
    learn.save(path)
    whole = path.read_bytes()
    for _ in range(n):
        data, i, other = bytearray(whole), rand.randrange(8*len(whole)), make_learner()
        data[i//8] ^= 1 << i % 8
        path.write_bytes(data)
        try: other.load(path)
        except BadCheckpoint: n_found += 1
        else:
            assert same(weights(other.model), weights(learn.model)), i
            assert other.history.steps == learn.history.steps, i
    assert n_found > .7*n

DAMAGES = {'empty': lambda whole: b'', 'cut off': lambda whole: whole[:len(whole)*99//100],
           'page': lambda whole: b'<!DOCTYPE html><html><body>404</body></html>',
           'pickle': lambda whole: pickle.dumps({'a': 1}), 'zip': lambda whole: b'PK\x05\x06' + bytes(18),
           'folder': lambda whole: None}

@pytest.mark.parametrize('damage', DAMAGES.values(), ids=DAMAGES)
def test_what_is_no_checkpoint_is_named_and_the_one_before_it_is_tried(tmp_path, damage):
    saved(tmp_path/'run', 2)
    path = newest(tmp_path/'run')
    data = damage(path.read_bytes())
    path.unlink()
    path.mkdir() if data is None else path.write_bytes(data)
    (other := make_learner()).add_hook(Checkpoint(tmp_path/'other'))
    for read in lambda: other.load(tmp_path/'run'), lambda: other.fit(1, resume=tmp_path/'run'):
        with pytest.warns(UserWarning, match=f'{path.name} .*Trying the one before it'): read()
        assert other.state.epoch == 1
    with pytest.raises(BadCheckpoint, match=f'{path.name} is not a'): read_state(path)

def test_a_damaged_manifest_is_left_out(tmp_path):
    saved(tmp_path, 2)
    file = sorted(tmp_path.glob('*.json'))[-1]
    whole = json.loads(file.read_text())
    lacks_one = {k: v for k, v in whole.items() if k != 'step'}
    for note in '['*100_000, '[]', 'null', '{}', '{"run": 1}', '\xff', json.dumps(lacks_one):
        file.write_text(note, 'latin1')
        with pytest.warns(UserWarning, match=f'{file.name} is damaged.*Skipping'):
            assert [o['epoch'] for o in Folder(tmp_path).manifests()] == [1]
    (learn := make_learner()).load(file.with_suffix('.pt'))      # its state is whole
    assert learn.state.epoch == 2

def test_a_folder_whose_manifests_are_all_damaged_is_not_a_fresh_start(tmp_path):
    make_learner(hooks=[Checkpoint(tmp_path)]).fit(1)
    for o in tmp_path.glob('*.json'): o.write_text('{}')
    with pytest.warns(UserWarning, match='Skipping'), pytest.raises(BadCheckpoint, match='none of the 1 checkpoints'):
        make_learner(hooks=[Checkpoint(tmp_path)]).fit(1, resume=True)

# States

OURS = [('state',), ('history',), ('history', 'columns'), ('history', 'columns', 'values'), ('held',), ('provided',),
        ('loaders',), ('modules', 'model'), ('modules', 'model', 'state'), ('optimizers', ''), ('run',),
        ('run', 'train'), ('run', 'train', 'sums'), ('hooks',)]

def test_a_state_without_an_entry_or_with_one_of_another_type_is_named(tmp_path):
    "At the places of a checkpoint in mid-pass where the keys are ours; weights are as they were"
    def make():
        return make_learner(train_dl=shuffled(), valid_dl=shuffled(), metrics=[accuracy, Share()],
                            hooks=[CSVLogger(tmp_path/'a.csv'), EarlyStopping(), EMA(), GradAccum(2), OneCycle()])
    learn, path = make(), tmp_path/'a.pt'
    learn.fit(2, hooks=[stop_when(lambda learn: learn.history.n_steps == 8)])     # in an open window
    learn.save(path)
    other = make()
    for at, is_lost in product(OURS, (True, False)):
        state = inner = torch.load(path, weights_only=True)
        for k in at[:-1]: inner = inner[k]
        if is_lost: del inner[at[-1]]
        else: inner[at[-1]] = 3
        before = weights(other.model)
        with pytest.raises(ValueError): restore(other, state, Fit(), plan=True)     # BadCheckpoint is one
        if at[0] in ('modules', 'optimizers', 'run', 'loaders'): assert same(weights(other.model), before), at
    other.load(path)
    assert other.state.batch_idx == 3

# The folder's lock

def test_a_forked_process_does_not_keep_the_lock_of_its_parent(tmp_path):
    "As the workers of a killed training live on for seconds"
    lock = Lock(tmp_path)
    lock.acquire()
    here, there = socket.socketpair()
    if not (pid := os.fork()):
        here.close()        # a parent that fails ends this process, too
        said = 'taken'
        try: lock.acquire()
        except RuntimeError as e: said = str(e)
        there.send(said.encode())
        there.recv(1)
        os._exit(0)
    assert f'process {os.getpid()}' in here.recv(999).decode()
    lock.release()
    Lock(tmp_path).acquire()     # while the child lives
    here.send(b'.')
    assert os.waitpid(pid, 0)[1] == 0

def test_a_file_system_without_locks_is_named(tmp_path, monkeypatch):
    def flock(*args): raise OSError(95, 'Operation not supported')
    monkeypatch.setattr(fcntl, 'flock', flock)
    with pytest.warns(UserWarning, match='cannot be locked .Operation not supported'):
        (lock := Lock(tmp_path)).acquire()
    with pytest.raises(RuntimeError, match='this process'): Lock(tmp_path).acquire()
    lock.release()

# Programs

def test_a_program_is_not_read_unasked(tmp_path):
    "torch calls what the pickle of its sample inputs names, and evaluates the expressions in its graph"
    learn = make_learner()
    learn.export(tmp_path, example=torch.randn(2, 4))
    (tmp_path/'program.pt2').write_bytes(b'is not read')
    with pytest.raises(ValueError, match='trusted=True'): load_model(tmp_path)
    assert same(weights(load_model(tmp_path, make_learner().model)), weights(learn.model))
