"""Folders of runs from somebody else: looking executes nothing, follows no link, and a damaged file hides no other run

What could wait for ever or fill the memory runs in a process with limits, where what goes wrong is an error"""
import json, os, re, resource, shutil, subprocess, sys

import pytest, torch

from test_compare import append, lines_of, made, make_run
from trainer_nb.all import Run, attach, compare, runs
from trainer_nb.runs.engine import now_here
from trainer_nb.runs.folder import answer, ask, pending
from trainer_nb.runs.live import View
from trainer_nb.runs.table import main
from trainer_nb.save import Lock

pytestmark = pytest.mark.skipif(not hasattr(os, 'mkfifo'), reason='no pipes')
HUGE = '1' + '0'*400

class Evil:
    "Unpickled, it makes a folder"
    def __init__(self, path): self.path = str(path)
    def __reduce__(self): return os.mkdir, (self.path,)

def swap(path, kind):
    "Put something else in the place of a file"
    path.unlink(missing_ok=True)
    if kind == 'pipe': os.mkfifo(path)
    elif kind == 'hole':
        with open(path, 'wb') as f: f.truncate(10**12)
    else: path.symlink_to({'device': '/dev/zero', 'link': '/etc/passwd'}[kind])

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


def test_no_pipe_device_or_endless_file_hides_the_other_runs(tmp_path):
    "With 6 GiB of memory at most, and ten seconds for each look"
    places = [(kind, name) for kind in ('pipe', 'device', 'hole', 'link')
              for name in ('status.json', 'job.json', 'record/log.jsonl', 'output.txt')]
    for kind, name in places:
        folder = make_run(tmp_path/f'{kind}-{name.replace("/", "-")}', made(1))
        swap(folder.path/name, kind)
    (make_run(tmp_path/'good', made(1)).path/'output.txt').write_text('out')
    def limit(): resource.setrlimit(resource.RLIMIT_AS, (6*2**30, 6*2**30))
    res = subprocess.run([sys.executable, '-c', LOOK, tmp_path], capture_output=True, text=True, timeout=240,
                         preexec_fn=limit, stdin=subprocess.DEVNULL)
    assert res.returncode == 0, res.stderr[-3000:]
    table, _, rest = res.stdout.partition('compared')
    assert 'good output out' in rest and all(o.name in table for o in tmp_path.iterdir()), table
    codes = re.findall('exit code (.*)', rest)
    assert len(codes) == 4*(len(places) + 1) and {*codes} <= {'0', '1'}, codes
    assert not re.search('TimeoutError|MemoryError|SystemExit|root:', res.stdout), res.stdout

def test_looking_executes_nothing_and_shows_no_markup(tmp_path):
    bad = '<img src=x onerror=alert(1)>\x1b[31m'
    folder = make_run(tmp_path/'a', made(1, metric=bad))
    for name in 'program.pt', 'result.pt': torch.save(Evil(tmp_path/'executed'), folder.path/name)
    folder.write('run.json', {'name': bad, 'settings': {bad: bad, 'lr': 1}, 'n_procs': 'x', 'first_row': -1,
                              'created': 'x'})
    folder.write('status.json', {'state': 'done', 'note': bad, 'error': {'module': 'os', 'type': 'mkdir'}})
    make_run(tmp_path/'b', made(2), settings={'lr': bad})
    run = attach(folder.path)
    assert run.status == 'done' and run.history.n_steps == 300
    run.wait(1)
    for shown in compare(tmp_path), runs(tmp_path):
        html = shown._repr_html_()
        assert '<img src=x' not in html and '&lt;img src=x' in html and '\x1b' not in repr(shown)
    assert not (tmp_path/'executed').exists()

def test_no_link_leads_out_of_a_folder(tmp_path):
    "Neither where it is read, nor where it is written"
    (elsewhere := tmp_path/'elsewhere').mkdir()
    (elsewhere/'log.jsonl').write_text(lines_of(made(9)))
    (secret := elsewhere/'secret').write_text('mine')
    folder = make_run(tmp_path/'a', made(1), 'running')
    assert Run(folder.path).history.n_steps == 300 and ask(folder, 'stop') in pending(folder)
    for name in 'record', 'requests':
        shutil.rmtree(folder.path/name)
        (folder.path/name).symlink_to(elsewhere)
    name = f'{1:020d}-{1:08x}.json'
    (elsewhere/name).write_text('{"what": "stop"}')
    assert Run(folder.path).history.n_steps == 0 and pending(folder) == []
    for f, *args in (ask, folder, 'stop'), (answer, folder, name), (folder.file, f'requests/{name}'):
        with pytest.raises(ValueError, match='leads out of'): f(*args)
    (folder.path/'record').unlink()
    (folder.path/'record').mkdir()
    (folder.path/'record'/'log.jsonl').symlink_to(elsewhere/'log.jsonl')
    assert Run(folder.path).history.n_steps == 0
    (folder.path/f'.status.json.{os.getpid()}.tmp').symlink_to(secret)       # names that could be guessed
    (folder.path/'status.json').unlink()
    (folder.path/'status.json').symlink_to(secret)
    folder.write('status.json', {'state': 'done'})
    assert folder.read('status.json') == {'state': 'done'} and not (folder.path/'status.json').is_symlink()
    for target in secret, elsewhere/'new':
        (folder.path/'.lock').symlink_to(target)
        with pytest.raises(OSError): Lock(folder.path).acquire()
        (folder.path/'.lock').unlink()
    (folder.path/'.lock').write_text('a list of mine')
    (lock := Lock(folder.path)).acquire()
    lock.release()
    assert (folder.path/'.lock').read_text() == 'a list of mine' and secret.read_text() == 'mine'
    assert {o.name for o in elsewhere.iterdir()} == {'log.jsonl', 'secret', name}

STATUS = 'heartbeat', 'pid', 'started', 'batch', 'end', 'epoch', 'end_epoch', 'rate', 'batch_s', 'valid_idx', 'host'
TEXTS = '[]', '{"state": {}}', '{"state": "running", "pid": "x"}', '{"state": "running", "pid": -1}', '\0'

def test_a_damaged_status_hides_no_other_run(tmp_path):
    for name in STATUS:
        for huge in HUGE, '1e400', '"x"':
            status = {'state': 'running', **now_here(), 'heartbeat': 2e9, 'end': 7, 'training': True, name: 'HUGE'}
            text = json.dumps(status).replace('"HUGE"', huge)
            (make_run(tmp_path/f'{name}-{huge[:3]}', made(1)).path/'status.json').write_text(text)
    for i, text in enumerate(TEXTS): (make_run(tmp_path/f'{i}', made(1)).path/'status.json').write_text(text)
    infos = [f'{{"{k}": {v}}}' for k in ('created', 'first_batch', 'first_row') for v in (HUGE, '1e999', '[]')]
    for i, text in enumerate([*infos, '{"settings": ' + '{"a":'*900 + '1' + '}'*901]):
        (make_run(tmp_path/f'info-{i}', made(1)).path/'run.json').write_text(text)
    make_run(tmp_path/'good', made(9))
    rows = {o['run']: o for o in compare(f'{tmp_path}/*').values}
    assert len(rows) == len(runs(tmp_path)) == len([*tmp_path.iterdir()]) and rows['good']['status'] == 'done'
    assert all(o['batches'] == 300 for k, o in rows.items() if k[:4] != 'info') and 'good' in repr(runs(tmp_path))
    for path in tmp_path.iterdir(): attach(path)
    assert all(Run(tmp_path/f'{i}').status in ('missing', 'died', 'unreachable') for i in range(len(TEXTS)))
    for path in tmp_path.iterdir(): shutil.rmtree(path)

@pytest.mark.parametrize('error, expected', [
    ('text', RuntimeError), ({'module': 'subprocess', 'type': 'Popen', 'args': [['touch', 'oops']]}, RuntimeError),
    ({'module': 'builtins', 'type': 'KeyError', 'args': ['\x1b[2Jx', 3], 'traceback': '\x1b', 'notes': 5}, KeyError)])
def test_what_a_folder_says_of_its_error_is_plain(error, expected, tmp_path, capsys):
    "Escape sequences do not reach the terminal, and `wait` raises nothing that ends this process"
    folder = make_run(tmp_path/'a', made(1))
    folder.write('status.json', {'state': 'failed', 'note': '\x1b[2J', 'error': error})
    run = attach(folder.path)
    for command in 'status', 'stop': main([command, str(folder.path)])
    with pytest.raises(expected) as e: run.wait(1)
    assert type(e.value) is expected
    seen = [capsys.readouterr().out, repr(run), str(run.state), str(run.error), str(e.value), str(e.value.__cause__)]
    assert not [o for o in seen if '\x1b' in o]

LINES = [*(f'{{"kind": "{kind}", "batch": 301, "epoch": V, "step": V, "time_s": V, "valid_loss": V, "train_loss": V}}'
           for kind in ('valid', 'epoch', 'step', 'mark')),
         '{"kind": "valid", "batch": V, "valid_loss": 1.0}', '{"kind": "flag", "batch": V, "text": V}',
         'V', '{"half a li', '{"kind": "epoch", "batch": 300}', '{"kind": "valid", "batch": 300}', '[{"a":'*10**5,
         '{"kind": "steps", "batch": V, "after": V, "columns": {"train_loss": "AAAAAAAA8D8="}}',
         '{"kind": "steps", "batch": 301, "after": [V, V, 0], "columns": {"train_loss": V, "a": "AA"}}']

@pytest.mark.parametrize('v', [HUGE, '-1e308', '[]', '1' + '0'*15, '-1', '"x"', 'null'], ids=range(7))
def test_a_damaged_record_can_be_looked_at(v, tmp_path, capsys):
    parent = {'path': 5, 'batch': v, 'name': '\x1b', 'differs': [{}]}
    folder = make_run(tmp_path/'a', made(1), first_row='x', first_batch=[], versions=[], settings='s', parent=parent)
    append(folder, *(o.replace('V', v) for o in LINES))
    damaged = {'rate': 'x', 'end_epoch': '\x1b', 'batch': [], 'valid_idx': {}, 'end': 'e', 'epoch': {}, 'position': 5}
    for state, status in ('running', damaged), ('done', {}), ('failed', damaged):
        folder.write('status.json', {**now_here(), 'state': state, **status})
        run = attach(folder.path)
        view = View(run.folder, run._tail)
        view.look()
        view.update()
        shown = view.status().text() + view.picture()[1]
        assert '\x1b' not in shown + capsys.readouterr().out
    assert len(runs(tmp_path).rows()) == 2
    for x in 'step', 'batch', 'time':
        c = compare(tmp_path, x=x)
        assert repr(c) and not re.search('nan|inf', c.chart().svg())
        assert len(c.values) == 1 and c.values[0]['batches'] >= 300     # the other lines are read
