"""What a checkpoint holds is data: nothing in it is executed, no path leads out of its folder, and what is damaged is
found before it is used"""
import json, os, pickle, random, time
from multiprocessing import get_context

import pytest, torch

from common import make_learner, same, told, weights
from trainer_nb.all import Checkpoint
from trainer_nb.save.files import BadCheckpoint, Folder, Lock

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

def test_a_forked_process_does_not_keep_the_lock_of_its_parent(tmp_path):
    "As the workers of a killed training live on for seconds"
    def live():
        begun.set()
        time.sleep(60)
    lock, begun = Lock(tmp_path), get_context('fork').Event()
    lock.acquire()
    child = get_context('fork').Process(target=live)
    child.start()
    assert begun.wait(60)
    lock.release()
    Lock(tmp_path).acquire()
    child.kill()
