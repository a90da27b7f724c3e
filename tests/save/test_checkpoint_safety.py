"""What a checkpoint holds is data: nothing in it is executed, no path leads out of its folder, and what is damaged is
found before it is used"""
import json, os, pickle, random, socket
from itertools import product

import pytest, torch

from common import Share, make_learner, same, shuffled, stop_when, told, weights
from trainer_nb.all import CSVLogger, Checkpoint, EarlyStopping, EMA, GradAccum, OneCycle, accuracy
from trainer_nb.loop.fit import Fit
from trainer_nb.save.files import BadCheckpoint, Folder, Lock
from trainer_nb.save.state import restore

def saved(folder, n_epochs=1):
    "The newest checkpoint of a folder, and the learner that wrote it"
    learn = make_learner(hooks=[Checkpoint(folder, monitor='train_loss')])
    learn.fit(n_epochs)
    return max(folder.glob('*.pt')), learn

class Call:
    "Unpickled, it makes a folder"
    def __init__(self, path): self.path = path
    def __reduce__(self): return os.mkdir, (str(self.path),)

def test_a_pickle_in_a_checkpoint_is_not_called(tmp_path):
    (path, _), ran = saved(tmp_path/'run'), tmp_path/'ran'
    torch.save({**torch.load(path, weights_only=True), 'hooks': Call(ran)}, path)
    learn = make_learner()
    before = weights(learn.model)
    for read in [lambda: learn.load(path), lambda: learn.load(path.parent), lambda: learn.fit(2, resume=path),
                 lambda: learn.load_best(path.parent), lambda: learn.rewind(1, folder=path.parent),
                 lambda: learn.fit(2, resume=True, hooks=[Checkpoint(path.parent)])]:
        with told(), pytest.raises(BadCheckpoint): read()
        assert not ran.exists() and same(before, weights(learn.model))
    torch.load(path, weights_only=False)
    assert ran.exists()         # it would have been

def test_links_do_not_lead_out_of_the_folder(tmp_path):
    "In the place of a state and of its manifest"
    path, _ = saved(tmp_path/'run')
    for o in path, path.with_suffix('.json'):
        o.rename(tmp_path/o.name)
        o.symlink_to(tmp_path/o.name)
        with told() as said, pytest.raises(BadCheckpoint): make_learner().load(path.parent)
        assert 'a link' in said[0]
        (tmp_path/o.name).replace(o)
    make_learner().load(path.parent)

# Files that are something else, or were changed

@pytest.mark.parametrize('n', [20, pytest.param(300, marks=pytest.mark.soak)])
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
        else: assert same(weights(other.model), weights(learn.model)) and other.history.steps == learn.history.steps, i
    assert n_found > .7*n

def test_the_one_before_a_damaged_checkpoint_is_tried(tmp_path):
    path, _ = saved(tmp_path, 2)
    for data in b'', path.read_bytes()[:-99], pickle.dumps({'a': 1}), b'PK\x05\x06' + bytes(18):
        path.write_bytes(data)
        for read in lambda o: o.load(tmp_path), lambda o: o.fit(1, resume=tmp_path):
            other = make_learner()
            with pytest.warns(UserWarning, match=f'{path.name} is not a .*Trying the one before'): read(other)
            assert other.state.epoch == 1, data[:9]

def test_a_damaged_manifest_is_left_out(tmp_path):
    path, _ = saved(tmp_path, 2)
    file = path.with_suffix('.json')
    note = json.loads(file.read_text())
    del note['step']
    for text in '['*100_000, '[]', 'null', '{"run": 1}', '\xff', json.dumps(note):
        file.write_text(text, 'latin1')
        with pytest.warns(UserWarning, match=f'{file.name} is damaged'):
            assert [o['epoch'] for o in Folder(tmp_path).manifests()] == [1]
    (learn := make_learner()).load(path)      # its state is whole
    assert learn.state.epoch == 2
    for o in tmp_path.glob('*.json'): o.write_text('{}')
    with told(), pytest.raises(BadCheckpoint, match='none of the 2 checkpoints'):       # no fresh start
        make_learner(hooks=[Checkpoint(tmp_path)]).fit(1, resume=True)

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
        try: lock.acquire()
        except RuntimeError as e: there.send(str(e).encode())
        there.recv(1)
        os._exit(0)
    there.close()
    assert f'process {os.getpid()}' in here.recv(999).decode()
    lock.release()
    Lock(tmp_path).acquire()     # while the child lives
    here.close()
    assert os.waitpid(pid, 0)[1] == 0
