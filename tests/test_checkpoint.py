"A run survives whatever happens to its process, its files and its disk"
import json, random, subprocess, sys, threading
from contextlib import contextmanager
from pathlib import Path

import pytest, torch

from trainer_nb.files import Folder


@contextmanager
def forks():
    "A function that runs a training in a new process, and returns how it ended: 0 done, 3 interrupted, 4 failed on purpose, -9 killed"
    child = subprocess.Popen([sys.executable, Path(__file__).with_name('checkpoint_child.py')], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)
    def run(**c):
        watchdog = threading.Timer(60, child.kill)
        watchdog.start()
        try:
            child.stdin.write(json.dumps(c) + '\n')
            return int(child.stdout.readline())
        finally: watchdog.cancel()
    try: yield run
    finally:
        child.stdin.close()
        child.wait(10)
        child.stdout.close()

@pytest.fixture(scope='module')
def fork():
    with forks() as run: yield run

def lines(log): return dict(o.split(': ', 1) for o in Path(log).read_text().splitlines())

def result(log): return Path(f'{log}.digest').read_text()

ENDS = {'kill': -9, 'interrupt': 3, 'error': 4}
EVENTS = 'before_step', 'after_pred', 'after_loss', 'after_backward', 'after_step', 'before_epoch', 'before_valid', 'after_epoch'
SETUPS = {
    'plain': dict(), 'augmented': dict(aug=True), 'accumulated': dict(aug=True, accum=True), 'amp': dict(amp=True, accum=True),
    'workers': dict(workers=2, aug=True), 'persistent': dict(workers=2, persistent=True, accum=True)}

def campaign(fork, tmp_path, setup, n_stops, rand):
    "Stop a training at random moments, going on in a new process each time; then another one, until there were `n_stops`"
    setup = dict(SETUPS[setup], valid_every=rand.choice([None, 2, 3]))
    assert fork(folder=str(tmp_path/'whole'), log=str(tmp_path/'whole.log'), every='epoch', **setup) == 0
    expected, digest, done = lines(tmp_path/'whole.log'), result(tmp_path/'whole.log'), 0
    for i in range(10*n_stops):
        folder, log, seen = str(tmp_path/f'{i}'), str(tmp_path/f'{i}.log'), []
        every = rand.choice(['epoch', 1, 2, '0.0001s', '0.0001s'])
        for attempt in range(20):
            kind = rand.choice([*ENDS])
            stop = dict(event=rand.choice(EVENTS), n=rand.randint(1, 12), kind=kind) if done < n_stops else None
            code = fork(folder=folder, log=log, every=every, stop=stop, seed=attempt, **setup)
            seen.append((stop, code))
            if code == 0: break
            assert code == ENDS[kind], (setup, every, seen)
            done += 1
        assert result(log) == digest, (setup, every, seen)
        wrong = {k: (v, expected.get(k)) for k, v in lines(log).items() if v != expected.get(k)}
        assert not wrong and lines(log).keys() == expected.keys(), (setup, every, seen, wrong)
        if done >= n_stops: return
    raise AssertionError(f'{done} stops')

@pytest.mark.parametrize('setup', SETUPS)
@pytest.mark.parametrize('n_stops', [8, pytest.param(60, marks=pytest.mark.soak)])
def test_stopped_anywhere_and_resumed_in_a_new_process(fork, tmp_path, setup, n_stops):
    campaign(fork, tmp_path, setup, n_stops, random.Random(f'{setup} {n_stops}'))

@pytest.mark.parametrize('n_kills', [10, pytest.param(200, marks=pytest.mark.soak)])
def test_killed_while_saving(fork, tmp_path, n_kills):
    "After `kill -9` at any moment there is a newest file that is whole, newer than every one before, and nothing half-written is left once a training has begun"
    rand, folder = random.Random(n_kills), Folder(tmp_path/'a')
    other = tmp_path/'a/checkpoint-00001-step-1.txt'
    other.parent.mkdir()
    other.touch()
    n = 0
    for i in range(n_kills):
        assert fork(folder=str(folder.path), log=str(tmp_path/'log'), every='0.0001s', kill_after=.02 + .3*rand.random(), seed=i) == -9
        if (newest := folder.newest()) is None:
            assert n == 0
            continue
        assert newest[1]['n'] >= n, 'the newest was lost'
        n = newest[1]['n']
        assert newest[1] == folder.manifests()[-1], 'the newest is damaged'
    assert n and other.exists()
    folder.tidy()
    assert not [o for o in folder.path.iterdir() if o.suffix == '.tmp'] and len(folder.manifests()) <= 4
