"Forks: unchanged they repeat their parent bit for bit, changed they part from it, and what is not there is refused"
import json, random
from contextlib import chdir

import pytest, torch, torch.nn.functional as F
from torch import nn

from trainer_nb.all import EMA, Checkpoint, GradClip, Learner, OneCycle, Run, attach, runs
from common import until
from test_runs import _ends, check_equal, kill, slow_learner, started, status_of, stop  # noqa: F401

N = 3       # epochs, of 12 batches

def make(*hooks, n=96):
    torch.manual_seed(0)
    x = torch.randn(n, 4)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(.2), nn.Linear(8, 1))
    return Learner(model, (x, x[:, :1]), (x, x[:, :1]), loss_fn=F.mse_loss, bs=8, lr=.01, seed=1, display=False,
                   hooks=[EMA(.9), *hooks])

@pytest.fixture(scope='module')
def parent(tmp_path_factory):
    "A run with a checkpoint at each step, and its learner at the end"
    with chdir(tmp_path_factory.mktemp('forks')):
        learn = make(Checkpoint('own', every=1, keep=1000))
        run = learn.start(N, folder='parent', hooks=[OneCycle(.05)])
        run.wait(300)
        yield run, learn

def info_of(run): return run.folder.read('run.json')['parent']

@pytest.mark.parametrize('n', [2, pytest.param(N*12 - 1, marks=pytest.mark.soak)])
def test_repeats(n, parent, tmp_path):
    "From some points, and from all 35"
    run, learn = parent
    rng = random.Random(n)
    steps = rng.sample(range(1, N*12), n)
    for at in range(0, n, 2):           # two at a time
        forks = [run.fork(step=o, folder=tmp_path/str(o)) for o in steps[at:at + 2]]
        for step, fork in zip(steps[at:at + 2], forks):
            torch.randn(rng.randrange(9))
            fork.wait(300)
            assert fork.history.steps == run.history.steps and fork.history.valids == run.history.valids
            assert info_of(fork)['batch'] == step and info_of(fork)['differs'] == []
            assert f'its {N*12 - step} losses since are equal' in fork.branch.text(fork.history)
            other = make(Checkpoint(tmp_path/'own'))
            other.load(fork.path/'result.pt')
            check_equal(learn, other)

def test_refusals(parent, tmp_path):
    run, _ = parent
    def fork(**args): run.fork(**{'folder': tmp_path/'a', **args})
    for args, kind, text in [
            (dict(at=1, step=3), TypeError, 'not both'),
            (dict(at=True), TypeError, 'epoch'), (dict(at=-1), ValueError, '1 or more'),
            (dict(at='best'), TypeError, 'epoch'),
            (dict(at=1, hooks=[3]), TypeError, 'ook'),
            (dict(at=1, n_epochs=2, max_steps=3), ValueError, 'either'),
            (dict(step=15, n_epochs=1), ValueError, r'or after it.*fork\(n_epochs=2\)'),
            (dict(step=5, train_dl=make().train_dl), ValueError, r'middle of an epoch.*fork\(at=0, train_dl')]:
        with pytest.raises(kind, match=text): fork(**args)
        assert not (tmp_path/'a').exists(), args
    (tmp_path/'b').mkdir()
    (tmp_path/'b'/'thesis.txt').touch()
    with pytest.raises(FileExistsError, match='not empty'): fork(at=1, folder=tmp_path/'b')

@pytest.mark.soak
def test_changed(parent, tmp_path):
    "Other rates, hooks, data and ends; what differs is noted, and shown"
    run, _ = parent
    x = torch.randn(40, 4)
    forks = [run.fork(at=1, lr=.001, folder=tmp_path/'lr'),
             run.fork(at=2, hooks=[GradClip(.01)], train_dl=(x, x[:, :1]), n_epochs=4, folder=tmp_path/'other')]
    for o in forks: o.wait(300)
    lr, other = forks
    here, there = lr.history.steps, run.history.steps
    assert here['lr'][12] == .001 and here['lr'][:12] == there['lr'][:12]
    ratios = [a/b for a, b in zip(here['lr'][12:], there['lr'][12:])]
    assert max(ratios) == pytest.approx(min(ratios))        # the schedule continues in proportion
    assert info_of(lr)['differs'] == ['lr → 0.001']
    assert 'fork of parent after epoch 0; lr → 0.001' in lr.branch.text(lr.history)
    assert repr(lr.branch).startswith('Branch(fork of parent after epoch 0; ')
    assert 'parts from it in batch 14' in lr.branch.text(lr.history)
    hooks, ends, data = info_of(other)['differs']
    assert (hooks, ends) == ('hooks GradClip', 'n_epochs 3 → 4') and data.startswith('data.train float32 (96, 4)')
    assert other.history.n_steps == 24 + 2*5 and other.history.steps['train_loss'][:24] == there['train_loss'][:24]
    assert 'parts from it in batch 25' in other.branch.text(other.history)
    assert [o['run'] for o in runs(tmp_path).values] == ['other', 'lr'] and run.branch is None
    assert lr.parent.path == run.path and run.parent is None
    assert json.loads((lr.path/'run.json').read_text())['parent']['epoch'] == 1

@pytest.mark.soak
def test_from_the_beginning(parent, tmp_path):
    run, _ = parent
    fork = run.fork(at=0, folder=tmp_path/'a')
    again = run.fork(at=0, folder=tmp_path/'a')         # the cell runs again: it attaches
    assert status_of(again)['pid'] == status_of(fork)['pid']
    fork.wait(300)
    assert fork.history.steps == run.history.steps and 'from the beginning' in fork.branch.text(fork.history)

@pytest.mark.soak
def test_of_a_run_that_trains(tmp_path, monkeypatch):
    "It saves now, and the run goes on; killed and restarted, the fork does not set the rate again"
    monkeypatch.chdir(tmp_path)
    run = started(slow_learner(), 1000, 'a', 5)
    fork = run.fork(lr=.5)
    assert fork.path.name == 'a-fork-1' and info_of(fork)['batch'] > 5 and run.status == 'running'
    until(lambda: fork.history.n_steps > info_of(fork)['batch'] + 5)
    fork.set_lr(.25).wait()
    fork.checkpoint().wait()
    kill(fork)
    n = fork.restart().history.n_steps
    until(lambda: fork.status == 'running' and fork.history.n_steps > n + 2)
    stop(fork)
    assert fork.history.steps['lr'][info_of(fork)['batch']] == .5 and fork.history.steps['lr'][-1] == .25
    stop(run)

@pytest.mark.soak
def test_two_processes(tmp_path):
    run = make(Checkpoint('own', keep=10)).start(N, folder=tmp_path/'a', n_procs=2)
    run.wait(300)
    fork = run.fork(at=1)
    fork.wait(300)
    assert fork.history.steps == run.history.steps and fork.folder.read('run.json')['n_procs'] == 2

def test_a_parent_that_is_gone_or_lies(tmp_path):
    "Viewing reads numbers only, and shows what there is"
    for i, info in enumerate([{'path': '../gone', 'batch': 3}, {'path': 5, 'batch': 'x', 'differs': 'y'}, {},
                              {'path': '/etc', 'batch': -1, 'name': '<script>', 'differs': [{}]}, []]):
        folder = Run(tmp_path/str(i)).folder
        folder.make()
        folder.write('run.json', {'name': 'a', 'parent': info})
        folder.write('status.json', {'state': 'done'})
        (folder.path/'record'/'log.jsonl').write_text('{"kind": "step", "batch": 1, "epoch": 0, "train_loss": 1.0}\n')
        run = attach(folder.path)
        assert run.status == 'done' and run.history.n_steps == 1
        if i < 4: assert run.branch.text(run.history) and '<script>' not in run.branch.path.name
