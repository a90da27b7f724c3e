"Full disks, processes that stand still: training continues, and nothing saved is damaged"
import builtins, errno, io, json, os, random, shutil, signal, subprocess, sys, time, warnings
from collections import Counter
from pathlib import Path

import pytest, torch

from trainer_nb.all import Checkpoint, Learner, OneCycle, Run, attach, compare, runs
from trainer_nb.base import rng_state
from trainer_nb.runs.engine import now_here
from trainer_nb.runs.folder import Request, RunFolder, ask, read_status
from trainer_nb.runs.record import RecordTail
from trainer_nb.runs.worker import Worker, torch_settings
from trainer_nb.save import Folder, pack, read_state
from common import Slow, equal, same, until, weights
from test_compare import made, make_run
from test_runs import _ends, check_equal, kill, slow_learner, started, stop     # noqa: F401
from test_runs_fork import make


class Disk:
    "Counts what is written below a folder, and fails at chosen writes"
    def __init__(self, folder, monkeypatch):
        self.folder, self.n, self.is_bad, self.code = str(folder), 0, lambda n: False, None
        for name in 'replace', 'truncate', 'fsync':
            def checked(*args, f=getattr(os, name)): return self.check(args[0]), f(*args)
            monkeypatch.setattr(os, name, checked)
        self.open = io.open
        for o in io, builtins: monkeypatch.setattr(o, 'open', self.opened)

    def check(self, path):
        if isinstance(path, (str, Path)) and not str(path).startswith(self.folder): return
        self.n += 1
        if self.is_bad(self.n): raise OSError(self.code, os.strerror(self.code))

    def opened(self, path, mode='r', *args, **kwargs):
        writes = isinstance(path, (str, Path)) and str(path).startswith(self.folder) and {*mode} & {*'wax+'}
        if writes: self.check(path)
        f = self.open(path, mode, *args, **kwargs)
        return File(f, self) if writes else f

class File:
    def __init__(self, f, disk): self.f, self.disk = f, disk
    def __getattr__(self, name): return getattr(self.f, name)
    def __enter__(self): return self
    def __exit__(self, *args): self.f.close()
    def write(self, data):
        try: self.disk.check(self.disk.folder)
        except OSError:
            self.f.write(data[:len(data)//2])       # some of it is there
            raise
        return self.f.write(data)
    def flush(self):
        self.disk.check(self.disk.folder)
        self.f.flush()

@pytest.mark.parametrize('at, n, code', [
    (3, 8, errno.ENOSPC), (20, 8, errno.ENOSPC), (31, 10**9, errno.EROFS),
    *(pytest.param(o, 8, errno.ENOSPC, marks=pytest.mark.soak) for o in range(1, 60, 3))])
def test_full(at, n, code, tmp_path, monkeypatch):
    "Some writes in a row fail, or all to the end: training runs on, and its end can be made from what is there"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Worker, 'look_s', .01)
    monkeypatch.setattr(Worker, 'beat_s', .02)
    monkeypatch.setattr(signal, 'signal', lambda *args: None)
    def trainer(): return make(Slow(.002), Checkpoint('own', every=5, keep=2))
    expected, folder, kwargs = trainer(), RunFolder(tmp_path/'a'), {'n_epochs': 3}
    expected.fit(3)
    folder.make()
    folder.write('run.json', {'name': 'a'})
    pack({'learn': trainer(), 'hooks': (), 'kwargs': kwargs, 'totals': kwargs, 'is_stopped': False,
          'rng': rng_state(), 'torch': torch_settings()}, folder.path/'program.pt')
    request = ask(folder, 'set_lr', .01)        # the rate that it has: it must be answered
    torch.manual_seed(0)
    disk, worker = Disk(folder.path, monkeypatch), Worker(folder.path)
    disk.is_bad, disk.code = lambda i: at <= i < at + n, code
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')
        try: worker.run()
        except OSError: assert worker.learn is None         # not even the lock could be written: it never began
    assert disk.n >= at
    disk.is_bad = lambda n: False
    has_begun = worker.learn is not None and worker.learn.history.n_steps     # a lock that cannot be had ends it before
    if has_begun: assert same(weights(worker.learn.model), weights(expected.model))
    # what is saved is whole, and leads to the same end
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        for o in (kept := Folder(folder.path/'checkpoints')).manifests(): read_state(kept.path/o['file'])
    if (folder.path/'result.pt').exists(): read_state(folder.path/'result.pt')
    (tail := RecordTail(folder.path/'record'/'log.jsonl')).update()
    assert all(equal(v, expected.history.steps[k][:len(v)]) for k, v in tail.history.steps.items())
    if read_status(folder).state != 'done': assert Worker(folder.path).run() == 0       # the disk is well again
    (learn := trainer()).load(folder.path/'result.pt')
    tail.update()
    assert read_status(folder).state == 'done' and same(weights(learn.model), weights(expected.model))
    assert tail.history.steps == expected.history.steps and len(tail.history) == len(expected.history)
    assert Request(folder, request, 'set_lr').answer

def test_a_killed_process_has_died(tmp_path):
    "Before anybody asked for its exit code; and another one with its id is not it"
    child = subprocess.Popen([sys.executable, '-c', 'input()'], stdin=subprocess.PIPE)
    folder, now = RunFolder(tmp_path), {'state': 'running', **now_here(child.pid), 'heartbeat': time.time()}
    folder.write('status.json', now)
    assert read_status(folder).state == 'running'
    folder.write('status.json', {**now, 'started': now['started'] - 60})
    assert read_status(folder).state == 'died'
    folder.write('status.json', now)
    child.kill()
    until(lambda: read_status(folder).state == 'died')
    child.communicate()

def test_huge_numbers_hide_no_other_run(tmp_path):
    "A file of somebody else may hold any: the run is shown as damaged, and the others as ever"
    names = 'heartbeat', 'pid', 'started', 'batch', 'end', 'epoch', 'end_epoch', 'rate', 'batch_s', 'valid_idx', 'host'
    for i, name in enumerate(names):
        for j, huge in enumerate(('1' + '0'*400, '1e400', '-1' + '0'*400, '1' + '0'*200)):
            folder = make_run(tmp_path/f'{i}-{j}', made(1))
            status = {'state': 'running', **now_here(), 'heartbeat': 2e9, 'end': 7, 'training': j < 2, name: 'HUGE'}
            (folder.path/'status.json').write_text(json.dumps(status).replace('"HUGE"', huge))
    (folder.path/'run.json').write_text(f'{{"created": {huge}, "first_batch": {huge}}}')
    make_run(tmp_path/'good', made(1))
    assert len(repr(runs(tmp_path)).splitlines()) == 4*len(names) + 3
    assert len(repr(compare(f'{tmp_path}/*')).splitlines()) > 4*len(names)
    for path in tmp_path.iterdir(): attach(path)
    assert str(Run(tmp_path/'0-0').state) == 'missing: status.json is damaged'
    for path in tmp_path.iterdir(): shutil.rmtree(path)

USE = """
import sys
from trainer_nb.all import attach
run = attach(sys.argv[1])
learn = run.learner()
assert type(learn.model).__module__ == 'beside' and len(run.predict(learn.valid_dl)) == 46 and run.validate()
fork = run.fork(n_epochs=2)
fork.wait(300)
print(fork.status)
"""

def test_a_module_beside_the_notebook_is_found_from_elsewhere(tmp_path, monkeypatch):
    (home := tmp_path/'home').mkdir()
    (home/'beside.py').write_text('from torch import nn\nclass Net(nn.Linear): pass\n')
    monkeypatch.chdir(home)
    monkeypatch.syspath_prepend(home)
    from beside import Net
    x = torch.randn(46, 4)
    Learner(Net(4, 3), (x, x[:, :3]), (x, x[:, :3]), loss_fn=torch.nn.functional.mse_loss, bs=9).start(
        1, folder=tmp_path/'a').wait(300)
    env = {**os.environ, 'PYTHONPATH': str(Path(__file__).parents[2])}
    found = subprocess.run([sys.executable, '-c', USE, tmp_path/'a'], cwd=tmp_path, env=env, capture_output=True,
                           text=True)
    assert found.stdout.endswith('done\n'), found.stderr[-2000:]
    assert RunFolder(tmp_path/'a-fork-1').read('run.json')['cwd'] == str(home)      # where the files are that it reads

def test_stands_still(tmp_path):
    "A process that was stopped is suspended, and runs on"
    run = started(slow_learner(), 6, tmp_path/'a')
    os.kill(pid := run.folder.read('status.json')['pid'], signal.SIGSTOP)
    until(lambda: run.status == 'suspended')
    assert f'process {pid} is stopped' in str(run.state) and not run.is_over
    os.kill(pid, signal.SIGCONT)
    until(lambda: run.status == 'running')
    stop(run)

@pytest.mark.soak
def test_kills(tmp_path, monkeypatch, n_kills=100):
    "SIGKILL at random moments, also while it starts and while it writes checkpoints: each run ends bit-equal"
    monkeypatch.chdir(tmp_path)
    def trainer(): return make(Slow(.01), OneCycle(), Checkpoint('own', every=1, keep=2))
    rng, expected, when = random.Random(0), trainer(), Counter()
    expected.fit(10)
    while when['killed'] < n_kills:
        learn = trainer()
        run = learn.start(10, folder=tmp_path/f'{when["run"]}')
        for _ in range(12):
            is_early = rng.random() < .15
            if not is_early: until(lambda: run.status in ('running', 'done'), 120)
            time.sleep(rng.uniform(0, 2.5 if is_early else .8))
            if run.is_over: break
            when[run.status] += 1
            kill(run)
            when.update(killed=1, writing=any(run.path.glob('checkpoints/.*.tmp')))
            run.restart()
        run.wait(300)
        check_equal(expected, learn)
        assert run.history.steps == expected.history.steps and run.history.ends == expected.history.ends
        when['run'] += 1
    assert when['starting'] and when['running'] and when['writing'], when
