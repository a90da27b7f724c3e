"The command `python -m trainer_nb`: what it prints, its exit codes, and that looking changes nothing"
import json, os, subprocess, sys, threading

import pytest

from common import Slow
from test_compare import append, made, make_run
from test_runs import trainer
from trainer_nb.runs.table import main

KEYS = ('run folder state note is_over epochs_done end_epoch batches_done end_batch left_s recent last_epoch '
        'best_epoch created settings error').split()

def said(capsys, *args):
    "(exit code, what JSON it prints)"
    code, out = main([*map(str, args), '--json']), capsys.readouterr().out
    return code, [json.loads(line, parse_constant=pytest.fail) for line in out.splitlines()]

def python(*args):
    return subprocess.run([sys.executable, '-m', 'trainer_nb', *map(str, args)], capture_output=True, text=True)

def seen(path): return {o: (o.lstat().st_mtime_ns, o.lstat().st_size) for o in path.rglob('*')}

@pytest.mark.parametrize('state, code, waited', [
    ('done', 0, 0), ('stopped', 0, 4), ('died', 1, 1), ('missing', 1, 1), ('running', 0, 3)])
def test_status_says_how_a_run_is(state, code, waited, tmp_path, capsys):
    folder = make_run(tmp_path/'a', made(1), 'running' if state in ('died', 'missing') else state, created=5.)
    status = {**folder.read('status.json'), 'end': 1000, 'rate': 50., 'end_epoch': 9, 'error': {'traceback': 'x'*9999}}
    folder.write('status.json', {**status, 'started': 7., 'heartbeat': 0} if state == 'died' else status)
    if state == 'missing': (folder.path/'status.json').write_text('{"state": "run')
    append(folder, '{"kind": "epoch", "batch": 300, "epoch": 5, "valid_loss": NaN, "train_loss": Infinity}')
    before = seen(tmp_path)
    found, (o,) = said(capsys, 'status', folder.path)
    assert [*o] == KEYS and (found, o['state'], o['created']) == (code, state, 5)
    assert o['folder'] == os.path.relpath(folder.path)
    assert o['last_epoch'] == {'epoch': 5, 'train_loss': None, 'valid_loss': None} and o['epochs_done'] == 6
    assert o['best_epoch']['valid_loss'] == min(made(1).epochs['valid_loss']) and o['batches_done'] == 300
    assert (o['left_s'] == 14) == (not o['is_over']) == (state == 'running')
    assert (o['error'] is None) == (state != 'died') and len(o['error'] or '') <= 4000
    assert said(capsys, 'status', folder.path, '--wait', 'done', '--timeout', 4 if code else .3)[0] == waited
    assert said(capsys, 'runs', tmp_path, '--sort', 'run') == (0, [[o]])
    for command in 'status', 'tail', 'runs': assert main([command, str(folder.path)]) in (0, 1)
    assert seen(tmp_path) == before

def test_tail(tmp_path, capsys):
    folder = make_run(tmp_path/'a', made(1), 'running')
    (folder.path/'output.txt').write_bytes(b'long\n'*10**6 + b'last\x1b[2J\rpart')
    assert main(['tail', str(folder.path), '-n', '3']) == 0
    assert capsys.readouterr().out == 'long\nlast\\x1b[2J\npart\n'
    assert [o['epoch'] for o in said(capsys, 'tail', folder.path, '-n', '2')[1]] == [3, 4]
    assert not said(capsys, 'tail', folder.path, '-n', '0')[1]
    def later():
        append(folder, '{"kind": "epoch", "batch": 300, "epoch": 5}')
        with open(folder.path/'output.txt', 'a') as f: f.write(' and more\nend')
        folder.write('status.json', {'state': 'done'})
    for is_json, expected in (['--json'], '"epoch": 5}\n'), ([], 'part and more\nend\n'):
        make_run(folder.path, made(1), 'running')
        (folder.path/'output.txt').write_bytes(b'long\nlast\npart')
        threading.Timer(.5, later).start()
        assert main(['tail', str(folder.path), '--follow', *is_json]) == 0
        assert capsys.readouterr().out.endswith(expected)

def test_wrong_usage(tmp_path, capsys):
    "Nor is a folder made"
    for args in ['stop'], ['set-lr', 'a', 'x'], ['status', 'a', '--wait', 'x'], ['nothing', 'a']:
        with pytest.raises(SystemExit) as e: main(args)
        assert e.value.code == 2 and not capsys.readouterr().out
    for command in 'run', 'status', 'tail', 'stop', 'pause', 'unpause':
        assert main([command, str(tmp_path/'a')]) == 2 and not any(tmp_path.iterdir())
        out, err = capsys.readouterr()
        assert not out and f'no run in {tmp_path}' in err
    make_run(tmp_path/'a', made(1), 'done')
    assert main(['runs', str(tmp_path), '--sort', 'nope']) == 2

def test_a_run_is_steered(warm, tmp_path, capsys):
    run = trainer(Slow()).start(1000, folder=tmp_path/'a')
    capsys.readouterr()
    def ask(*args): return said(capsys, args[0], run.path, *args[1:])
    assert ask('status', '--wait', 'running', '--timeout', '120')[0] == 0
    code, (o,) = ask('pause')
    assert [*o] == [*KEYS, 'is_done', 'answer'] and o['is_done']
    assert (code, o['answer'], o['state']) == (0, 'paused', 'paused')
    assert ask('status', '--wait', 'paused')[0] == 0
    code, (o,) = ask('pause')
    assert (code, o['is_done']) == (1, False) and 'refused: RuntimeError' in o['answer']
    code, (o,) = ask('set-lr', '.5')
    assert code == 0 and o['answer'] == 'lr → 0.5'
    assert ask('set-lr', '-1')[0] == 1 and ask('unpause')[0] == 0
    out = python('stop', run.path)
    assert (out.returncode, out.stdout) == (0, 'stop: stops after this batch\n')
    assert ask('status', '--wait', 'done', '--timeout', '100')[0] == 4 and run.status == 'stopped'
    assert ask('stop')[0] == 0 and ask('pause')[0] == 1      # it is over
