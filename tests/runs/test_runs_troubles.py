"Full disks and kills at any moment: training continues, and nothing saved is damaged"
import builtins, errno, os, random, signal, time, warnings
from collections import Counter

import pytest

from trainer_nb.all import EMA, Checkpoint, OneCycle
from trainer_nb.base import rng_state
from trainer_nb.runs.folder import Request, RunFolder, ask, read_status
from trainer_nb.runs.record import RecordTail
from trainer_nb.runs.worker import Worker, torch_settings
from trainer_nb.save import Folder, pack, read_state
from common import Slow, equal, same, until, weights
from test_runs import check_equal, kill, trainer

@pytest.mark.parametrize('at, n, code', [
    (3, 8, errno.ENOSPC), (15, 10**9, errno.EROFS),
    *(pytest.param(o, 8, errno.ENOSPC, marks=pytest.mark.soak) for o in range(1, 30, 2))])
def test_full(at, n, code, tmp_path, monkeypatch):
    "Some writes in a row fail, or all to the end: training runs on, and its end can be made from what is there"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Worker, 'look_s', .01)
    monkeypatch.setattr(Worker, 'beat_s', .02)
    monkeypatch.setattr(signal, 'signal', lambda *args: None)
    def make(): return trainer(EMA(.9), Slow(.002), Checkpoint('own', every=5, keep=2))
    expected, folder, kwargs = make(), RunFolder(tmp_path/'a'), {'n_epochs': 3}
    expected.fit(3)
    folder.make()
    folder.write('run.json', {'name': 'a'})
    learn = make()
    pack({'learn': learn, 'hooks': (), 'kwargs': kwargs, 'totals': kwargs, 'is_stopped': False,
          'rng': rng_state(), 'torch': torch_settings()}, folder.path/'program.pt')
    request = ask(folder, 'set_lr', .01)        # the rate that it has: it must be answered
    worker, written, opened, replaced = Worker(folder.path), [], open, os.replace
    def check(path):
        if not str(path).startswith(str(folder.path)): return
        written.append(path)
        if at <= len(written) < at + n: raise OSError(code, os.strerror(code))
    def checked(path, mode='r', *args, **kwargs):
        if {*mode} & {*'wax+'}: check(path)
        return opened(path, mode, *args, **kwargs)
    with warnings.catch_warnings(), monkeypatch.context() as disk:
        warnings.simplefilter('ignore')
        disk.setattr(builtins, 'open', checked)
        disk.setattr(os, 'replace', lambda *args: (check(args[0]), replaced(*args)))
        try: worker.run()
        except OSError: assert worker.learn is None         # not even the lock could be written: it never began
    assert len(written) >= at
    if worker.learn is not None and worker.learn.history.n_steps:       # a lock that cannot be had ends it before
        assert same(weights(worker.learn.model), weights(expected.model))
    with warnings.catch_warnings():         # what is saved is whole, and leads to the same end
        warnings.simplefilter('error')
        for o in (kept := Folder(folder.path/'checkpoints')).manifests(): read_state(kept.path/o['file'])
    if (folder.path/'result.pt').exists(): read_state(folder.path/'result.pt')
    (tail := RecordTail(folder.record)).update()
    assert all(equal(v, expected.history.steps[k][:len(v)]) for k, v in tail.history.steps.items())
    if read_status(folder).state != 'done': assert Worker(folder.path).run() == 0       # the disk is well again
    learn.load(folder.path/'result.pt')
    tail.update()
    assert read_status(folder).state == 'done' and same(weights(learn.model), weights(expected.model))
    assert tail.history.steps == expected.history.steps and len(tail.history) == len(expected.history)
    assert Request(folder, request, 'set_lr').answer

@pytest.mark.soak
def test_kills(tmp_path, monkeypatch, n_kills=100):
    "SIGKILL at random moments, also while it starts and while it writes checkpoints: each run ends bit-equal"
    monkeypatch.chdir(tmp_path)
    def make(): return trainer(Slow(.01), OneCycle(), Checkpoint('own', every=1, keep=2))
    rng, expected, when = random.Random(0), make(), Counter()
    expected.fit(10)
    while when['killed'] < n_kills:
        learn = make()
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
