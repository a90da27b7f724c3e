"""What a checkpoint or a run's folder holds is data: nothing in it is executed, no path leads out of it,
and no changed bit passes"""
import fcntl, hashlib, json, os, pickle, random, re, shutil, signal, sys, warnings, zipfile
from itertools import product

import pytest, torch

from common import Share, make_learner, same, shuffled, stop_when, told, weights
from trainer_nb.all import (
    AMP, Checkpoint, CSVLogger, EarlyStopping, EMA, GradAccum, LambdaHook, LRScheduler, MLflowLogger, OneCycle,
    TensorBoardLogger, accuracy
)
from trainer_nb.save.export import load_model
from trainer_nb.save.files import BadCheckpoint, Folder, Lock, read_state, write_state
from trainer_nb.save.shards import HOLE, write_parts
from trainer_nb.loop.fit import Fit
from trainer_nb.save.snapshot import capture, restore
from trainer_nb.save.states import host_copy

class Call:
    "Unpickled, it makes a file"
    def __init__(self, path): self.path = path
    def __reduce__(self): return os.mkdir, (str(self.path),)

def in_parts(folder, learn):
    "A checkpoint whose first weight is in a folder of parts; returns the path of its file"
    state = host_copy(capture(learn))
    sd = state['modules']['model']['state']
    w, sd['0.weight'] = sd['0.weight'], {HOLE: '0', 'shape': [8, 4], 'dtype': torch.float32, 'files': 1}
    folder.path.mkdir(exist_ok=True)
    parts = folder.path/f'.{folder.next(1).stem}.parts.1.tmp'
    write_parts({'0': w}, parts, 0)
    return folder.path/folder.put(state, {'run': 'a', 'step': 1, 'metric': None, 'processes': 1, 'in_epoch': False},
                                  parts)['file']

def ways(path):
    "All that read a checkpoint, each with a learner of its own"
    def by(f):
        learn = make_learner()
        f(learn)
        return learn
    return [lambda: by(lambda learn: learn.load(path)), lambda: by(lambda learn: learn.load(path.parent)),
            lambda: by(lambda learn: learn.fit(1, resume=path)),
            lambda: by(lambda learn: learn.fit(1, resume=True, hooks=[Checkpoint(path.parent)]))]

def rewrite(path, change):
    "Change a manifest, or any JSON, where it is"
    note = json.loads(path.read_text())
    change(note)
    path.write_text(json.dumps(note))

def trust(file):
    "Have the manifest vouch for a file that was changed"
    data = file.read_bytes()
    rewrite(file.with_suffix('.json'), lambda o: o.update(size=len(data), sha256=hashlib.sha256(data).hexdigest()))

def trust_parts(file):
    parts = {o.name: [o.stat().st_size, hashlib.sha256(o.read_bytes()).hexdigest()]
             for o in file.with_suffix('.parts').iterdir() if o.is_file()}
    rewrite(file.with_suffix('.json'), lambda o: o.update(parts=parts))

def test_a_pickle_in_a_state_or_a_part_is_not_called(tmp_path):
    "Not even what the program trusts, with a checksum that is right"
    path = in_parts(Folder(tmp_path/'run'), make_learner())
    part = path.with_suffix('.parts')/'0.pt'
    whole = path.read_bytes()
    with torch.serialization.safe_globals([os.mkdir]):
        for file in path, part:
            path.write_bytes(whole)
            write_state(file, {'parts': Call(tmp_path/'ran')})
            trust(path)
            trust_parts(path)
            with pytest.raises(BadCheckpoint, match='it would call posix.mkdir'): make_learner().load(path)
    assert not (tmp_path/'ran').exists()

def test_paths_do_not_lead_out_of_the_folder(tmp_path):
    "By a manifest that names a part elsewhere, and by links in the place of a part, its folder, and the state"
    learn = make_learner()
    path = in_parts(Folder(tmp_path/'run'), learn)
    parts, note = path.with_suffix('.parts'), path.with_suffix('.json')
    keep = shutil.copytree(tmp_path/'run', tmp_path/'keep')
    secret = keep/parts.name/'0.pt'
    def named(name):
        def f(): rewrite(note, lambda o: o['parts'].update({name: o['parts']['0.pt']}))
        return f
    def linked(o, to):
        def f():
            shutil.rmtree(o) if o.is_dir() else o.unlink()
            o.symlink_to(to)
        return f
    for attack in (named(f'../../keep/{parts.name}/0.pt'), named(str(secret)), named('a\0b'),
                   linked(parts/'0.pt', secret), linked(parts, secret.parent), linked(path, keep/path.name),
                   linked(note, keep/note.name)):
        attack()
        for read in ways(path)[:2]:
            with told() as said, pytest.raises(BadCheckpoint) as e: read()
            assert 'leads out of' in str(e.value) + ''.join(said)
        shutil.rmtree(path.parent)
        shutil.copytree(keep, path.parent)
    assert same(weights(ways(path)[0]().model), weights(learn.model))

def test_a_hole_says_what_is_expected_and_nothing_else(tmp_path):
    path = in_parts(Folder(tmp_path/'run'), make_learner())
    for hole in ({'files': -1}, {'shape': [8, 'x']}, {'shape': [9, 4]}, {'shape': [9999, 4]}, {'dtype': 'float32'},
                 {HOLE: 1}, {'path': '../x'}):
        state = torch.load(path, weights_only=True)
        (known := state['modules']['model']['state']['0.weight']).update(hole)
        write_state(path.with_name('changed'), state)
        shutil.copytree(path.parent, other := tmp_path/f'other-{len(str(hole))}-{[*hole][0]}')
        os.replace(other/'changed', other/path.name)
        trust(other/path.name)
        with pytest.raises(BadCheckpoint): make_learner().load(other/path.name)
        assert known.items() >= hole.items()

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
def test_no_flipped_bit_of_a_saved_file_passes(tmp_path, n):
    "Anywhere in a file of `learn.save`, which no manifest vouches for"
    learn, other, path = make_learner(), make_learner(), tmp_path/'one.pt'
    learn.fit(1)
    learn.save(path)
    for i in flips(path, n, random.Random(n)):
        with pytest.raises(BadCheckpoint): other.load(path)
    other.load(path)
    assert same(weights(other.model), weights(learn.model)) and torch.load(path, weights_only=True)['format'] == 1

OTHERS = [b'<!DOCTYPE html><html><body>404</body></html>', pickle.dumps({'a': 1}), b'PK\x05\x06' + bytes(18)]

@pytest.mark.parametrize('data', [*OTHERS, None], ids=['page', 'pickle', 'zip', 'folder'])
def test_what_is_no_checkpoint_is_named_and_the_one_before_it_is_tried(tmp_path, data):
    make_learner().fit(2, hooks=[check := Checkpoint(tmp_path/'run')])
    newest = tmp_path/'run'/check.folder.manifests()[-1]['file']
    newest.unlink()
    newest.mkdir() if data is None else newest.write_bytes(data)
    for is_trusted in [False, True] if data else [False]:
        if is_trusted: trust(newest)
        with pytest.warns(UserWarning, match=f'{newest.name} .*Trying the one before it'):
            make_learner().load(tmp_path/'run')
        with pytest.warns(UserWarning, match='Trying the one before it'): make_learner().fit(2, resume=tmp_path/'run')
    with pytest.raises(BadCheckpoint, match=f'{newest.name} is not a'): read_state(newest)

def test_a_damaged_manifest_is_left_out(tmp_path):
    folder = Folder(tmp_path)
    for step in 1, 2: folder.put({}, {'run': 'a', 'step': step, 'metric': None})
    file = sorted(tmp_path.glob('*.json'))[-1]
    whole = json.loads(file.read_text())
    for note in ('['*100_000, '[]', 'null', '{}', '{"run": 1}', '\xff', json.dumps({**whole, 'size': 'x'}),
                 json.dumps({**whole, 'path': '/etc'})):
        file.write_text(note, 'latin1')
        with pytest.warns(UserWarning, match=f'{file.name} is damaged.*Skipping'):
            assert [o['step'] for o in Folder(tmp_path).manifests()] == [1]
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

# Fuzz, with fixed seeds

# names of audit events; those that were heard, while somebody listens
WATCHED, HEARD = ('os.', 'subprocess.', 'shutil.', 'socket.', 'ctypes.', 'open'), None

def _audit(event, args):
    if HEARD is not None and event.startswith(WATCHED): HEARD.append((event, args))

def trap(*args):
    "What must not be called"
    HEARD.append(('trap', args))
    return {}

@pytest.fixture
def heard():
    "Audit events of this process, from here on; hooks cannot be taken off"
    global HEARD
    if not hasattr(sys, '_checkpoint_safety'): sys.addaudithook(_audit)
    sys._checkpoint_safety = True
    HEARD = []
    yield HEARD
    HEARD = None

def zipped(path, pickled, name='data.pkl'):
    "A file as torch writes it, with this pickle and a checksum that is right"
    writer = torch._C.PyTorchFileWriter(str(path))
    for k, v in {name: pickled, 'byteorder': b'little', 'data/0': bytes(32)}.items(): writer.write_record(k, v, len(v))
    writer.write_end_of_file()
    whole = path.read_bytes()
    path.write_bytes(whole + b'\ntrainer_nb sha256 ' + hashlib.sha256(whole).hexdigest().encode() + b'\n')

NAMES = {'os': 'system mkdir popen', 'posix': 'system', 'builtins': 'eval exec getattr __import__ open',
         '__builtin__': 'eval getattr set', 'subprocess': 'Popen', 'shutil': 'rmtree', 'torch.hub': 'load',
         'torch.distributed.checkpoint.metadata': 'os.system os.mkdir', 'numpy': 'load', '_codecs': 'encode',
         'torch.serialization': 'os.mkdir load _get_layout', 'torch': 'load hub.load os.mkdir FloatStorage float32',
         'collections': 'OrderedDict abc.sys.modules', 'functools': 'partial', 'operator': 'attrgetter methodcaller',
         'torch._utils': '_rebuild_tensor_v2 _rebuild_parameter_with_state _import_dotted_name',
         'torch._tensor': '_rebuild_from_type_v2', 'trainer_nb.save.files': 'shutil.rmtree', __name__: 'trap'}
NAMES = [(m, n) for m, names in NAMES.items() for n in names.split()]

def crafted(rand, path):
    "A pickle that looks up a name in some way and calls it in some way, among plain things"
    text = lambda s: b'\x8c' + bytes([len(s.encode())]) + s.encode() if rand.random() < .5 else b'X' + len(
        s.encode()).to_bytes(4, 'little') + s.encode()
    (module, name), arg = rand.choice(NAMES), rand.choice([text(str(path)), text('echo x'), b'}', b'K\x01', b'N'])
    found = rand.choice([f'c{module}\n{name}\n'.encode(), text(module) + text(name) + b'\x93',
                         b'(' + arg + f'i{module}\n{name}\n'.encode(), b'\x82\x01', text(f'{module}.{name}') + b'Q',
                         f'P{module}.{name}\n'.encode()])
    call = rand.choice([arg + b'\x85R', b'(' + arg + b'tR', arg + b'\x85\x81', b'}' + arg + b'\x85}\x92', arg + b'b',
                        b'}' + text('x') + arg + b'sb', b'q\x000h\x00' + arg + b'\x85R', b'0(' + found + arg + b'o',
                        b''])
    return rand.choice([b'\x80\x02', b'\x80\x04', b'\x80\x05',
                        b'']) + b'}' + text('format') + b'K\x01s' + text('x') + found + call + b's.'

@pytest.mark.filterwarnings("ignore:Detected pickle protocol", "ignore:invalid escape sequence")
@pytest.mark.parametrize('n', [80, pytest.param(6000, marks=pytest.mark.soak)])
def test_fuzz_pickles(tmp_path, heard, n):
    """Names, opcodes, and a state's own pickle with bytes changed: plain data or BadCheckpoint,
    and nothing was called, though the program trusts it"""
    rand, path, outcomes = random.Random(n), tmp_path/'a.pt', {}
    write_state(path, {'w': torch.arange(8.), 'lr': .1, 'rows': [{'a': 1, 'b': (2, None)}]})
    own = torch.PyTorchFileReader(str(path)).get_record('data.pkl')
    with torch.serialization.safe_globals([trap, os.mkdir, eval]):
        for i in range(n):
            data = bytearray(own)
            for _ in range(rand.randint(1, 4)):
                data[rand.randrange(len(data))] = rand.choice([rand.randrange(256), *b'cRbio\x81\x93Q.'])
            zipped(path, crafted(rand, tmp_path/'ran') if i % 2 else bytes(data))
            del heard[:]
            try: kind = type(read_state(path)).__name__
            except BadCheckpoint as e:
                known = (o for o in ('it would call', 'cannot be read') if o in str(e))
                kind = f'BadCheckpoint: {next(known, "other")}'
            outcomes[kind] = outcomes.get(kind, 0) + 1
            assert not [(e, a) for e, a in heard if e != 'open' or a[0] != str(path) and 'w' in str(a[1])], (i, heard)
    print(n, outcomes)      # `pytest -rP` shows it
    assert outcomes.keys() <= {'dict', 'BadCheckpoint: it would call', 'BadCheckpoint: cannot be read',
                               'BadCheckpoint: other'}
    assert not (tmp_path/'ran').exists()

def mutated(folder, rand):
    "Something that happens to a folder; returns what"
    files = sorted(o for o in folder.rglob('*') if o.is_file() and o.name != '.lock')
    o, other, kind = rand.choice(files), rand.choice(files), rand.choice(['bit', 'byte', 'cut', 'longer', 'zeros',
                                                                          'gone', 'swapped', 'copied', 'link', 'entry',
                                                                          'folder', 'hole', 'garbage'])
    data = bytearray(o.read_bytes())
    i = rand.randrange(len(data))
    if kind == 'bit': data[i] ^= 1 << rand.randrange(8)
    if kind == 'byte': data[i] = rand.randrange(256)
    if kind == 'cut': data = data[:i]
    if kind == 'longer': data += bytes(rand.randrange(256) for _ in range(20))
    if kind == 'zeros': data[i:i + 500] = bytes(len(data[i:i + 500]))
    if kind == 'hole': del data[i:i + 1 + rand.randrange(100)]
    if kind == 'garbage': data = rand.choice(OTHERS)
    if kind == 'copied': data = other.read_bytes()
    if kind == 'swapped':
        o.write_bytes(other.read_bytes())
        other.write_bytes(data)
    elif kind in ('gone', 'folder', 'link'):
        o.unlink()
        if kind == 'folder': o.mkdir()
        if kind == 'link':
            o.symlink_to(rand.choice(['/etc/passwd', other, '..', o.name, folder.parent/'keep'/o.relative_to(folder)]))
    elif kind == 'entry' and o.suffix == '.json':
        note = json.loads(bytes(data))
        key, value = rand.choice([*note, 'path']), rand.choice([None, -1, 10**30, 1.5, 'x', '../../x', [], {}, [[]],
                                                                {'../0.pt': [1, 'x']}])
        o.write_text(json.dumps({**note, key: value}))
        return kind, o.name, key, value
    else: o.write_bytes(data)
    return kind, o.name

@pytest.mark.parametrize('n', [25, pytest.param(560, marks=pytest.mark.soak)])
def test_fuzz_folders(tmp_path, heard, n):
    """A changed folder gives the state of one of its checkpoints, bit for bit, or an error that says what is wrong;
    nothing is read or written elsewhere"""
    rand, learn, outcomes = random.Random(n), make_learner(), {}
    for epoch in 1, 2:
        learn.fit(1)
        in_parts(Folder(tmp_path/'keep'), learn)
    whole = {}
    for o in sorted((tmp_path/'keep').glob('*.pt')):
        (one := make_learner()).load(o)
        moments = one.opt.state_dict()['state'][0]['exp_avg']
        whole[one.state.optimizer_step] = weights(one.model), one.history.steps, moments
    assert len(whole) == 2
    for i in range(n):
        shutil.rmtree(tmp_path/'run', ignore_errors=True)
        shutil.copytree(tmp_path/'keep', tmp_path/'run')
        what = mutated(tmp_path/'run', rand)
        source = rand.choice([tmp_path/'run', tmp_path/'run/checkpoint-00002-step-1.pt'])
        other = make_learner()
        del heard[:]
        with warnings.catch_warnings():
            warnings.simplefilter('ignore')
            try: other.load(source)
            except (BadCheckpoint, FileNotFoundError) as e: kind = type(e).__name__
            else:
                kind = f'{[*whole].index(other.state.optimizer_step) + 1}. checkpoint'
                was = whole[other.state.optimizer_step]
                assert same(weights(other.model), was[0]) and other.history.steps == was[1], (i, what)
                assert torch.equal(other.opt.state_dict()['state'][0]['exp_avg'], was[2]), (i, what)
        outcomes[kind] = outcomes.get(kind, 0) + 1
        opened = [os.path.realpath(a[0]) for e, a in heard if e == 'open' and isinstance(a[0], (str, os.PathLike))
                  and not str(a[0]).endswith(('.py', '.pyc', '.so'))]
        assert not [o for o in opened if not o.startswith(str((tmp_path/'run').resolve()))], (i, what, opened)
        assert not [e for e, a in heard if e != 'open' and e not in ('os.scandir', 'os.listdir')], (i, what, heard)
    print(n, outcomes)

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
