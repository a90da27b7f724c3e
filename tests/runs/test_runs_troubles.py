"Full disks, clocks that are set, processes that stand still: training continues, and nothing saved is damaged"
import builtins, errno, io, os, signal, time, warnings
from pathlib import Path
from types import SimpleNamespace

import pytest, torch, torch.nn.functional as F
from torch import nn

from trainer_nb.all import Checkpoint, Learner
from trainer_nb.base import rng_state
from trainer_nb.runs import folder as folders
from trainer_nb.runs.folder import RunFolder, Status, answers, ask, status_of, read_status
from trainer_nb.runs.process import now_here
from trainer_nb.runs.record import RecordTail
from trainer_nb.runs.program import pack, put
from trainer_nb.runs.view import View
from trainer_nb.runs.worker import Worker, torch_settings
from trainer_nb.save import Folder, read_state
from common import Slow, equal, until
from test_runs import _ends, slow_learner   # noqa: F401


class Disk:
    "Counts what is written below a folder, and fails at chosen writes"
    def __init__(self, folder, monkeypatch):
        self.folder, self.n, self.is_bad, self.code = str(folder), 0, lambda n: False, errno.ENOSPC
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

@pytest.fixture
def here(monkeypatch, tmp_path):
    "A worker in this process, which looks often"
    monkeypatch.setattr(Worker, 'look_s', .01)
    monkeypatch.setattr(Worker, 'beat_s', .02)
    handler = signal.getsignal(signal.SIGTERM)
    yield tmp_path
    signal.signal(signal.SIGTERM, handler)

def make():
    torch.manual_seed(0)
    x = torch.randn(64, 4)
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(.2), nn.Linear(8, 1))
    return Learner(model, (x, x[:, :1]), (x, x[:, :1]), loss_fn=F.mse_loss, bs=8, seed=1, display=False,
                   hooks=[Slow(.002), Checkpoint('own', every=5, keep=2)])

def program(path, n=3):
    folder, kwargs = RunFolder(path), {'n_epochs': n}
    folder.make()
    folder.write('run.json', {'name': 'a'})
    put(folder.path, pack({'learn': make(), 'hooks': (), 'kwargs': kwargs, 'totals': kwargs, 'is_stopped': False,
                           'rng': rng_state(), 'torch': torch_settings()}))
    return folder

def check(folder, expected):
    "The training went on; what is saved is whole, and leads to the same end"
    status = read_status(folder).state
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        for o in (kept := Folder(folder.path/'checkpoints')).manifests(): kept.read(o)
    if (folder.path/'result.pt').exists(): read_state(folder.path/'result.pt')
    tail = RecordTail(folder.path/'record'/'log.jsonl')
    tail.update()
    assert all(equal(v, expected.history.steps[k][:len(v)]) for k, v in tail.history.steps.items())
    if status != 'done': assert Worker(folder.path).run() == 0       # the disk is well again
    learn = make()
    learn.load(folder.path/'result.pt')
    assert read_status(folder).state == 'done' and equal(learn.model.state_dict(), expected.model.state_dict())
    tail.update()
    assert tail.history.steps == expected.history.steps and len(tail.history) == len(expected.history)

def run_with(disk, path, expected, is_bad):
    folder = program(path)
    request = ask(folder, 'set_lr', .001)        # the rate that it has: it must be answered
    torch.manual_seed(0)
    disk.n, disk.is_bad = 0, is_bad
    worker = Worker(folder.path)
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')
        try: worker.run()
        except OSError: assert worker.learn is None         # not even the lock could be written: it never began
    n, disk.is_bad = disk.n, lambda n: False
    has_begun = worker.learn is not None and worker.learn.history.n_steps     # a lock that cannot be had ends it before
    if has_begun: assert equal(worker.learn.model.state_dict(), expected.model.state_dict())
    check(folder, expected)
    assert request in answers(folder)
    return n

@pytest.mark.parametrize('at, n, code', [
    (3, 8, errno.ENOSPC), (20, 8, errno.ENOSPC), (31, 10**9, errno.EROFS),
    *(pytest.param(o, 8, errno.ENOSPC, marks=pytest.mark.soak) for o in range(1, 60, 3))])
def test_full(at, n, code, here, monkeypatch):
    "Some writes in a row fail, or all to the end: training runs on, and its end can be made from what is there"
    expected, disk = make(), Disk(here/'a', monkeypatch)
    monkeypatch.chdir(here)
    expected.fit(3)
    disk.code = code
    run_with(disk, here/'a', expected, lambda i: at <= i < at + n)

def test_clock_is_set(tmp_path, monkeypatch):
    "A run is not called suspended because somebody set a clock, here or on its own machine"
    folder = RunFolder(tmp_path)
    def beat(**words): folder.write('status.json', {'state': 'running', **now_here(), 'heartbeat': clock, **words})
    clock = time.time()
    for o in 0, 1, 3600, 3601, -10**6, -10**6 + 1:      # what the clock shows, second by second
        clock = time.time() + o
        monkeypatch.setattr(folders, 'time', lambda: clock)
        beat()
        assert read_status(folder).state == 'running'
    other = {'host': 'elsewhere', 'heartbeat': 1000.}
    beat(**other)
    assert read_status(folder).state == 'running'       # it has changed, whatever its clock says
    at = folders.monotonic()
    monkeypatch.setattr(folders, 'monotonic', lambda: at + 60)
    assert read_status(folder).state == 'unreachable' and read_status(RunFolder(tmp_path)).state == 'unreachable'
    assert 'no heartbeat' in status_of({'state': 'running', **now_here(), 'heartbeat': clock - 60}).note

def test_stands_still(tmp_path):
    "A process that was stopped is suspended, and runs on"
    run = slow_learner().start(6, folder=tmp_path/'a')
    until(lambda: run.history.n_steps)
    os.kill(pid := run.folder.read('status.json')['pid'], signal.SIGSTOP)
    until(lambda: run.status == 'suspended')
    assert f'process {pid} is stopped' in str(run.state) and not run.is_over
    os.kill(pid, signal.SIGCONT)
    until(lambda: run.status == 'running')
    run.stop()
    run.wait(300)

def test_the_answer_to_a_click_stays(tmp_path):
    "Whenever it comes while the view looks: at the n-th reading"
    class Asked:
        def __init__(self, n): self.left = n
        @property
        def answer(self):
            self.left -= 1
            return {'done': 'paused'} if self.left < 0 else None
        def __str__(self): return f'pause: {"asked" if self.answer is None else "paused"}'
    folder = RunFolder(tmp_path/'a')
    folder.make()
    for n in range(5):
        view, said = View(folder, RecordTail(folder.path/'log.jsonl')), []
        view.clicks.row = SimpleNamespace(buttons={'Pause': SimpleNamespace(description='Pause')}, say=said.append)
        view.clicks.asked.append(Asked(n))
        while view.clicks.asked: view.clicks.tell(Status('paused', '', {}))
        view.clicks.tell(Status('paused', '', {}))
        assert said[-1] == 'pause: paused' and view.clicks.row.buttons['Pause'].description == 'Resume', n
