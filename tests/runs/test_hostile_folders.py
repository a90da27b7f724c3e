"""Folders of runs and files of checkpoints from somebody else: nothing waits for ever, fills the memory, or is written
through a link. Each reader runs in a process with limits, where what goes wrong is an error"""
import json, os, random, resource, shutil, subprocess, sys

import pytest

from trainer_nb.runs.folder import RunFolder
from trainer_nb.save import Lock
from common import make_learner

pytestmark = pytest.mark.skipif(not hasattr(os, 'mkfifo'), reason='no pipes')

def bounded(code, *args, timeout=240):  # list of the lines that it prints
    "Run code with 6 GiB of memory at most, and `within(f)`, which gives a call ten seconds"
    head = ('import signal, sys, warnings; from pathlib import Path; import torch, trainer_nb.all as nb\n'
            'warnings.simplefilter("ignore"); torch.set_num_threads(1)\n'
            'def late(*_): raise TimeoutError("it does not end")\n'
            'signal.signal(signal.SIGALRM, late)\n'
            'def within(f, *args):\n'
            '    signal.alarm(10)\n'
            '    try: return f(*args)\n'
            '    except BaseException as e: return f"{type(e).__name__}: {e}"\n'
            '    finally: signal.alarm(0)\n')
    def limit(): resource.setrlimit(resource.RLIMIT_AS, (6*2**30, 6*2**30))
    res = subprocess.run([sys.executable, '-c', head + code, *map(str, args)], capture_output=True, text=True,
                         timeout=timeout, preexec_fn=limit, stdin=subprocess.DEVNULL)
    assert res.returncode == 0, res.stderr[-3000:]
    return res.stdout.splitlines()

def make_run(path, n=6):
    "A run that is over, as its files say"
    (path/'record').mkdir(parents=True)
    (path/'requests').mkdir()
    data = {'run.json': {'name': path.name, 'created': 1.7e9, 'settings': {'bs': 8}},
            'status.json': {'state': 'done', 'position': 'epoch 2', 'note': '', 'batch': n}}
    for name, o in data.items(): (path/name).write_text(json.dumps(o))
    rows = [{'kind': 'step', 'batch': i + 1, 'epoch': 0, 'train_loss': 1/(i + 1)} for i in range(n)]
    rows.append({'kind': 'epoch', 'batch': n, 'epoch': 0, 'train_loss': .4, 'valid_loss': .5, 'time_s': 1.})
    (path/'record/log.jsonl').write_text(''.join(json.dumps(o) + '\n' for o in rows))
    (path/'output.txt').write_text('out')
    return path

def swap(path, kind):
    "Put something else in the place of a file"
    path.unlink(missing_ok=True)
    if kind == 'pipe': os.mkfifo(path)
    elif kind == 'folder': path.mkdir()
    elif kind == 'hole':
        with open(path, 'wb') as f: f.truncate(10**12)
    else: path.symlink_to({'device': '/dev/zero', 'loop': path.name, 'link': '/etc/passwd'}[kind])

FILES = 'status.json', 'job.json', 'record/log.jsonl', 'output.txt'

LOOK = '''
top = Path(sys.argv[1])
table = within(nb.runs, top)
print(within(repr, table))
print('compared', within(lambda: len(nb.compare(f'{top}/*').sources)))
for path in sorted(top.iterdir()):
    run = nb.Run(path)
    for name in 'output', 'state', 'error', 'history':
        def look():
            o = getattr(run, name)
            return str(o() if callable(o) else o)
        print(path.name, name, within(look).replace('\\n', ' ')[:300])
'''

def looked_at(top):
    lines = bounded(LOOK, top)
    table = '\n'.join(lines[:[i for i, o in enumerate(lines) if o.startswith('compared')][0]])
    for o in top.iterdir(): assert o.name in table, (o.name, table)      # none hides another one
    bad = [o for o in lines if any(e in o for e in ('TimeoutError', 'MemoryError', 'SystemExit', 'root:'))]
    assert not bad, bad
    return lines

def test_no_pipe_device_or_endless_file_hides_the_other_runs(tmp_path):
    for i, name in enumerate(FILES):
        for kind in 'pipe', 'device', 'hole', 'link': swap(make_run(tmp_path/f'{kind}-{i}')/name, kind)
    make_run(tmp_path/'good')
    lines = looked_at(tmp_path)
    assert 'good output out' in lines

def test_nothing_is_written_through_a_link(tmp_path):
    "A lock, and temporary files under names that could be guessed"
    secret = tmp_path/'secret'
    secret.write_text('mine')
    path = make_run(tmp_path/'a')
    (path/f'.status.json.{os.getpid()}.tmp').symlink_to(secret)
    folder = RunFolder(path)
    folder.write('status.json', {'state': 'done'})
    assert folder.read('status.json') == {'state': 'done'}
    (path/'status.json').unlink()
    (path/'status.json').symlink_to(secret)
    folder.write('status.json', {'state': 'stopped'})
    assert folder.read('status.json') == {'state': 'stopped'} and not (path/'status.json').is_symlink()
    (path/'.lock').symlink_to(secret)
    with pytest.raises(OSError, match='it is not a file, but a link'): Lock(path).acquire()
    (path/'.lock').unlink()
    (path/'.lock').symlink_to(tmp_path/'new')       # nor is a file made there
    with pytest.raises(OSError): Lock(path).acquire()
    assert secret.read_text() == 'mine' and not (tmp_path/'new').exists()
    (path/'.lock').unlink()
    (path/'.lock').write_text('a list of mine')
    lock = Lock(path)
    lock.acquire()
    lock.release()
    assert (path/'.lock').read_text() == 'a list of mine'

# A campaign: seeded damage to folders and files, whatever it is

def damage(path, rand):
    "Change one file of a folder in a random way"
    files = [o for o in path.rglob('*') if o.is_file() and not o.is_symlink()]
    o, how = rand.choice(files), rand.choice('link pipe device loop folder hole cut flip deep types'.split())
    if how == 'cut': o.write_bytes(o.read_bytes()[:rand.randrange(o.stat().st_size + 1)])
    elif how == 'flip':
        data = bytearray(o.read_bytes() or b'x')
        for _ in range(rand.choice([1, 20])): data[rand.randrange(len(data))] ^= 1 << rand.randrange(8)
        o.write_bytes(data)
    elif how == 'deep': o.write_text(rand.choice(['[', '{"a":'])*10**6)
    elif how == 'types' and o.suffix == '.json':
        note = json.loads(o.read_text())
        note[rand.choice([*note])] = rand.choice([None, -1, 1e400, 'x', [], {}, [[]], True, 10**400])
        o.write_text(json.dumps(note))
    elif how != 'types': swap(o, how)

@pytest.mark.soak
def test_no_damage_hangs_or_grows_or_hides_others(tmp_path, n=100):
    rand, top, states = random.Random(n), tmp_path/'runs', tmp_path/'states'
    states.mkdir()
    make_learner(hooks=[]).save(tmp_path/'a.pt')
    whole = (tmp_path/'a.pt').read_bytes()
    for i in range(n):
        path = make_run(top/f'run-{i:03}')
        for _ in range(rand.choice([1, 1, 3])):
            before = (path/'run.json').read_bytes()
            damage(path, rand)
            if not (path/'run.json').is_file():     # else it is no run
                shutil.rmtree(path/'run.json') if (path/'run.json').is_dir() else (path/'run.json').unlink()
                (path/'run.json').write_bytes(before)
        (folder := states/f'{i:03}').mkdir()
        (folder/'a.pt').write_bytes(whole)
        damage(folder, rand)
    make_run(top/'good')
    assert 'good output out' in looked_at(top)
    lines = bounded('from trainer_nb.save.files import read_state\n'
                    'for o in sorted(Path(sys.argv[1]).iterdir()):\n'
                    '    print(f"{o.name}:", str(within(read_state, o/"a.pt"))[:200])',
                    states, timeout=600)
    found = [o for o in lines if o[:3].isdigit()]
    wrong = [o for o in found if not any(e in o for e in ('BadCheckpoint', 'FileNotFoundError', ': {'))]
    assert len(found) == n and not wrong, wrong
