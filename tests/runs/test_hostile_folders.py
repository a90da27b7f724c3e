"""Folders of runs from somebody else: nothing waits for ever, fills the memory, or is written through a link

What reads them runs in a process with limits, where what goes wrong is an error"""
import os, resource, subprocess, sys

import pytest

from test_compare import made, make_run
from trainer_nb.runs.folder import RunFolder
from trainer_nb.save import Lock

pytestmark = pytest.mark.skipif(not hasattr(os, 'mkfifo'), reason='no pipes')

LOOK = '''
import signal, sys, warnings
from pathlib import Path
import torch, trainer_nb.all as nb
from trainer_nb.runs import main
warnings.simplefilter("ignore")
torch.set_num_threads(1)
def late(*_): raise TimeoutError("it does not end")
signal.signal(signal.SIGALRM, late)
def within(f, *args):
    signal.alarm(10)
    try: return f(*args)
    except BaseException as e: return f"{type(e).__name__}: {e}"
    finally: signal.alarm(0)
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
    for command in ['status'], ['status', '--json'], ['tail'], ['tail', '--json']:
        print(path.name, 'exit code', within(main, [command[0], str(path), *command[1:]]))
'''

def looked_at(top):     # list of the lines that it prints
    "Look at the runs in a folder with 6 GiB of memory at most, and ten seconds for each look"
    def limit(): resource.setrlimit(resource.RLIMIT_AS, (6*2**30, 6*2**30))
    res = subprocess.run([sys.executable, '-c', LOOK, top], capture_output=True, text=True, timeout=240,
                         preexec_fn=limit, stdin=subprocess.DEVNULL)
    assert res.returncode == 0, res.stderr[-3000:]
    return res.stdout.splitlines()

def run_at(path):
    "A run that is over, as its files say"
    make_run(path, made(1))
    (path/'output.txt').write_text('out')
    return path

def swap(path, kind):
    "Put something else in the place of a file"
    path.unlink(missing_ok=True)
    if kind == 'pipe': os.mkfifo(path)
    elif kind == 'hole':
        with open(path, 'wb') as f: f.truncate(10**12)
    else: path.symlink_to({'device': '/dev/zero', 'link': '/etc/passwd'}[kind])

FILES = 'status.json', 'job.json', 'record/log.jsonl', 'output.txt'

def test_no_pipe_device_or_endless_file_hides_the_other_runs(tmp_path):
    for i, name in enumerate(FILES):
        for kind in 'pipe', 'device', 'hole', 'link': swap(run_at(tmp_path/f'{kind}-{i}')/name, kind)
    run_at(tmp_path/'good')
    lines = looked_at(tmp_path)
    assert 'good output out' in lines
    table = '\n'.join(lines[:[i for i, o in enumerate(lines) if o.startswith('compared')][0]])
    for o in tmp_path.iterdir(): assert o.name in table, (o.name, table)      # none hides another one
    codes = [o.split('exit code ')[1] for o in lines if 'exit code' in o]
    assert len(codes) == 4*(len(FILES)*4 + 1) and {*codes} <= {'0', '1'}, codes
    bad = [o for o in lines if any(e in o for e in ('TimeoutError', 'MemoryError', 'SystemExit', 'root:'))]
    assert not bad, bad

def test_nothing_is_written_through_a_link(tmp_path):
    "A lock, and temporary files under names that could be guessed"
    secret = tmp_path/'secret'
    secret.write_text('mine')
    path = run_at(tmp_path/'a')
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
